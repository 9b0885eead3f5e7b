"""Orphans: data files of attempts that were given up, and that no commit will ever name. Pure.

A file's name has the owner under which it was written. Only that owner can commit it, and only as long as it
owns the key [LAK-1]. So a file that no version names is an orphan as soon as its key has a newer owner; while
its own owner still has the key, its attempt may be alive [LAK-3].

The files are listed before the table is read. Then each file that was listed belongs to the owner that is
read, or to an earlier one, whose commits are all in the table; a newer owner's files are not in the list.
docs/adr/0064.
"""

from collections.abc import Iterable, Mapping

from tallystick.kernel.value import Value
from tallystick.lake.names import digest_key, digest_owner, parse_data_file_name
from tallystick.lake.ports import TableFiles


class OrphanReport(Value, kw_only=True):
    """The files of this writer's names that no version of the table names.

    orphans    they can be removed: their size by path
    live       their owner still has its key, so their attempt may be alive
    ownerless  the kept log does not say who owns their key
    """

    orphans: Mapping[str, int]
    live: tuple[str, ...]
    ownerless: tuple[str, ...]


def find_orphans(
    listing: Mapping[str, int], table: TableFiles, keys: Iterable[str] | None = None
) -> OrphanReport:
    """Sort the files of a table's storage.

    Args:
        listing: size by path, as it was before `table` was read.
        keys: only files of these keys; None for all.
    """
    digests = None if keys is None else {digest_key(key) for key in keys}
    owners = {digest_key(key): digest_owner(owner) for key, owner in table.owners.items()}
    orphans: dict[str, int] = {}
    live: list[str] = []
    ownerless: list[str] = []
    for path, size_bytes in sorted(listing.items()):
        name = parse_data_file_name(path.rpartition("/")[2])
        if (
            name is None
            or path in table.referenced
            or (digests is not None and name.key_digest not in digests)
        ):
            continue
        owner = owners.get(name.key_digest)
        if owner is None:
            ownerless.append(path)
        elif owner == name.owner_digest:
            live.append(path)
        else:
            orphans[path] = size_bytes
    return OrphanReport(orphans=orphans, live=tuple(live), ownerless=tuple(ownerless))
