"""Idempotency keys: work that is called again under the same key returns its first result. Pure.

The key is a row in the database of the dual write, inserted by the transaction of the work. So it is
committed with both halves or not at all, and outlives every process. A call that meets the key of another
one waits for the end of that transaction.
"""

import inspect
import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final
from uuid import UUID

from tallystick.client.errors import NotSupported
from tallystick.dualwrite.errors import BadResult
from tallystick.kernel.errors import TallystickError
from tallystick.kernel.value import Value

KEY_BYTES_MAX: Final = 750
"""Length of a key, and of a scope, in UTF-8."""

KeyRule = Callable[..., str] | str
"""What the key of a call is: a function of the call's arguments, or the name of one of its parameters."""


class IdempotencyKey(Value):
    """A key within its scope: the same key in another scope is another one.

    scope  what is done; by default the module and name of the decorated function
    key    which one it is: an order's number, a task's id
    """

    scope: str
    key: str

    def check(self) -> None:
        """Raise ValueError for what a database may cut, change or refuse: then two keys may become one."""
        for name, text in (("scope", self.scope), ("key", self.key)):
            if not isinstance(text, str):
                raise TypeError(f"idempotency {name}: {text!r} is a {type(text).__name__}, not a str")
            size = len(text.encode("utf-8", "surrogatepass"))
            if not 1 <= size <= KEY_BYTES_MAX:
                raise ValueError(f"idempotency {name}: {size} bytes are not 1..{KEY_BYTES_MAX}")
            if "\0" in text or any("\ud800" <= each <= "\udfff" for each in text):
                raise ValueError(f"idempotency {name}: {text!r} has a character that databases do not keep")

    def __str__(self) -> str:
        return f"{self.key!r} of {self.scope}"


class KeyFound(TallystickError):
    """The work was done before under this key: nothing of it is done again. Raised inside the block only.

    result  what it returned then
    """

    def __init__(self, result: object) -> None:
        super().__init__(result)
        self.result = result


def check_keys_supported(store: object) -> None:
    """Raise NotSupported unless the store can keep idempotency keys beside the rows.

    The store of a leased id hands out the transactions of the one that it wraps, which alone matter here.
    """
    store = getattr(store, "wrapped_store", store)
    if not hasattr(store, "forget_idempotency_keys"):
        name = type(store).__name__
        raise NotSupported(
            "idempotency_key", f"a table of keys in {name}: SqlStore, AsyncSqlStore and DjangoStore have one"
        )


def encode_result(key: IdempotencyKey, result: object) -> str:
    """Return a result as JSON text. Raises: BadResult unless the text gives back an equal result."""
    try:
        text = json.dumps(result, allow_nan=False)
        is_kept = json.loads(text) == result
    except (TypeError, ValueError, RecursionError) as exc:
        raise BadResult(f"{_name_result(key, result)}: {exc}; {_KEPT_TEXT}") from exc
    if not is_kept:
        raise BadResult(f"{_name_result(key, result)} would come back as {text[:200]}; {_KEPT_TEXT}")
    return text


_KEPT_TEXT: Final = (
    "neither half is committed. It is kept as JSON with the key, for calls with the same key: return None, "
    "text, numbers, lists, or dicts with text as keys"
)


def _name_result(key: IdempotencyKey, result: object) -> str:
    return f"{key}: the result, a {type(result).__name__},"


def decode_result(text: str) -> Any:
    """Return the result that was stored."""
    return json.loads(text)


def describe_call(work: Callable[..., object]) -> inspect.Signature:
    """Return the signature of calls of decorated work: without the transaction, its first parameter.

    Raises: ValueError if it takes no positional parameter.
    """
    signature = inspect.signature(work)
    parameters = list(signature.parameters.values())
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    if not parameters or parameters[0].kind not in kinds:
        raise ValueError(f"{_get_name(work)}: its first parameter must be the transaction")
    return signature.replace(parameters=parameters[1:])


def get_default_scope(work: Callable[..., object]) -> str:
    """Return the module and name of a function."""
    return f"{getattr(work, '__module__', '')}.{_get_name(work)}"


def _get_name(work: Callable[..., object]) -> str:
    return str(getattr(work, "__qualname__", type(work).__qualname__))


class KeyOfCall:
    """Determines the key of each call of decorated work."""

    def __init__(self, rule: KeyRule, scope: str, call: inspect.Signature) -> None:
        """Take the rule. Raises: ValueError if it names a parameter that the work does not have."""
        if isinstance(rule, str) and rule not in call.parameters:
            raise ValueError(
                f"idempotency_key={rule!r}: {scope} has no such parameter beside the transaction"
            )
        self._rule = rule
        self._scope = scope
        self._call = call

    def __call__(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> IdempotencyKey:
        """Return the key of a call with these arguments. Raises: TypeError, ValueError."""
        if isinstance(self._rule, str):
            bound = self._call.bind(*args, **kwargs)
            bound.apply_defaults()
            value = bound.arguments[self._rule]
            text = str(value) if isinstance(value, int | UUID) else value
        else:
            text = self._rule(*args, **kwargs)
        key = IdempotencyKey(self._scope, text)
        key.check()
        return key
