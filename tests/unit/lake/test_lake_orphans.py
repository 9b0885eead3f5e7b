"""Which data files are orphans: every combination of who owns a key and who wrote a file."""

from itertools import product

from tallystick.lake.names import format_data_file_name
from tallystick.lake.orphans import find_orphans
from tallystick.lake.ports import TableFiles

KEYS = ("p/database", "q/database")
OWNERS = ("7/1", "7/2")
FILES = {
    format_data_file_name(key, owner, "ab", number): 100 + number
    for key, owner, number in product(KEYS, OWNERS, (0, 1))
}
FOREIGN = {"part-0-x.parquet": 1, "tallystick-notes.txt": 2}


def test_an_orphan_is_named_by_no_version_and_its_owner_was_replaced() -> None:
    """[LAK-3]"""
    committed = format_data_file_name("p/database", "7/1", "ab", 0)
    table = TableFiles(referenced={committed}, owners={"p/database": "7/2"})
    report = find_orphans({**FILES, **FOREIGN}, table)
    assert report.orphans == {format_data_file_name("p/database", "7/1", "ab", 1): 101}
    assert set(report.live) == {format_data_file_name("p/database", "7/2", "ab", n) for n in (0, 1)}
    assert all(name in FILES and name not in report.live for name in report.ownerless)
    assert len(report.ownerless) == 4


def test_the_files_of_the_last_owner_are_kept_whatever_else_there_is() -> None:
    """[LAK-3] Its attempts may be alive: nothing tells a loser from the one that will be voted for."""
    for owner in OWNERS:
        report = find_orphans(FILES, TableFiles(referenced=(), owners=dict.fromkeys(KEYS, owner)))
        kept = {name for name in FILES if name in report.live}
        assert kept == {format_data_file_name(key, owner, "ab", n) for key, n in product(KEYS, (0, 1))}
        assert set(report.orphans) == set(FILES) - kept


def test_only_the_keys_that_were_named() -> None:
    table = TableFiles(referenced=(), owners=dict.fromkeys(KEYS, "8/1"))
    report = find_orphans(FILES, table, ["q/database"])
    assert set(report.orphans) == {
        format_data_file_name("q/database", owner, "ab", n) for owner, n in product(OWNERS, (0, 1))
    }
