"""Rows for people, on a pipe and on terminals that are wide or narrow."""

import io
import json
import re

import pytest

from tallystick.cli.tables import OutputFormat, print_rows

COLUMNS = ("TransactionalId", "TransactionState", "TopicPartitions")
ROWS = [
    {"TransactionalId": "[pay]", "TransactionState": "Ongoing", "TopicPartitions": ["b-0", "a-0"], "More": 1},
    {"TransactionalId": "ship", "TransactionState": None, "TopicPartitions": []},
]


class Terminal(io.StringIO):
    """Somebody reads it."""

    def isatty(self) -> bool:
        return True


def shown(monkeypatch: pytest.MonkeyPatch, to: io.StringIO, width: int) -> list[list[str]]:
    monkeypatch.setenv("COLUMNS", str(width))
    monkeypatch.setenv("TERM", "xterm")
    print_rows(COLUMNS, ROWS, OutputFormat.TABLE, to)
    plain = re.sub("\x1b\\[[0-9;]*m", "", to.getvalue())
    return [line.split() for line in plain.splitlines()]


@pytest.mark.parametrize(("to", "width"), [(io.StringIO, 20), (Terminal, 120)], ids=["pipe", "wide"])
def test_a_row_is_a_line(monkeypatch: pytest.MonkeyPatch, to: type[io.StringIO], width: int) -> None:
    assert shown(monkeypatch, to(), width) == [
        list(COLUMNS),
        ["[pay]", "Ongoing", "a-0,b-0"],
        ["ship", "-"],
    ]


def test_names_of_columns_are_broken_before_rows_are(monkeypatch: pytest.MonkeyPatch) -> None:
    assert shown(monkeypatch, Terminal(), 45)[:3] == [
        ["Transactional", "Transaction", "Topic"],
        ["Id", "State", "Partitions"],
        ["[pay]", "Ongoing", "a-0,b-0"],
    ]


def test_a_row_that_is_wider_than_the_terminal_is_a_line_for_each_column(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert shown(monkeypatch, Terminal(), 30) == [
        ["TransactionalId", "[pay]"],
        ["TransactionState", "Ongoing"],
        ["TopicPartitions", "a-0,b-0"],
        [],
        ["TransactionalId", "ship"],
        ["TransactionState", "-"],
        ["TopicPartitions"],
    ]


def test_programs_get_everything() -> None:
    to = io.StringIO()
    print_rows(COLUMNS, ROWS, OutputFormat.JSON, to)
    assert json.loads(to.getvalue()) == ROWS


def test_what_is_absent_true_or_false_is_a_word_for_people_alone() -> None:
    for output, shown_as in ((OutputFormat.TABLE, ["-", "yes", "no", "0"]), (OutputFormat.JSON, None)):
        to = io.StringIO()
        row = {"A": None, "B": True, "C": False, "D": 0}
        print_rows(tuple(row), [row], output, to)
        if shown_as is None:
            assert json.loads(to.getvalue()) == [row]
        else:
            assert to.getvalue().splitlines()[1].split() == shown_as
