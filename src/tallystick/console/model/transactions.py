"""Both sides of each transaction, with its assessment. Pure.

A transactional id has up to four views: its coordinator's description, the partitions where data of it is
open, a row in a store, and a part in a decision of Spark. `join_views` matches them for every
transaction that is open or whose sides differ, and `assess` says what to do.

A live writer moves on while the views are read one after the other, so two of them may contradict each other
although nothing is wrong. So BROKEN needs two looks [CON-1]: each of the views must have been read once more
since the contradiction was first seen, and show the same. Until then such a transaction is UNSETTLED. Two
snapshots are not enough for that: the second one may still hold the same reading of one of the views.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final

from tallystick.admin.model import OPEN_STATES, TransactionDescription
from tallystick.admin.txn.hanging import HangingCase, HangingFinding
from tallystick.client.transactions.modes import Mode
from tallystick.client.transactions.prepared import PreparedTxnState
from tallystick.console.model.assessment import (
    SparkRole,
    SparkSide,
    Stage,
    StoreSide,
    TransactionViews,
    assess,
    find_stage,
    needs_assessment,
)
from tallystick.console.model.health import SEVERITY, Assessment, Health, Limits
from tallystick.console.model.snapshot import NEVER_MS, PrefixFacts, Snapshot, StoreFacts
from tallystick.dualwrite.rules.model import StoredState
from tallystick.dualwrite.rules.recovery import VERDICTS, ClusterSide, compare_sides, to_txn_state
from tallystick.kernel.ids import ProducerIdAndEpoch, TopicPartition
from tallystick.kernel.value import Value, replace
from tallystick.spark.protocol.transactional_ids import format_coordinator_id, parse_worker_id

# The partition has another transaction than the one that the coordinator describes, if it describes any.
_NOT_THE_DESCRIBED: frozenset[HangingFinding] = frozenset(
    {
        HangingFinding.UNKNOWN_PRODUCER_ID,
        HangingFinding.MAYBE_UNLISTED,
        HangingFinding.EXPIRED_ID,
        HangingFinding.NOT_DESCRIBED,
        HangingFinding.NOT_INCLUDED,
        HangingFinding.STALE_EPOCH,
        HangingFinding.COORDINATOR_BEHIND,
    }
)

STRANGER_PREFIX: Final = "producer:"
"""Begins the key of a transaction of no known transactional id."""


class AssessedTransaction(Value, kw_only=True):
    """One transaction: its views and their assessment.

    stage_since_ms   when it was first seen in its stage; at the first look when it began
    suspected_at     when its views were read that were first seen to contradict each other; empty if they do
                     not
    held_back_count  records that `read_committed` readers of its partitions cannot see; a partition counts
                     for the transaction that is first there
    """

    views: TransactionViews
    stage: Stage
    stage_since_ms: int
    assessment: Assessment
    held_back_count: int
    suspected_at: tuple[int, ...] = ()

    @property
    def transactional_id(self) -> str | None:
        """The id; None if no coordinator knows the producer."""
        return self.views.transactional_id

    @property
    def key(self) -> str:
        """Its name on pages: its transactional id, or its producer where no coordinator has it so."""
        if self.transactional_id is not None and not self.views.is_stranger:
            return self.transactional_id
        return f"{STRANGER_PREFIX}{PreparedTxnState.of(self.views.writer)}"

    @property
    def health(self) -> Health:
        return self.assessment.health

    @property
    def is_open(self) -> bool:
        """Whether one of the cluster's views shows it open; its sides may differ after that, too."""
        description = self.views.description
        return bool(self.views.cases) or (description is not None and description.state in OPEN_STATES)

    @property
    def evidence(self) -> tuple[object, ...]:
        """Facts that a second reading must find unchanged [CON-1]."""
        views = self.views
        row = None if views.store is None else (views.store.store.name, views.store.row.state)
        decision = None if views.spark is None else (views.spark.prefix, views.spark.participant)
        state = None if views.description is None else (views.description.state, views.description.writer)
        return views.transactional_id, views.writer, state, row, decision


def join_views(
    snapshot: Snapshot, limits: Limits, earlier: Sequence[AssessedTransaction] | None = None
) -> tuple[AssessedTransaction, ...]:
    """Join the views of every transaction that is open, or whose sides differ.

    Args:
        earlier: what the former snapshot was joined to; None for the first look, which finds nothing BROKEN
            [CON-1] and takes every stage to have begun with the transaction.

    Returns:
        The worst first, then the oldest.
    """
    seen_ms = _find_seen_ms(snapshot)
    suspects = {each.evidence: each.suspected_at for each in earlier or () if each.suspected_at}
    stages = {_stage_key(each.views): each.stage_since_ms for each in earlier or ()}
    held_back = _count_held_back(snapshot)
    transactions = []
    for views in _list_views(snapshot):
        begun_ms = seen_ms - (views.compute_age_ms(seen_ms) or 0)
        since_ms = stages.get(
            _stage_key(views),
            begun_ms if earlier is None or find_stage(views) is Stage.OPEN else seen_ms,
        )
        keys = ((case.transaction.partition, case.transaction.writer) for case in views.cases)
        each = AssessedTransaction(
            views=views,
            stage=find_stage(views),
            stage_since_ms=since_ms,
            assessment=assess(views, seen_ms - since_ms, snapshot.bootstrap_servers, limits),
            held_back_count=sum(held_back.get(key, 0) for key in keys),
        )
        each = _withhold(each, snapshot)
        transactions.append(_confirm(each, _list_readings(views, snapshot), suspects))
    transactions.sort(key=lambda each: (SEVERITY[each.health], each.views.started_ms or 0))
    return tuple(transactions)


