"""Which data files are orphans: every combination of table, of who owns a key and who wrote a file."""

from itertools import product

from tallystick.lake.names import digest_key, digest_owner, format_data_file_name
from tallystick.lake.orphans import find_orphans
from tallystick.lake.ports import ListedFile, TableFiles

KEYS = ("p/database", "q/database")
OWNERS = ("7/1", "7/2")


def name_file(key: str, owner: str, number: int, table: str = "t1") -> str:
    return format_data_file_name(table, key, owner, "ab", number)


def name_old_file(key: str, owner: str, number: int) -> str:
    return f"tallystick-{digest_key(key)}-{digest_owner(owner)}-ab-{number}.parquet"


FILES = {
    name_file(key, owner, number): ListedFile(100 + number, 1000 + number)
    for key, owner, number in product(KEYS, OWNERS, (0, 1))
}
FOREIGN = {"part-0-x.parquet": ListedFile(1), "tallystick-notes.txt": ListedFile(2)}


def build_table(
    owners: dict[str, str], referenced: tuple[str, ...] = (), past: dict[str, set[str]] | None = None
) -> TableFiles:
    return TableFiles(identity="t1", referenced=referenced, owners=owners, past_owners=past or {})


def test_an_orphan_is_named_by_no_version_and_its_owner_was_replaced() -> None:
    """[LAK-3]"""
    table = build_table({"p/database": "7/2"}, (name_file("p/database", "7/1", 0),))
    report = find_orphans({**FILES, **FOREIGN}, table)
    assert report.orphans == {name_file("p/database", "7/1", 1): 101}
    assert set(report.live) == {name_file("p/database", "7/2", n) for n in (0, 1)}
    assert all(name in FILES and name not in report.live for name in report.ownerless)
    assert len(report.ownerless) == 4


def test_the_files_of_the_last_owner_are_kept_whatever_else_there_is() -> None:
    """[LAK-3] Its attempts may be alive: nothing tells a loser from the one that will be voted for."""
    for owner in OWNERS:
        report = find_orphans(FILES, build_table(dict.fromkeys(KEYS, owner)))
        kept = {name for name in FILES if name in report.live}
        assert kept == {name_file(key, owner, n) for key, n in product(KEYS, (0, 1))}
        assert set(report.orphans) == set(FILES) - kept


def test_only_the_keys_that_were_named() -> None:
    report = find_orphans(FILES, build_table(dict.fromkeys(KEYS, "8/1")), ["q/database"])
    assert set(report.orphans) == {name_file("q/database", owner, n) for owner, n in product(OWNERS, (0, 1))}


def test_files_of_another_table_are_never_orphans() -> None:
    """[LAK-3] A renamed table leaves its folder to the next of its name; a query writes both."""
    other = {name_file(key, owner, 5, "t2"): ListedFile(9) for key, owner in product(KEYS, OWNERS)}
    report = find_orphans({**FILES, **other}, build_table(dict.fromkeys(KEYS, "8/1")))
    assert set(report.foreign) == set(other)
    assert set(report.orphans) == set(FILES)


def test_a_name_without_a_table_is_an_orphan_only_if_the_log_tells_of_all_owners_of_its_key() -> None:
    """[LAK-3] Names of version 1: a table of the same folder may have the same key."""
    p, q = KEYS
    files = {name_old_file(key, owner, 0): ListedFile(100) for key, owner in product(KEYS, OWNERS)}
    table = build_table({p: "8/1", q: "8/1"}, past={p: {"7/1", "7/2", "8/1"}, q: {"7/1", "8/1"}})
    report = find_orphans(files, table)
    assert set(report.orphans) == {name_old_file(p, owner, 0) for owner in OWNERS}
    assert set(report.unplaced) == {name_old_file(q, owner, 0) for owner in OWNERS}
    committed = build_table(
        {p: "8/1", q: "8/1"}, (name_old_file(q, "7/2", 1),), {p: {"7/1", "7/2"}, q: {"7/1"}}
    )
    assert set(find_orphans(files, committed).orphans) == set(files), "what the table has is its owner's"


def test_a_young_file_is_kept() -> None:
    files = {**FILES, name_file(KEYS[0], "6/0", 7): ListedFile(5, None)}
    report = find_orphans(files, build_table(dict.fromkeys(KEYS, "8/1")), written_before_ms=1001)
    assert set(report.orphans) == {name_file(key, owner, 0) for key, owner in product(KEYS, OWNERS)}
    assert set(report.young) == set(files) - set(report.orphans)
