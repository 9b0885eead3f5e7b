"""Every exception of ours survives pickling with its text: Spark sends them between processes (style R11)."""

import importlib
import inspect
import pickle
import pkgutil
from collections.abc import Iterator

import pytest

import tallystick
from tallystick.client.transactions.prepared import PreparedTxnState

# How to make one of each class whose constructor wants something.
EXAMPLES: dict[str, tuple[object, ...]] = {
    "MissingDriver": ("psycopg2", ""),
    "HeuristicMixed": ("the rows are committed, their records are not", {"pay-7": PreparedTxnState("42:7")}),
}

NOT_IMPORTED = "__main__"


def own_exceptions() -> Iterator[type[Exception]]:
    for module in pkgutil.walk_packages(tallystick.__path__, "tallystick."):
        if module.name.endswith(NOT_IMPORTED):
            continue
        for _, value in inspect.getmembers(importlib.import_module(module.name), inspect.isclass):
            if issubclass(value, Exception) and value.__module__ == module.name:
                yield value


def example(cls: type[Exception]) -> Exception:
    """An instance made from the constructor's own annotations."""
    if cls.__name__ in EXAMPLES:
        return cls(*EXAMPLES[cls.__name__])
    if cls.__init__ is Exception.__init__:
        return cls("what was compared with what")
    samples: dict[str, object] = {"int": 7, "str": "seven", "bytes": b"seven", "bool": True}
    parameters = list(inspect.signature(cls).parameters.values())
    return cls(
        *(samples.get(str(getattr(p.annotation, "__name__", p.annotation)), "seven") for p in parameters)
    )


@pytest.mark.gate(30)
@pytest.mark.parametrize(
    "cls", sorted(set(own_exceptions()), key=lambda c: c.__qualname__), ids=lambda c: c.__name__
)
def test_exception_survives_pickling(cls: type[Exception]) -> None:
    raised = example(cls)
    copy = pickle.loads(pickle.dumps(raised))
    assert type(copy) is cls
    assert str(copy) == str(raised)
    assert vars(copy) == vars(raised)