def _find_seen_ms(snapshot: Snapshot) -> int:
    """Return the time for which transactions are assessed: nothing is known of them in an outage."""
    status = snapshot.transactions.status
    return status.read_ms if status.is_away else snapshot.at_ms


def _withhold(each: AssessedTransaction, snapshot: Snapshot) -> AssessedTransaction:
    """Weaken ORPHAN to UNKNOWN while a store or the decisions that may name it have never been read."""
    if each.health is not Health.ORPHAN:
        return each
    unread = [store.name for store in snapshot.stores if store.status.read_ms == NEVER_MS]
    if snapshot.pipelines.status.read_ms == NEVER_MS:
        unread.append("the topics of decisions")
    if not unread:
        return each
    names = ", ".join(unread)
    reason = (
        f"It may be prepared, and never times out. Its decision may be in what was not read yet: {names}."
    )
    return replace(each, assessment=Assessment(Health.UNKNOWN, reason))


def _confirm(
    each: AssessedTransaction,
    readings: tuple[int, ...],
    suspects: Mapping[tuple[object, ...], tuple[int, ...]],
) -> AssessedTransaction:
    """Weaken BROKEN to UNSETTLED unless every view was read again since it was first suspected [CON-1]."""
    if each.health is not Health.BROKEN:
        return each
    suspected_at = suspects.get(each.evidence, readings)
    if all(now_ms > then_ms for now_ms, then_ms in zip(readings, suspected_at, strict=True)):
        return replace(each, suspected_at=suspected_at)
    reason = f"{each.assessment.reason} The next look decides."
    return replace(each, suspected_at=suspected_at, assessment=Assessment(Health.UNSETTLED, reason))


def _list_readings(views: TransactionViews, snapshot: Snapshot) -> tuple[int, ...]:
    """Return when the views of a transaction were read."""
    readings = [snapshot.transactions.status.read_ms]
    if views.store is not None:
        readings.append(views.store.store.status.read_ms)
    if views.spark is not None:
        readings.append(snapshot.pipelines.status.read_ms)
    return tuple(readings)


def _stage_key(views: TransactionViews) -> tuple[object, ...]:
    """Return what stays the same while a transaction is in one stage; its writer changes with its outcome."""
    name = views.transactional_id or views.writer
    return name, views.started_ms, find_stage(views)


def _count_held_back(snapshot: Snapshot) -> dict[tuple[TopicPartition, ProducerIdAndEpoch], int]:
    """Return how many records the first open transaction of each partition holds back."""
    first: dict[TopicPartition, HangingCase] = {}
    for case in snapshot.transactions.cases:
        at = case.transaction.partition
        if at not in first or case.transaction.start_offset < first[at].transaction.start_offset:
            first[at] = case
    offsets = snapshot.topics.offsets
    return {
        (at, case.transaction.writer): offsets[at].held_back_count
        for at, case in first.items()
        if at in offsets
    }


def find_views(snapshot: Snapshot, transactional_id: str) -> TransactionViews:
    """Return the views of one id as they are, whether anything of it is open or not."""
    return _ViewIndex(snapshot).find(transactional_id)


def _list_views(snapshot: Snapshot) -> Iterator[TransactionViews]:
    """List the views of all transactions that are open, or that a store or a decision expects to be."""
    index = _ViewIndex(snapshot)
    for name in index.list_ids():
        views = index.find(name)
        is_open = views.description is not None and views.description.state in OPEN_STATES
        if is_open or needs_assessment(views):
            yield views
    for (name_or_none, writer), cases in index.strangers.items():
        yield TransactionViews(
            transactional_id=name_or_none,
            writer=writer,
            description=None
            if name_or_none is None
            else snapshot.transactions.descriptions.get(name_or_none),
            cases=tuple(cases),
            is_stranger=True,
        )


