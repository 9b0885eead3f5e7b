"""Find and remove the orphans of a table: the only order of the steps in which that is safe [LAK-3]."""

from collections.abc import Iterable

from tallystick.lake.orphans import OrphanReport, find_orphans
from tallystick.lake.ports import LakeTable


def look_for_orphans(
    table: LakeTable, keys: Iterable[str] | None = None, *, written_before_ms: int | None = None
) -> OrphanReport:
    """Return the orphans of a table. Changes nothing.

    Order: the files are listed first, so that each belongs to an owner whose claim the table already has.
    """
    listing = table.list_data_files()
    return find_orphans(listing, table.read_files(), keys, written_before_ms=written_before_ms)


def remove_orphans(table: LakeTable, report: OrphanReport) -> None:
    """Remove what a report says are orphans: that no longer changes."""
    for path in report.orphans:
        table.remove(path)
