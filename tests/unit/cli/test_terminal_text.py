"""Names and texts of others, shown on a terminal: what would steer it is escaped."""

import io
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tallystick.admin.doctor.checks import DoctorRow, Status
from tallystick.cli.commands.doctor import print_findings
from tallystick.cli.exits import ExitCode, print_error
from tallystick.cli.tables import OutputFormat, print_rows
from tallystick.cli.terminal_text import make_printable

# Sets the title, moves to the line above and clears it, and turns the direction of writing around.
HOSTILE = "pay\x1b]0;owned\x07\x1b[1A\x1b[2K\x9b2J\u202e\rok\nok"


def holds_no_control(text: str) -> bool:
    return all(char == "\n" or char.isprintable() for char in text)


def test_every_control_has_an_escape() -> None:
    assert make_printable("\x1b[2K\x9b\x7f\u202e\r") == r"\x1b[2K\x9b\x7f\u202e\r"
    assert make_printable("a\nb") == "a\nb"
    assert make_printable("a\nb", one_line=True) == r"a\nb"
    assert make_printable("Zahlung 支払い é [red]") == "Zahlung 支払い é [red]"


@given(st.text())
def test_nothing_that_is_left_moves_the_cursor(text: str) -> None:
    shown = make_printable(text, one_line=True)
    assert not any(ord(char) < 0x20 or 0x7F <= ord(char) < 0xA0 for char in shown)


def test_tables_show_ids_that_clients_have_chosen() -> None:
    for rows in ([{"id": HOSTILE}], [{"id": [HOSTILE, "b"]}]):
        to = io.StringIO()
        print_rows(("id",), rows, OutputFormat.TABLE, to)
        assert holds_no_control(to.getvalue())
        assert len(to.getvalue().splitlines()) == 2


def test_the_doctor_shows_what_a_broker_says(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdout", io.StringIO())
    row = DoctorRow(area="a", check=HOSTILE, status=Status.FAIL, detail=HOSTILE, action=HOSTILE)
    print_findings([row], OutputFormat.TABLE)
    assert holds_no_control(sys.stdout.getvalue())  # type: ignore[union-attr]


def test_errors_show_what_a_broker_says(capsys: pytest.CaptureFixture[str]) -> None:
    print_error(HOSTILE, ExitCode.FAILED)
    assert holds_no_control(capsys.readouterr().err)