class _ViewIndex:
    """Looks up the views of transactional ids in a snapshot."""

    def __init__(self, snapshot: Snapshot) -> None:
        self._snapshot = snapshot
        self._cases, self.strangers = _sort_cases(snapshot)
        self._rows = _index_rows(snapshot)
        self._sparks = _SparkIndex(snapshot)

    def list_ids(self) -> list[str]:
        """Return the ids that are described, or that a row or a decision names."""
        return sorted({*self._snapshot.transactions.descriptions, *self._rows, *self._sparks.decided_ids})

    def find(self, name: str) -> TransactionViews:
        transactions = self._snapshot.transactions
        description = transactions.descriptions.get(name)
        return TransactionViews(
            transactional_id=name,
            writer=None if description is None else description.writer,
            description=description,
            is_known=name not in transactions.unknown_ids,
            cases=tuple(self._cases.get(name, ())),
            store=_find_store_side(name, description, self._rows.get(name, ()), self._snapshot),
            spark=self._sparks.find(name, description),
        )


def _sort_cases(
    snapshot: Snapshot,
) -> tuple[
    Mapping[str, list[HangingCase]], Mapping[tuple[str | None, ProducerIdAndEpoch], list[HangingCase]]
]:
    """Sort the partitions' transactions into those that the coordinator describes and all others."""
    described: dict[str, list[HangingCase]] = defaultdict(list)
    strangers: dict[tuple[str | None, ProducerIdAndEpoch], list[HangingCase]] = defaultdict(list)
    for case in snapshot.transactions.cases:
        name = None if case.description is None else case.description.transactional_id
        if name is None or case.finding in _NOT_THE_DESCRIBED:
            strangers[name, case.transaction.writer].append(case)
        else:
            described[name].append(case)
    return described, strangers


def _index_rows(snapshot: Snapshot) -> Mapping[str, list[tuple[StoreFacts, StoredState]]]:
    rows: dict[str, list[tuple[StoreFacts, StoredState]]] = defaultdict(list)
    for store in snapshot.stores:
        for name, row in store.rows.items():
            rows[name].append((store, row))
    return rows


def _find_store_side(
    name: str,
    description: TransactionDescription | None,
    rows: Iterable[tuple[StoreFacts, StoredState]],
    snapshot: Snapshot,
) -> StoreSide | None:
    """Compare the row of an id with the cluster; of several stores' rows the one that names what is open."""
    side = ClusterSide(
        txn_state=None if description is None else to_txn_state(description),
        is_visible=description is not None or name in snapshot.transactions.unknown_ids,
        cluster_id=snapshot.cluster.cluster_id,
    )
    # A settled row whose id was not described expects nothing: only what it is expected to be can be missed.
    known = [each for each in rows if side.is_visible or each[1].pending]
    candidates = sorted(known, key=lambda each: each[1].state.identity != side.open_transaction)
    if not candidates:
        return None
    store, row = candidates[0]
    finding = compare_sides(row, side)
    # Only what cannot be seen depends on the mode, and then the strictest one counts.
    mode = Mode.TWO_PHASE if row.timeout_ms is None else Mode.RESUME
    lease = next((each for each in store.leases if each.transactional_id == name), None)
    return StoreSide(
        store=store,
        row=row,
        finding=finding,
        verdict=VERDICTS[finding, mode],
        lease_state=None if lease is None else lease.classify(store.lease_now_ms),
        other_stores=tuple(each.name for each, _ in candidates[1:]),
    )


class _SparkIndex:
    """Looks up the place of transactional ids in the decisions of Spark's queries."""

    def __init__(self, snapshot: Snapshot) -> None:
        self._prefixes: dict[str, PrefixFacts] = {each.prefix: each for each in snapshot.pipelines.prefixes}
        self._coordinators = {format_coordinator_id(prefix): prefix for prefix in self._prefixes}
        self.decided_ids = frozenset(
            participant.transactional_id
            for each in self._prefixes.values()
            if each.decision is not None and not each.is_complete
            for participant in each.decision.participants
        )

    def find(self, name: str, description: TransactionDescription | None) -> SparkSide | None:
        """Return the place of an id; None if it is not one of Spark's sink."""
        if name in self._coordinators:
            prefix = self._coordinators[name]
            return SparkSide(prefix=prefix, role=SparkRole.DRIVER, facts=self._prefixes[prefix])
        worker = parse_worker_id(name)
        if worker is None:
            return None
        facts = self._prefixes.get(worker.prefix)
        decision = None if facts is None else facts.decision
        for participant in () if decision is None else decision.participants:
            is_same = description is None or description.writer == participant.identity
            is_ended = description is not None and description.state != "Ongoing"
            if participant.transactional_id == name and (is_same or is_ended):
                return SparkSide(
                    prefix=worker.prefix, role=SparkRole.DECIDED, facts=facts, participant=participant
                )
        is_unread = facts is None or facts.is_noted_only
        role = SparkRole.UNREAD if is_unread else SparkRole.UNDECIDED
        return SparkSide(prefix=worker.prefix, role=role, facts=facts)


def find_oldest_ms(transactions: Iterable[AssessedTransaction], now_ms: int) -> int | None:
    """Return the age of the oldest of these transactions; None if no age is known."""
    ages = (each.views.compute_age_ms(now_ms) for each in transactions)
    return max((age for age in ages if age is not None), default=None)
