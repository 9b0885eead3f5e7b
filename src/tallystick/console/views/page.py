"""The head of every page: its title, the age of its data, and failures to read. Pure."""

from collections.abc import Iterable

from tallystick.console.model.commands import doctor_command
from tallystick.console.model.snapshot import NEVER_MS, PartStatus, Snapshot
from tallystick.console.views.texts import format_duration
from tallystick.kernel.value import Value


class Outage(Value, kw_only=True):
    """A source that cannot be read at present, and the age of the data shown of it.

    text        what does not answer, for how long, and how old what is shown is
    reason      which part, and why
    age_ms      of what is shown; None if it was never read
    is_cluster  nothing of the cluster can be read
    command     that looks for the cause; "" if there is none
    """

    text: str
    reason: str
    since_ms: int
    for_ms: int
    age_ms: int | None
    is_cluster: bool = False
    command: str = ""


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


def find_cluster_outage(snapshot: Snapshot) -> PartStatus | None:
    """Return the status that says why nothing of the cluster can be read; None if something can.

    Nothing can if none of it was read since one of the parts that are read most often began to fail.
    """
    last_read_ms = max(part.read_ms for part in snapshot.list_cluster_statuses())
    for part in (snapshot.cluster.status, snapshot.transactions.status):
        if part.is_away and part.away_since_ms >= last_read_ms:
            return part
    return None


def list_outages(snapshot: Snapshot, parts: Iterable[PartStatus], now_ms: int) -> tuple[Outage, ...]:
    """Return what of these parts cannot be read at all, each cause once with its oldest data.

    Where the cluster itself is away, that is why none of its other parts can be read, in whichever words.
    """
    parts = tuple(parts)
    of_cluster = find_cluster_outage(snapshot)
    stores = {store.status: store.name for store in snapshot.stores}
    by_cause: dict[PartStatus | str, list[PartStatus]] = {}
    for part in parts:
        if part.is_away:
            common = None if part in stores else of_cluster
            by_cause.setdefault(common or "; ".join(part.failures), []).append(part)
    outages = []
    for cause, some in by_cause.items():
        age_ms = None
        if all(part.read_ms != NEVER_MS for part in some):
            age_ms = max(0, now_ms - min(part.read_ms for part in some))
        since_ms = min(part.away_since_ms for part in some)
        for_ms = max(0, now_ms - since_ms)
        is_all = len(by_cause) == 1 and all(part.is_away for part in parts)
        beginning = f"{stores.get(some[0], f'A part of {snapshot.bootstrap_servers}')} has not been read"
        if not isinstance(cause, str):
            beginning = f"No answer from {snapshot.bootstrap_servers}"
            if cause.was_answered:
                beginning = f"{snapshot.bootstrap_servers} has not been read"
        outages.append(
            Outage(
                text=f"{beginning} for {format_duration(for_ms)}. {_describe_age(age_ms, is_all=is_all)}",
                reason=cause if isinstance(cause, str) else "; ".join(cause.failures),
                since_ms=since_ms,
                for_ms=for_ms,
                age_ms=age_ms,
                is_cluster=not isinstance(cause, str),
                command="" if some[0] in stores else doctor_command(snapshot.bootstrap_servers),
            )
        )
    return tuple(outages)


def _describe_age(age_ms: int | None, *, is_all: bool) -> str:
    if age_ms is None:
        return "Nothing is known yet." if is_all else "Not all of it is known yet."
    return f"{'Everything below is' if is_all else 'Its data below are'} {format_duration(age_ms)} old."


def list_failures(outages: Iterable[Outage], parts: Iterable[PartStatus]) -> tuple[str, ...]:
    """Return everything of these parts that could not be read: outages first, each cause once."""
    of_parts = (failure for part in parts if not part.is_away for failure in part.failures)
    return tuple(dict.fromkeys((*(outage.reason for outage in outages), *of_parts)))
