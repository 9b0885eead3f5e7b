"""Orphans: data files of attempts that were given up, and that no commit will ever name. Pure.

A file's name has the table and the owner for which it was written. Only that owner can commit it, and only as
long as it owns the key [LAK-1]. So a file that no version names is an orphan as soon as its key has a newer
owner; while its own owner still has the key, its attempt may be alive [LAK-3].

A folder may have files of several tables: a table that was renamed leaves its folder to the next one of its
name, and `write.data.path` may be shared. A file of another table's name is never touched. Names of version 1
do not tell the table; such a file is an orphan only if the kept log tells of its owner, and of the owners of
all such files of its key.

The files are listed before the table is read. Then each file that was listed belongs to the owner that is
read, or to an earlier one, whose commits are all in the table; a newer owner's files are not in the list.
docs/design/lake-tables.md.
"""

from collections.abc import Collection, Iterable, Mapping
from enum import Enum, auto
from typing import Final

from tallystick.kernel.value import Value
from tallystick.lake.names import DataFileName, digest_key, digest_owner, digest_table, parse_data_file_name
from tallystick.lake.ports import ListedFile, TableFiles

ORPHAN_AGE_MS: Final = 72 * 60 * 60 * 1000
"""Age below which a person's command keeps an orphan. Source: Iceberg's `remove_orphan_files`, 3 days."""


class _State(Enum):
    ORPHAN = auto()
    YOUNG = auto()
    LIVE = auto()
    OWNERLESS = auto()
    FOREIGN = auto()
    UNPLACED = auto()


class OrphanReport(Value, kw_only=True):
    """The files of this writer's names that no version of the table names.

    orphans    they can be removed: their size by path
    young      so can these, and they were written too lately
    live       their owner still has its key, so their attempt may be alive
    ownerless  the kept log does not say who owns their key
    foreign    their names are of another table
    unplaced   perhaps of another table: their names do not tell the table, and the kept log not their owners
    """

    orphans: Mapping[str, int]
    young: tuple[str, ...]
    live: tuple[str, ...]
    ownerless: tuple[str, ...]
    foreign: tuple[str, ...]
    unplaced: tuple[str, ...]


def find_orphans(
    listing: Mapping[str, ListedFile],
    table: TableFiles,
    keys: Iterable[str] | None = None,
    *,
    written_before_ms: int | None = None,
) -> OrphanReport:
    """Sort the files of a table's storage.

    Args:
        listing: the files by path, as they were before `table` was read.
        keys: only files of these keys; None for all.
        written_before_ms: a file that was written later is young; None if none is.
    """
    digests = None if keys is None else {digest_key(key) for key in keys}
    names = _parse_unreferenced(listing, table.referenced)
    strange_keys = _find_strange_keys(names.values(), table)
    paths: dict[_State, list[str]] = {state: [] for state in _State}
    for path, name in sorted(names.items()):
        if digests is None or name.key_digest in digests:
            state = _assess(name, table, strange_keys)
            if state is _State.ORPHAN and not _is_older(listing[path], written_before_ms):
                state = _State.YOUNG
            paths[state].append(path)
    return OrphanReport(
        orphans={path: listing[path].size_bytes for path in paths[_State.ORPHAN]},
        young=tuple(paths[_State.YOUNG]),
        live=tuple(paths[_State.LIVE]),
        ownerless=tuple(paths[_State.OWNERLESS]),
        foreign=tuple(paths[_State.FOREIGN]),
        unplaced=tuple(paths[_State.UNPLACED]),
    )


def _assess(name: DataFileName, table: TableFiles, strange_keys: Collection[str]) -> _State:
    if name.table_digest not in (None, digest_table(table.identity)):
        return _State.FOREIGN
    owners = {digest_key(key): digest_owner(owner) for key, owner in table.owners.items()}
    owner = owners.get(name.key_digest)
    if owner is None:
        return _State.OWNERLESS
    if owner == name.owner_digest:
        return _State.LIVE
    is_unplaced = name.table_digest is None and name.key_digest in strange_keys
    return _State.UNPLACED if is_unplaced else _State.ORPHAN


def _parse_unreferenced(listing: Iterable[str], referenced: Collection[str]) -> Mapping[str, DataFileName]:
    names = {path: parse_data_file_name(path.rpartition("/")[2]) for path in listing}
    return {path: name for path, name in names.items() if name is not None and path not in referenced}


def _find_strange_keys(names: Iterable[DataFileName], table: TableFiles) -> Collection[str]:
    """Return the digests of keys with a file that does not tell its table, of an owner that is not known."""
    known = {
        (digest_key(key), digest_owner(owner))
        for key, owners in table.past_owners.items()
        for owner in owners
    }
    known |= {(digest_key(key), digest_owner(owner)) for key, owner in table.owners.items()}
    for path in table.referenced:
        if (own := parse_data_file_name(path.rpartition("/")[2])) is not None:
            known.add((own.key_digest, own.owner_digest))
    return {
        each.key_digest
        for each in names
        if each.table_digest is None and (each.key_digest, each.owner_digest) not in known
    }


def _is_older(file: ListedFile, written_before_ms: int | None) -> bool:
    return written_before_ms is None or (
        file.modified_ms is not None and file.modified_ms < written_before_ms
    )
