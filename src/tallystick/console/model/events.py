"""Changes from one snapshot to the next, as events in a bounded log. Pure.

A reading that missed something is not compared: what a broker that is down would have listed has not ended.
So each part is compared with the last whole reading of it, whatever snapshots came in between.

Events have numbers that grow by one. A reader who was away asks for those since the last number that it has
seen; where the log no longer reaches back as far, or that number is of another process, it has to read
everything anew.
"""

from collections.abc import Iterable, Iterator, Mapping
from enum import Enum
from typing import Final, TypeVar

from tallystick.admin.model import OPEN_STATES, TransactionDescription
from tallystick.admin.txn.hanging import HangingVerdict
from tallystick.client.transactions.prepared import PreparedTxnState
from tallystick.console.model.snapshot import (
    NEVER_MS,
    ClusterFacts,
    GroupFacts,
    PartStatus,
    PipelineFacts,
    PrefixFacts,
    Snapshot,
    StoreFacts,
    TransactionFacts,
)
from tallystick.kernel.ids import ProducerIdAndEpoch
from tallystick.kernel.value import Value, replace

CAPACITY: Final = 1_000
SAME_KIND_MAX: Final = 20
USUAL_KIND_MAX: Final = 5
"""More events of one kind in one snapshot become a single one with their number. Of what happens in every
busy cluster fewer are told one by one, so that the log still reaches back to what does not."""


class EventKind(Enum):
    """The kind of an event; the value is the word that pages show."""

    BEGUN = "begun"
    DECIDED = "decided"
    ENDED = "ended"
    HANGING = "hanging"
    AWAY = "away"
    BACK = "back"
    DECISION = "batch decided"
    COMPLETED = "batch completed"
    REPLAYED = "batch decided again"
    GROUP = "group"
    BROKER = "broker"
    HEALTH = "health"
    NOTE = "note"


USUAL_KINDS: Final = frozenset({EventKind.BEGUN, EventKind.DECIDED, EventKind.ENDED})
TRANSACTION_KINDS: Final = frozenset({*USUAL_KINDS, EventKind.HEALTH})
"""Kinds whose subject is a transactional id, if it is not empty."""

Change = tuple[EventKind, str, str]
"""Kind, subject and text of an event."""


class Event(Value, kw_only=True):
    """One change.

    number   grows by one with each event
    at_ms    time of the snapshot that shows it
    subject  a transactional id, a prefix, a group, a store, or "" for several
    text     a sentence
    """

    number: int = 0
    at_ms: int
    kind: EventKind
    subject: str
    text: str


class EventLog(Value, kw_only=True):
    """The last events. Never changed: `advance` returns the next one.

    next_number  of the next event; the first one is best taken from a clock, so that no number of another
                 process is taken for one of this
    base         the last whole reading of each part
    """

    next_number: int = 1
    events: tuple[Event, ...] = ()
    base: Snapshot = Snapshot()
    capacity: int = CAPACITY

    @property
    def last_number(self) -> int:
        return self.next_number - 1

    def advance(self, snapshot: Snapshot, changes: Iterable[Change] = ()) -> "EventLog":
        """Return the log after the next snapshot.

        Args:
            changes: what else has changed with it.
        """
        events = [*find_events(self.base, snapshot), *_make_events(changes, snapshot.at_ms)]
        log = self._append(_summarize(events))
        return replace(log, base=_take_whole_parts(self.base, snapshot))

    def note(self, subject: str, text: str, at_ms: int) -> "EventLog":
        """Return the log with an event that no snapshot tells of."""
        return self._append([Event(at_ms=at_ms, kind=EventKind.NOTE, subject=subject, text=text)])

    def _append(self, events: Iterable[Event]) -> "EventLog":
        new = tuple(replace(event, number=number) for number, event in enumerate(events, self.next_number))
        return replace(
            self,
            next_number=self.next_number + len(new),
            events=(*self.events, *new)[-self.capacity :],
        )

    def list_since(self, number: int) -> tuple[Event, ...] | None:
        """Return the events after `number`; None if some of them are forgotten, or it is another log's."""
        first = self.events[0].number if self.events else self.next_number
        if not first - 1 <= number < self.next_number:
            return None
        return self.events[number - first + 1 :]


def find_events(before: Snapshot, after: Snapshot) -> Iterator[Event]:
    """Yield what differs, part by part; incomplete readings are only compared as far as they are away."""
    return _make_events(_compare(before, after), after.at_ms)


