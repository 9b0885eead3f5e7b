"""The history of a transactional id, as the page of its transaction shows it. Pure."""

from collections.abc import Iterable, Mapping
from typing import Final

from tallystick.console.lookup.history import HistorySource, IdHistory
from tallystick.console.views.texts import format_identity
from tallystick.kernel.ids import ProducerIdAndEpoch
from tallystick.kernel.value import Value
from tallystick.protocol.transaction_history import TransactionTransition, TransitionKind

_TEXTS: Final[Mapping[TransitionKind, str]] = {
    TransitionKind.INITIALIZED: "A producer claimed the id.",
    TransitionKind.KEPT: "A producer claimed the id and kept the open transaction (KIP-939).",
    TransitionKind.BEGUN: "A transaction began.",
    TransitionKind.PARTITIONS_ADDED: "Partitions joined the transaction.",
    TransitionKind.COMMITTED: "The commit was decided.",
    TransitionKind.ABORTED: "The abort was decided.",
    TransitionKind.TIMED_OUT: "Aborted after its timeout.",
    TransitionKind.TERMINATED: "Aborted because a producer claimed the id, or an administrator ended it.",
    TransitionKind.MARKER_FORCED: "An administrator's marker ended it in one partition.",
    TransitionKind.COMPLETED: "Every partition has its marker.",
    TransitionKind.EXPIRED: "The id was unused for too long and has been removed.",
}
_CLAIMS: Final = (TransitionKind.INITIALIZED, TransitionKind.KEPT)


class HistoryRow(Value, kw_only=True):
    """One transition.

    key     stays the same while the row is shown
    fenced  the producer that may not write any more since then, as far as the history tells
    """

    key: str
    at_ms: int
    kind: str
    text: str
    state: str
    producer: str
    fenced: str
    partition_count: int
    client_id: str
    address: str


class HistoryView(Value, kw_only=True):
    """A history, oldest first: what is new is at its end, and moves nothing.

    source             where it is from, as a sentence
    is_described       its coordinator knows the id
    followed_since_ms  None: the broker keeps it
    """

    source: str
    is_described: bool
    followed_since_ms: int | None
    is_catching_up: bool
    failure: str
    rows: tuple[HistoryRow, ...]


def view_history(history: IdHistory) -> HistoryView:
    """Build what a page shows of a history."""
    return HistoryView(
        source="" if history.source is HistorySource.NONE else history.source.value,
        is_described=history.is_described,
        followed_since_ms=history.followed_since_ms,
        is_catching_up=history.is_catching_up,
        failure=history.failure,
        rows=tuple(_list_rows(history.transitions)),
    )


def _list_rows(transitions: Iterable[TransactionTransition]) -> Iterable[HistoryRow]:
    last_producer: ProducerIdAndEpoch | None = None
    numbers: dict[str, int] = {}
    for each in transitions:
        kind = (
            each.kind.name.lower().replace("_", " ")
            if isinstance(each.kind, TransitionKind)
            else str(each.kind)
        )
        is_claim = each.kind in _CLAIMS
        fenced = last_producer if is_claim and last_producer != each.producer else None
        key = f"{each.at_ms}-{kind.replace(' ', '-')}"
        numbers[key] = numbers.get(key, 0) + 1
        yield HistoryRow(
            key=f"{key}-{numbers[key]}",
            at_ms=each.at_ms,
            kind=kind,
            text=_TEXTS[each.kind] if isinstance(each.kind, TransitionKind) else "",
            state=each.state,
            producer="" if each.producer is None else format_identity(each.producer),
            fenced="" if fenced is None else format_identity(fenced),
            partition_count=each.partition_count,
            client_id=each.client_id or "",
            address=each.address or "",
        )
        last_producer = each.producer
