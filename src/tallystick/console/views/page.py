"""The head of every page: its title, the age of its data, and failures to read. Pure."""

from collections.abc import Iterable

from tallystick.console.model.snapshot import NEVER_MS, PartStatus, Snapshot
from tallystick.kernel.value import Value


class Outage(Value, kw_only=True):
    """A source that cannot be read at present, and the age of the data shown of it.

    reason  which part, and why
    age_ms  of what is shown; None if it was never read
    """

    reason: str
    since_ms: int
    for_ms: int
    age_ms: int | None


class PageInfo(Value, kw_only=True):
    """The head of a page.

    age_ms    of the oldest part that the page shows; None if one was never read
    outages   what cannot be read at all; parts for the same reason once
    failures  everything that could not be read, a sentence for each cause
    """

    title: str
    bootstrap_servers: str
    snapshot_number: int
    snapshot_ms: int
    age_ms: int | None
    outages: tuple[Outage, ...]
    failures: tuple[str, ...]


def describe_page(title: str, snapshot: Snapshot, parts: Iterable[PartStatus], now_ms: int) -> PageInfo:
    """Return the head of a page that shows these parts."""
    parts = tuple(parts)
    outages = list_outages(snapshot, parts, now_ms)
    read_ms = min((part.read_ms for part in parts), default=snapshot.at_ms)
    return PageInfo(
        title=title,
        bootstrap_servers=snapshot.bootstrap_servers,
        snapshot_number=snapshot.number,
        snapshot_ms=snapshot.at_ms,
        age_ms=None if read_ms == NEVER_MS else max(0, now_ms - read_ms),
        outages=outages,
        failures=list_failures(outages, parts),
    )


def is_incomplete(info: PageInfo) -> bool:
    """Return whether a page may lack what there is, because not all of it could be read."""
    return info.age_ms is None or bool(info.failures)


def list_outages(snapshot: Snapshot, parts: Iterable[PartStatus], now_ms: int) -> tuple[Outage, ...]:
    """Return what of these parts cannot be read at all, each reason once with its oldest data.

    Where the cluster itself is away, that is why none of its other parts can be read, in whichever words.
    """
    cluster = snapshot.cluster.status
    of_stores = [store.status for store in snapshot.stores]
    outages: dict[str, Outage] = {}
    for part in parts:
        if not part.is_away:
            continue
        cause = cluster if cluster.is_away and part not in of_stores else part
        reason = "; ".join(cause.failures)
        known = outages.get(reason)
        age_ms = None if part.read_ms == NEVER_MS else max(0, now_ms - part.read_ms)
        since_ms = part.away_since_ms
        if known is not None:
            since_ms = min(since_ms, known.since_ms)
            age_ms = None if age_ms is None or known.age_ms is None else max(age_ms, known.age_ms)
        outages[reason] = Outage(
            reason=reason, since_ms=since_ms, for_ms=max(0, now_ms - since_ms), age_ms=age_ms
        )
    return tuple(outages.values())


def list_failures(outages: Iterable[Outage], parts: Iterable[PartStatus]) -> tuple[str, ...]:
    """Return everything of these parts that could not be read: outages first, each cause once."""
    of_parts = (failure for part in parts if not part.is_away for failure in part.failures)
    return tuple(dict.fromkeys((*(outage.reason for outage in outages), *of_parts)))