def _make_events(changes: Iterable[Change], at_ms: int) -> Iterator[Event]:
    for kind, subject, text in changes:
        yield Event(at_ms=at_ms, kind=kind, subject=subject, text=text)


P = TypeVar("P", ClusterFacts, TransactionFacts, GroupFacts, PipelineFacts, StoreFacts)


def _compare(before: Snapshot, after: Snapshot) -> Iterator[Change]:
    yield from _compare_presence("the cluster", _join_cluster(before), _join_cluster(after))
    if _are_whole(before.cluster.status, after.cluster.status):
        yield from _compare_brokers(before.cluster, after.cluster)
    if _are_whole(before.transactions.status, after.transactions.status):
        yield from _compare_transactions(before.transactions, after.transactions)
    stores = {store.name: store for store in before.stores}
    for store in after.stores:
        known = stores.get(store.name)
        yield from _compare_presence(store.name, known.status if known else PartStatus(), store.status)
        if known is not None and _are_whole(known.status, store.status):
            yield from _compare_rows(known, store)
    if _are_whole(before.pipelines.status, after.pipelines.status):
        yield from _compare_prefixes(before.pipelines, after.pipelines)
    if _are_whole(before.groups.status, after.groups.status):
        yield from _compare_groups(before.groups, after.groups)


def _are_whole(before: PartStatus, after: PartStatus) -> bool:
    """Return whether two readings can be compared: both whole, and not the same one."""
    return before.read_ms != NEVER_MS and after.is_complete and after.read_ms != before.read_ms


def _compare_presence(name: str, before: PartStatus, after: PartStatus) -> Iterator[Change]:
    if after.is_away and not before.is_away:
        yield EventKind.AWAY, name, f"{name} cannot be read: {'; '.join(after.failures)}"
    if before.is_away and not after.is_away:
        yield EventKind.BACK, name, f"{name} can be read again."


def _join_cluster(snapshot: Snapshot) -> PartStatus:
    """Return the status of the cluster's part that is away, if one is: some are read more often."""
    return max(
        (snapshot.cluster.status, snapshot.transactions.status), key=lambda status: status.away_since_ms
    )


def _compare_brokers(before: ClusterFacts, after: ClusterFacts) -> Iterator[Change]:
    if before.cluster_id is not None and after.cluster_id not in (None, before.cluster_id):
        text = f"Another cluster answers: {after.cluster_id}, and no longer {before.cluster_id}."
        yield EventKind.BROKER, "the cluster", text
    old, new = ({node.id: node.address for node in facts.brokers} for facts in (before, after))
    for node_id in old.keys() - new.keys():
        yield EventKind.BROKER, str(node_id), f"Broker {node_id} at {old[node_id]} has left the cluster."
    for node_id in new.keys() - old.keys():
        yield EventKind.BROKER, str(node_id), f"Broker {node_id} at {new[node_id]} has joined the cluster."


# -------------------------------------------------------------------------------- transactions


def _compare_transactions(before: TransactionFacts, after: TransactionFacts) -> Iterator[Change]:
    old, new = _select_open(before), _select_open(after)
    for name in sorted({*old, *new}):
        former, present = old.get(name), new.get(name)
        if former is not None and (present is None or not _is_same(former, present)):
            yield EventKind.ENDED, name, _describe_end(former, after.descriptions.get(name))
            former = None
        if present is None:
            continue
        if former is None:
            yield (
                EventKind.BEGUN,
                name,
                f"{name} has begun a transaction as {_format_identity(present.writer)}.",
            )
        if present.state != "Ongoing" and (former is None or former.state == "Ongoing"):
            word = "committed" if present.state == "PrepareCommit" else "aborted"
            yield EventKind.DECIDED, name, f"{name} is being {word}."
    known = {case.transaction.key for case in before.cases if case.verdict is HangingVerdict.HANGING}
    for case in after.cases:
        if case.verdict is HangingVerdict.HANGING and case.transaction.key not in known:
            at = case.transaction
            writer = _format_identity(at.writer)
            text = f"A transaction of {writer} hangs in {at.partition} at {at.start_offset}."
            yield EventKind.HANGING, str(at.partition), text


def _select_open(facts: TransactionFacts) -> Mapping[str, TransactionDescription]:
    return {name: each for name, each in facts.descriptions.items() if each.state in OPEN_STATES}


def _is_same(former: TransactionDescription, present: TransactionDescription) -> bool:
    """Return whether two descriptions are of one transaction.

    While a transaction is ended its description has the epoch of the markers (KIP-890), so its beginning
    tells; a transaction that is decided does not become undecided.
    """
    if former.state != "Ongoing" and present.state == "Ongoing":
        return False
    return former.started_ms == present.started_ms


