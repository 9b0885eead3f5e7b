"""What `register` says about a session that sends rows to Python over TCP."""

import logging
from typing import Any, cast

import pytest
from pyspark.errors import PySparkException

from tallystick.spark.data_source import KafkaDataSource
from tallystick.spark.registration import register
from tallystick.spark.runtime import session_advice
from tallystick.spark.runtime.session_advice import UNIX_SOCKETS, find_slow_sockets


@pytest.mark.parametrize(
    ("setting", "environment", "has_unix_sockets", "is_slow"),
    [
        (None, {}, True, True),
        ("false", {}, True, True),
        ("false", {"PYSPARK_UDS_MODE": "true"}, True, True),
        ("true", {}, True, False),
        ("TRUE", {}, True, False),
        (None, {"PYSPARK_UDS_MODE": "true"}, True, False),
        (None, {}, False, False),
        ("false", {}, False, False),
    ],
)
def test_advice_is_given_where_the_setting_is_off_and_could_be_on(
    setting: str | None, environment: dict[str, str], has_unix_sockets: bool, is_slow: bool
) -> None:
    advice = find_slow_sockets(setting, environment, has_unix_sockets=has_unix_sockets)
    assert (advice is not None) == is_slow
    if advice is not None:
        assert f"{UNIX_SOCKETS}=true" in advice


class Session:
    """A session, as `register` sees it."""

    def __init__(self, setting: str | None = None, failure: Exception | None = None) -> None:
        self.conf = self.dataSource = self
        self.registered: list[type] = []
        self._setting, self._failure = setting, failure

    def register(self, source: type) -> None:
        self.registered.append(source)

    def get(self, name: str, default: str | None) -> str | None:
        assert name == UNIX_SOCKETS
        if self._failure is not None:
            raise self._failure
        return self._setting if self._setting is not None else default


@pytest.fixture(autouse=True)
def fresh_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session_advice, "_advice_texts", set())
    monkeypatch.delenv("PYSPARK_UDS_MODE", raising=False)


def advice_of(caplog: pytest.LogCaptureFixture, *sessions: Session) -> list[str]:
    with caplog.at_level(logging.WARNING, "tallystick.spark"):
        for each in sessions:
            register(cast(Any, each))
            assert each.registered == [KafkaDataSource]
    return [record.getMessage() for record in caplog.records]


def test_register_says_it_once_with_the_setting_to_copy(caplog: pytest.LogCaptureFixture) -> None:
    (said,) = advice_of(caplog, Session(), Session("false"))
    assert f'.config("{UNIX_SOCKETS}", "true")' in said


def test_register_says_nothing_where_it_is_on_or_cannot_be_read(caplog: pytest.LogCaptureFixture) -> None:
    assert advice_of(caplog, Session("true"), Session(failure=PySparkException("not known"))) == []
