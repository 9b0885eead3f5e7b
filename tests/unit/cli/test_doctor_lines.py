"""What `tallystick doctor` prints for people, on a pipe and on terminals, with names of any length."""

import io
import sys

import pytest

from tallystick.admin.doctor.checks import DoctorRow, Status
from tallystick.cli.commands.doctor import print_findings
from tallystick.cli.tables import OutputFormat

TOPIC = "t" * 249
NAME = "CN=payments-writer.example.internal,OU=Payments,O=Example Corporation,L=Berlin,C=DE"
GRANT = f"tallystick acls create --allow-principal 'User:{NAME}' --topic {TOPIC} --operation Write"
FINDINGS = [
    DoctorRow(area="connection", check="login", status=Status.OK, detail=f"SSL, User:{NAME}"),
    DoctorRow(area="rights", check="Write on topic orders", status=Status.OK, detail="writer"),
    DoctorRow(
        area="rights", check=f"Write on topic {TOPIC}", status=Status.FAIL, detail="missing", action=GRANT
    ),
]


class Terminal(io.StringIO):
    """A stream that says it is a terminal."""

    def isatty(self) -> bool:
        return True


def print_on(monkeypatch: pytest.MonkeyPatch, to: io.StringIO, **environment: str) -> list[str]:
    for name in ("NO_COLOR", "FORCE_COLOR", "COLUMNS"):
        monkeypatch.delenv(name, raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(sys, "stdout", to)
    print_findings(FINDINGS, OutputFormat.TABLE)
    return to.getvalue().splitlines()


@pytest.mark.parametrize("width", [80, 120])
def test_a_long_name_leaves_the_others_their_columns(monkeypatch: pytest.MonkeyPatch, width: int) -> None:
    lines = print_on(monkeypatch, Terminal(), COLUMNS=str(width), TERM="dumb")
    assert "ok       Write on topic orders  writer" in lines
    table = lines[: lines.index("")]
    assert all(len(line) <= width and line == line.rstrip() for line in table)
    assert "fail     Write on topic" in table
    assert "".join(line.strip() for line in table if "ttt" in line) == TOPIC
    assert table[-1].split() == ["missing"]


def test_a_pipe_has_a_line_for_each_check(monkeypatch: pytest.MonkeyPatch) -> None:
    assert print_on(monkeypatch, io.StringIO(), TERM="xterm") == [
        f"ok       login                  SSL, User:{NAME}",
        "ok       Write on topic orders  writer",
        f"fail     Write on topic {TOPIC}  missing",
        "",
        "To do:",
        f"  {GRANT}",
    ]


@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        ({"TERM": "xterm"}, "\x1b[32mok       \x1b[0mWrite on topic orders  writer"),
        ({"TERM": "xterm", "NO_COLOR": "1"}, "ok       Write on topic orders  writer"),
        ({"TERM": "dumb"}, "ok       Write on topic orders  writer"),
    ],
)
def test_colours_only_where_they_are_wanted(
    monkeypatch: pytest.MonkeyPatch, environment: dict[str, str], expected: str
) -> None:
    assert expected in print_on(monkeypatch, Terminal(), COLUMNS="120", **environment)


def test_a_command_is_one_line_to_copy(monkeypatch: pytest.MonkeyPatch) -> None:
    assert f"  {GRANT}" in print_on(monkeypatch, Terminal(), COLUMNS="80", TERM="dumb")