def _format_identity(identity: ProducerIdAndEpoch) -> str:
    """Return a producer id and epoch as pages show them, and as a database stores them (KIP-939)."""
    return str(PreparedTxnState.of(identity))


def _describe_end(former: TransactionDescription, present: TransactionDescription | None) -> str:
    state = former.state
    if present is not None and present.state not in OPEN_STATES:
        state = present.state
    name = former.transactional_id
    if state in ("PrepareCommit", "CompleteCommit"):
        return f"{name} has committed a transaction."
    if state in ("PrepareAbort", "CompleteAbort"):
        return f"{name} has aborted a transaction."
    return f"The transaction of {name} has ended."


# ---------------------------------------------------------------------- databases and decisions


def _compare_rows(before: StoreFacts, after: StoreFacts) -> Iterator[Change]:
    for name, row in after.rows.items():
        known = before.rows.get(name)
        if row.state and (known is None or known.state != row.state):
            yield EventKind.DECIDED, name, f"{after.name} has committed {row.state} of {name}."


def _compare_prefixes(before: PipelineFacts, after: PipelineFacts) -> Iterator[Change]:
    known = {(each.prefix, each.source): each for each in before.prefixes}
    for each in after.prefixes:
        former = known.get((each.prefix, each.source))
        decision = each.decision
        if decision is None:
            continue
        is_new = former is None or former.decision is None or former.decision.nonce != decision.nonce
        if is_new:
            kind = EventKind.REPLAYED if _is_replay(former, each) else EventKind.DECISION
            yield kind, each.prefix, f"{each.prefix}: {decision}."
        if each.is_complete and (is_new or (former is not None and not former.is_complete)):
            yield EventKind.COMPLETED, each.prefix, f"{each.prefix}: every transaction has been committed."


def _is_replay(former: PrefixFacts | None, present: PrefixFacts) -> bool:
    """Return whether the last batch was decided before: its driver began again before it."""
    if former is None or former.decision is None or present.decision is None:
        return False
    old, new = former.decision, present.decision
    if old.query_id != new.query_id or old.batch_id is None or new.batch_id is None:
        return False
    return new.batch_id <= old.batch_id


def _compare_groups(before: GroupFacts, after: GroupFacts) -> Iterator[Change]:
    for name in sorted({*before.groups, *after.groups}):
        old, new = before.groups.get(name), after.groups.get(name)
        if old is None and new is not None:
            yield EventKind.GROUP, name, f"Group {name} is new, and {new.state}."
        elif old is not None and new is None:
            yield EventKind.GROUP, name, f"Group {name} is gone."
        elif old is not None and new is not None and old.state != new.state:
            yield EventKind.GROUP, name, f"Group {name} was {old.state} and is {new.state}."


# ------------------------------------------------------------------------------------ the log


def _summarize(events: Iterable[Event]) -> Iterator[Event]:
    """Replace many events of one kind by one: a thousand in a second are not read one by one."""
    by_kind: dict[EventKind, list[Event]] = {}
    for event in events:
        by_kind.setdefault(event.kind, []).append(event)
    for kind, some in by_kind.items():
        if len(some) <= (USUAL_KIND_MAX if kind in USUAL_KINDS else SAME_KIND_MAX):
            yield from some
        else:
            yield replace(some[0], subject="", text=f"{len(some)} times: {kind.value}.")


def _take_whole_parts(base: Snapshot, snapshot: Snapshot) -> Snapshot:
    """Return the last whole reading of each part, each with the news whether it is away."""
    stores = {store.name: store for store in base.stores}
    return replace(
        snapshot,
        cluster=_take_whole(base.cluster, snapshot.cluster),
        transactions=_take_whole(base.transactions, snapshot.transactions),
        groups=_take_whole(base.groups, snapshot.groups),
        pipelines=_take_whole(base.pipelines, snapshot.pipelines),
        stores=tuple(
            _take_whole(stores.get(store.name) or StoreFacts(name=store.name, kind=store.kind), store)
            for store in snapshot.stores
        ),
    )


def _take_whole(base: P, present: P) -> P:
    """Return the last whole reading; what joined the same one meanwhile is compared with the next."""
    if present.status.is_complete:
        return present if present.status.read_ms != base.status.read_ms else base
    away_since_ms = present.status.away_since_ms
    return replace(base, status=PartStatus(read_ms=base.status.read_ms, away_since_ms=away_since_ms))
