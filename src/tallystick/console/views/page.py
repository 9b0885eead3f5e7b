"""What every page has: its title, how old its data are, and what could not be read. Pure."""

from collections.abc import Iterable

from tallystick.console.snapshot import NEVER_MS, PartStatus, Snapshot
from tallystick.kernel.value import Value


class PageInfo(Value, kw_only=True):
    """The head of a page.

    age_ms    of the oldest part that the page shows; None if one was never read
    failures  what could not be read, a sentence each
    """

    title: str
    bootstrap_servers: str
    snapshot_number: int
    snapshot_ms: int
    age_ms: int | None
    failures: tuple[str, ...]


def describe_page(title: str, snapshot: Snapshot, parts: Iterable[PartStatus], now_ms: int) -> PageInfo:
    """Return the head of a page that shows these parts."""
    parts = tuple(parts)
    read_ms = min((part.read_ms for part in parts), default=snapshot.at_ms)
    return PageInfo(
        title=title,
        bootstrap_servers=snapshot.bootstrap_servers,
        snapshot_number=snapshot.number,
        snapshot_ms=snapshot.at_ms,
        age_ms=None if read_ms == NEVER_MS else max(0, now_ms - read_ms),
        failures=tuple(failure for part in parts for failure in part.failures),
    )
