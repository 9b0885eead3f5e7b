"""A server's log: "Broker's log with zone (UTC by default) and a JSON form"."""

import json
import logging
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from tallystick.kernel.log_lines import JsonFormatter, TextFormatter, set_log_level, start_log

SUMMER_S = 1_784_116_805.0421  # 2026-07-15T12:00:05.042Z


@pytest.fixture
def elsewhere(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("TZ", "Asia/Tokyo")
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()


@contextmanager
def a_program_of_its_own() -> Iterator[logging.Logger]:
    """The root logger without pytest's handlers, and afterwards as it was found."""
    root = logging.getLogger()
    handlers, level, root.handlers = root.handlers, root.level, []
    try:
        yield root
    finally:
        logging.captureWarnings(False)
        root.handlers = handlers
        root.setLevel(level)


def make_record(message: str, *args: object, **others: object) -> logging.LogRecord:
    record = logging.LogRecord("tallystick.broker", logging.WARNING, __file__, 1, message, args, None)
    record.created, record.msecs = SUMMER_S, 42.1
    vars(record).update(others)
    return record


@pytest.mark.usefixtures("elsewhere")
def test_a_line_has_its_time_in_utc_and_says_so() -> None:
    text = TextFormatter().format(make_record("no connection with %s", "::1"))
    assert text == "2026-07-15T12:00:05.042Z WARNING tallystick.broker: no connection with ::1"


@pytest.mark.usefixtures("elsewhere")
def test_an_object_has_the_same_and_stays_on_its_line() -> None:
    line = JsonFormatter().format(make_record('two\nlines, "quoted", é and \udcff: %d', 1))
    assert line.isascii()
    assert "\n" not in line
    assert json.loads(line) == {
        "time": "2026-07-15T12:00:05.042Z",
        "level": "WARNING",
        "logger": "tallystick.broker",
        "message": 'two\nlines, "quoted", é and \udcff: 1',
    }


def test_an_exception_is_a_field_of_its_own() -> None:
    try:
        raise ValueError("of the disk")
    except ValueError as exc:
        record = make_record("failed", exc_info=(type(exc), exc, exc.__traceback__), stack_info="called here")
    found = json.loads(JsonFormatter().format(record))
    assert found["message"] == "failed"
    assert found["exception"].startswith("Traceback (most recent call last):\n")
    assert "ValueError: of the disk\ncalled here" in found["exception"]


def test_the_log_can_be_started_again_in_another_form(capsys: pytest.CaptureFixture[str]) -> None:
    log = logging.getLogger("tallystick.test")
    with a_program_of_its_own():
        start_log("info", "text")
        log.info("first")
        start_log("error", "json")
        log.warning("not grave enough")
        log.error("second")
        set_log_level("debug")
        log.debug("third")
    first, second, third = capsys.readouterr().err.splitlines()
    assert first.endswith("Z INFO tallystick.test: first")
    assert [json.loads(each)["message"] for each in (second, third)] == ["second", "third"]


def test_a_word_that_is_neither_level_nor_form_waits_to_be_refused() -> None:
    with a_program_of_its_own() as root:
        start_log("loud", "xml")
        assert (root.level, len(root.handlers)) == (logging.INFO, 1)


def test_handlers_of_a_program_around_it_stay() -> None:
    with a_program_of_its_own() as root:
        root.addHandler(own := logging.NullHandler())
        start_log("info", "json")
        assert root.handlers == [own]


def test_warnings_of_python_are_part_of_a_json_log(capsys: pytest.CaptureFixture[str]) -> None:
    with a_program_of_its_own():
        start_log("info", "json")
        logging.getLogger("py.warnings").warning("%s", "x.py:1: DeprecationWarning: soon")
    assert json.loads(capsys.readouterr().err)["logger"] == "py.warnings"
