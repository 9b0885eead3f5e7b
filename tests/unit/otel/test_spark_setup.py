"""The option `tracing.setup`, which switches tracing on in the processes that Spark starts."""

import sys
from types import ModuleType

import pytest

from tallystick.kernel.settings import BadConfig
from tallystick.spark import tracing
from tallystick.spark.options.option_table import QueryType
from tallystick.spark.options.sink_options import SinkOptions, parse_sink_options


def parse(setup: str) -> SinkOptions:
    options = {
        "kafka.bootstrap.servers": "b:1",
        "transactional.id.prefix": "q",
        "topic": "t",
        "tracing.setup": setup,
    }
    return parse_sink_options(options, QueryType.STREAM)


def test_the_option_names_a_function() -> None:
    assert parse("billing.tracing:set_up").tracing_setup == "billing.tracing:set_up"
    assert parse("").tracing_setup is None


@pytest.mark.parametrize(
    "setup", ["billing", "billing.tracing.set_up", "billing:", ":set_up", "a b:c", "a:b:c", "a:b()", "a..b:c"]
)
def test_another_form_is_refused_on_the_driver(setup: str) -> None:
    with pytest.raises(BadConfig, match=r"tracing\.setup: .* package\.module:function"):
        parse(setup)


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What the functions of a module `user_setup` have been called for."""
    calls: list[str] = []
    module = ModuleType("user_setup")

    def fail() -> None:
        calls.append("fail")
        raise RuntimeError("broken")

    vars(module).update(set_up=lambda: calls.append("set_up"), fail=fail)
    monkeypatch.setitem(sys.modules, "user_setup", module)
    monkeypatch.setattr(tracing, "_SETUPS_DONE", set())
    return calls


def test_it_is_called_once_in_a_process(calls: list[str]) -> None:
    for setup in (None, "user_setup:set_up", "user_setup:set_up"):
        tracing.set_up(setup)
    assert calls == ["set_up"]


def test_it_is_not_called_where_tracing_is_on(calls: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tracing, "tracer", object())
    tracing.set_up("user_setup:set_up")
    assert calls == []


@pytest.mark.parametrize("setup", ["user_setup:fail", "user_setup:missing", "no_such_module:set_up"])
def test_a_failure_is_logged_and_not_repeated(
    calls: list[str], caplog: pytest.LogCaptureFixture, setup: str
) -> None:
    tracing.set_up(setup)
    tracing.set_up(setup)
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    assert setup in caplog.text
