"""Statements about savepoints are told from all others."""

import pytest

from tallystick.dualwrite.rules.refusals import parse_savepoint


@pytest.mark.parametrize(
    ("statement", "told"),
    [
        ("SAVEPOINT sa_savepoint_1", ("SAVEPOINT", "sa_savepoint_1")),
        ('  savepoint "Mine";', ("SAVEPOINT", "mine")),
        ("ROLLBACK TO SAVEPOINT sa_savepoint_1", ("ROLLBACK TO", "sa_savepoint_1")),
        ("ROLLBACK TO mine;", ("ROLLBACK TO", "mine")),
        ("rollback work to savepoint `mine`", ("ROLLBACK TO", "mine")),
        ("ROLLBACK TRANSACTION TO mine", ("ROLLBACK TO", "mine")),
        ("ROLLBACK", None),
        ("ROLLBACK AND NO CHAIN", None),
        ("RELEASE SAVEPOINT mine", None),
        ("INSERT INTO t VALUES ('ROLLBACK TO mine')", None),
        ("", None),
    ],
)
def test_what_a_statement_does_with_a_savepoint(statement: str, told: tuple[str, str] | None) -> None:
    """[DW-2]"""
    assert parse_savepoint(statement) == told
