"""Comparison of the partitions with the coordinator at a start, before any transactional id is served.

After an unclean shutdown the findings of `txn.machine.consistency` are acted on. After a clean one no record
can have been lost, so nothing is repaired: a transaction that is open in a partition and not at the
coordinator is reported.

The state of the partitions is noted before any request can write to them; the transaction log is noted while
it is replayed; then `repair` acts, while every id still answers LOADING. Ids in a partition of the
transaction log that cannot be read then are compared when it is read back, before they are served. Until the
last one is read, an open transaction of no known id may be theirs, and is not reported as hanging.
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Iterable, Iterator
from types import MappingProxyType
from typing import Final

from tallystick.broker.partitions.partition import Partition
from tallystick.broker.partitions.topics import TopicsImage
from tallystick.broker.txn.codec import (
    decode_record,
    iter_known_records,
    peek_completion,
    peek_state_and_producer_id,
)
from tallystick.broker.txn.machine.commands import AddPartitionsByLeader, EndTxn, MarkerRequest, TxnAnswer
from tallystick.broker.txn.machine.consistency import (
    REPAIR_ACTIONS,
    DecisionReplay,
    LostCommittedRecords,
    OpenTransactionState,
    PartitionStartState,
    PartitionStartStates,
    ProducerStartState,
    RecordedDecision,
    StaleTransactionalId,
    TxnConsistency,
    TxnRepairAction,
    check_consistency,
    find_open_producers,
)
from tallystick.broker.txn.machine.model import DecidedPhase, TransactionResult, TxnState
from tallystick.broker.txn.machine.producer_epochs import derive_marker_identity
from tallystick.broker.txn.marker_sender import MarkerWriter
from tallystick.broker.txn.ports import LoadingCoordinator
from tallystick.kernel.errors import Reject
from tallystick.kernel.ids import (
    EPOCH_BUMP_VERSION,
    Offset,
    ProducerEpoch,
    ProducerId,
    ProducerIdAndEpoch,
    TimestampMs,
    TopicPartition,
)
from tallystick.protocol import DecodeError
from tallystick.protocol.records import ControlType, iter_headers, read_marker

_log = logging.getLogger("tallystick.transactions")

SCAN_BYTES: Final = 1024 * 1024
# Limit for one marker in one partition; the marker of a lost decision is near the end.
SCAN_BYTES_MAX: Final = 1024 * SCAN_BYTES
# About a millisecond of work; in between, the loop serves other requests.
RECORDS_PER_SLICE: Final = 256
# For a marker that cannot be written immediately: offsets are still being replayed, or the disk is full.
MARKER_ATTEMPTS_MAX: Final = 10
MARKER_RETRY_S: Final = 0.05
LISTED_IDS_MAX: Final = 10

_COMPLETE_STATES: Final = frozenset({TxnState.COMPLETE_COMMIT, TxnState.COMPLETE_ABORT})
_RESULTS_BY_CONTROL_TYPE: Final = MappingProxyType(
    {ControlType.COMMIT: TransactionResult.COMMIT, ControlType.ABORT: TransactionResult.ABORT}
)


FindMarkerResult = Callable[
    [TopicPartition, ProducerIdAndEpoch, TimestampMs], Awaitable[TransactionResult | None]
]


class _HandledTransactions:
    """Open transactions that have been judged, where the log is read in several passes."""

    def __init__(self) -> None:
        self._keys: set[tuple[TopicPartition, ProducerIdAndEpoch]] = set()

    def select_unhandled(
        self, open_transactions: Iterable[OpenTransactionState], *, is_last: bool
    ) -> list[OpenTransactionState]:
        """Return those to judge now: each once, and unknown producer ids only when all ids are known."""
        unhandled = [
            open_
            for open_ in open_transactions
            if (open_.partition, open_.writer) not in self._keys
            and (is_last or open_.consistency is not TxnConsistency.UNKNOWN_PRODUCER_ID)
        ]
        self._keys.update((open_.partition, open_.writer) for open_ in unhandled)
        return unhandled


class UncleanStartComparison:
    """The comparison at one start. Created before anything is served; then owned by the coordinator.

    hanging_transactions  hanging transactions (KIP-664) found at the start
    lost_records          records lost from below acknowledged commits
    """

    def __init__(
        self, start_states: PartitionStartStates, markers: MarkerWriter, find_outcome: FindMarkerResult
    ) -> None:
        """Create the comparison.

        Args:
            find_outcome: returns the outcome of a partition's end marker with this producer id and epoch, not
                older than the timestamp; None if there is none.
        """
        self.hanging_transactions: tuple[OpenTransactionState, ...] = ()
        self.lost_records: tuple[LostCommittedRecords, ...] = ()
        self._partition_states = start_states
        self._marker_writer = markers
        self._find_marker_result = find_outcome
        self._decision_logs: dict[int, DecisionReplay] = {}  # by partition of the transaction log
        self._recorded_decisions: list[RecordedDecision] = []  # from the partitions that were read whole
        self._handled_transactions = _HandledTransactions()
        self._open_producer_ids = find_open_producers(start_states)
        self._watched_keys: set[bytes] = set()  # keys of ids that wrote the open transactions

    def begin_partition(self, index: int) -> None:
        """Record that a partition of the transaction log is read from its start."""
        self._decision_logs[index] = DecisionReplay(self._partition_states)

    async def read_chunk(self, index: int, chunk: bytes) -> None:
        """Add a piece of a partition of the transaction log, all records of an id in order.

        A record that cannot be decoded is left to replay, which needs only the last record of an id.
        """
        for number, (key, value) in enumerate(iter_known_records(chunk), start=1):
            try:
                if self._is_relevant(key, value):
                    self._decision_logs[index].replay(decode_record(key, value))
            except DecodeError as exc:
                _log.warning("a record of __transaction_state is not compared: %s", exc)
            if number % RECORDS_PER_SLICE == 0:
                await asyncio.sleep(0)

    def _is_relevant(self, key: bytes, value: bytes | None) -> bool:
        """Return whether a record may say how a transaction ended that a partition has open, or has lost.

        Almost no record does, and there may be many for each id.
        """
        if key in self._watched_keys or value is None:
            return key in self._watched_keys
        state, producer_id = peek_state_and_producer_id(value)
        if state in _COMPLETE_STATES:
            producer_ids, markers = peek_completion(value)
            return not producer_ids.isdisjoint(self._open_producer_ids) or any(
                at in self._partition_states and offset >= self._partition_states[at].log_end_offset
                for at, offset in markers.items()
            )
        if state == TxnState.EMPTY or producer_id not in self._open_producer_ids:
            return False
        self._watched_keys.add(key)
        return True

    async def repair(self, ids: LoadingCoordinator, indexes: Collection[int], *, is_last: bool) -> None:
        """Repair what can be repaired, and list the rest.

        Order: lost markers first. A partition that gets another marker of the same producer id before its own
            would end the wrong transaction with it.
        """
        try:
            for index in indexes:
                self._recorded_decisions += self._decision_logs.pop(index).relevant_decisions
            await self._repair(ids, is_last=is_last)
        finally:
            if is_last:
                self._partition_states, self._recorded_decisions = (
                    {},
                    [],
                )  # possibly large, and not needed again

    async def _repair(self, ids: LoadingCoordinator, *, is_last: bool) -> None:
        report = check_consistency(
            ids.list_entries_to_compare(), self._recorded_decisions, self._partition_states
        )
        open_transactions = self._handled_transactions.select_unhandled(
            report.open_transactions, is_last=is_last
        )
        self._report_hanging(
            open_
            for open_ in open_transactions
            if REPAIR_ACTIONS[open_.consistency] is TxnRepairAction.REPORT_HANGING
        )
        for open_ in open_transactions:
            if REPAIR_ACTIONS[open_.consistency] is TxnRepairAction.WRITE_MARKER:
                await self._restore_marker(ids, open_)
        for open_ in open_transactions:
            if REPAIR_ACTIONS[open_.consistency] is TxnRepairAction.ADD_PARTITION:
                await self._restore_partition(ids, open_)
        for stale_id in report.stale_ids:
            if REPAIR_ACTIONS[stale_id.consistency] is TxnRepairAction.RESTORE_DECISION:
                await self._restore_decision(ids, stale_id)
        for stale_id in report.stale_ids:
            if REPAIR_ACTIONS[stale_id.consistency] is TxnRepairAction.REPLACE_PRODUCER_ID:
                await self._replace_producer_id(ids, stale_id)
        self._report_lost_records(report.lost_records)

    def _report_lost_records(self, losses: tuple[LostCommittedRecords, ...]) -> None:
        reported, self.lost_records = self.lost_records, losses
        for loss in losses:
            if loss in reported:
                continue
            names = loss.transactional_ids
            _log.error(
                "%s: offsets %d to %d were lost, and with them records of committed transactions; write them"
                " again or restore a backup. Transactional ids: %s%s",
                loss.partition,
                loss.first_offset,
                loss.last_offset,
                ", ".join(map(repr, names[:LISTED_IDS_MAX])),
                f" and {len(names) - LISTED_IDS_MAX} more" if len(names) > LISTED_IDS_MAX else "",
            )

    def _report_hanging(self, open_transactions: Iterable[OpenTransactionState]) -> None:
        for open_ in open_transactions:
            _log.error(
                "hanging transaction, which no coordinator will end: %s. Readers wait for it; abort it with"
                " `tallystick transactions abort`",
                open_,
            )
            self.hanging_transactions += (open_,)

    async def _restore_marker(self, ids: LoadingCoordinator, open_: OpenTransactionState) -> None:
        decision = open_.recorded_decision
        if decision is None or not await self._try_write_marker(ids, open_.partition, decision):
            self._report_hanging((open_,))
        else:
            _log.warning("a lost marker was written again: %s of %s", decision.outcome.value, open_)

    async def _try_write_marker(
        self, ids: LoadingCoordinator, partition: TopicPartition, decision: RecordedDecision
    ) -> bool:
        send = MarkerRequest(
            marker_identity=decision.marker_identity,
            outcome=decision.outcome,
            partitions=frozenset({partition}),
            transaction_version=decision.transaction_version,
        )
        epoch = ids.get_coordinator_epoch(decision.transactional_id)
        for attempt in range(MARKER_ATTEMPTS_MAX):
            outcome = self._marker_writer.write(send, partition, epoch)
            result = await outcome if isinstance(outcome, Awaitable) else outcome
            if not isinstance(result, Reject):
                return result is not None
            await asyncio.sleep(MARKER_RETRY_S * 2**attempt)
        return False

    async def _restore_partition(self, ids: LoadingCoordinator, open_: OpenTransactionState) -> None:
        transactional_id = open_.transactional_id
        if transactional_id is None:
            return
        command = AddPartitionsByLeader(
            identity=open_.writer, partitions=frozenset({open_.partition}), may_be_refused=False
        )
        answer = asyncio.ensure_future(ids.submit_while_loading(transactional_id, command))
        if isinstance(ids.list_entries()[transactional_id].phase, DecidedPhase):
            # The command waits for markers, which are not written before loading is over.
            answer.add_done_callback(lambda future: self._report_restored(open_, future.result()))
        else:
            self._report_restored(open_, await answer)

    def _report_restored(self, open_: OpenTransactionState, answer: TxnAnswer) -> None:
        if isinstance(answer, Reject):
            self._report_hanging((open_,))
        else:
            _log.warning(
                "a lost record of __transaction_state was written again: %s is part of the transaction", open_
            )

    async def _restore_decision(self, ids: LoadingCoordinator, stale_id: StaleTransactionalId) -> None:
        name, marker = stale_id.transactional_id, derive_marker_identity(stale_id.writer)
        outcome = None
        for at in stale_id.marker_partitions:
            outcome = outcome or await self._find_marker_result(at, marker, stale_id.updated_ms)
        if outcome is None:
            _log.error(
                "the transaction of %s, %r, was decided, but the decision was lost. Its other markers cannot"
                " be written; compare the partitions by hand",
                stale_id.writer,
                name,
            )
            return
        command = EndTxn(
            identity=ids.list_entries()[name].client, outcome=outcome, transaction_version=EPOCH_BUMP_VERSION
        )
        answer = await ids.submit_while_loading(name, command)
        if isinstance(answer, Reject):
            _log.error(
                "a lost decision could not be written again: %s of %r: %s", outcome.value, name, answer.reason
            )
        else:
            _log.warning(
                "a lost decision was written again, as a marker shows it: %s of %s, %r",
                outcome.value,
                stale_id.writer,
                name,
            )

    async def _replace_producer_id(self, ids: LoadingCoordinator, stale_id: StaleTransactionalId) -> None:
        answer = await ids.replace_producer_id(stale_id.transactional_id)
        suffix = f", but that was refused: {answer.reason}" if isinstance(answer, Reject) else ""
        _log.warning(
            "%r gets a new producer id instead of %d, as a partition has records of it that"
            " __transaction_state has lost%s",
            stale_id.transactional_id,
            stale_id.writer.producer_id,
            suffix,
        )


class CleanStartComparison:
    """The comparison after a clean stop: it reports what is inconsistent, and repairs nothing.

    hanging_transactions  hanging transactions (KIP-664) found at the start
    lost_records          none
    """

    def __init__(self, start_states: PartitionStartStates) -> None:
        self.hanging_transactions: tuple[OpenTransactionState, ...] = ()
        self.lost_records: tuple[LostCommittedRecords, ...] = ()
        self._partition_states = start_states
        self._handled_transactions = _HandledTransactions()

    def begin_partition(self, index: int) -> None:
        """Do nothing: only the last state of each id matters."""

    async def read_chunk(self, index: int, chunk: bytes) -> None:
        """Do nothing: only the last state of each id matters."""

    async def repair(self, ids: LoadingCoordinator, indexes: Collection[int], *, is_last: bool) -> None:
        """List the transactions that are open in a partition and that no coordinator will end."""
        report = check_consistency(ids.list_entries_to_compare(), (), self._partition_states)
        for each in self._handled_transactions.select_unhandled(report.open_transactions, is_last=is_last):
            if REPAIR_ACTIONS[each.consistency] is not TxnRepairAction.NOTHING:
                _log.error(
                    "hanging transaction, which no coordinator will end: %s. Readers wait for it; abort it"
                    " with `tallystick transactions abort`",
                    each,
                )
                self.hanging_transactions += (each,)
        if is_last:
            self._partition_states = {}


# ---- the partitions of this broker


def create_clean_comparison(topics: TopicsImage) -> CleanStartComparison | None:
    """Record the open transactions of all partitions; None without any. Order: before any write to them.

    Cost: linear in partitions and open transactions.
    """
    start_states = {
        partition.topic_partition: PartitionStartState(
            log_end_offset=partition.log.log_end_offset, producers=dict(_iter_open_producers(partition))
        )
        for partition in topics.list_partitions()
        if partition.log.producer_state_manager.first_undecided_offset is not None
    }
    return CleanStartComparison(start_states) if start_states else None


def _iter_open_producers(partition: Partition) -> Iterator[tuple[ProducerId, ProducerStartState]]:
    producers = partition.log.producer_state_manager
    for first_offset, producer_id in producers.iter_open_transactions():
        state = producers.active_producers[producer_id]
        yield (
            ProducerId(producer_id),
            ProducerStartState(
                epoch=ProducerEpoch(state.epoch),
                last_timestamp_ms=TimestampMs(state.last_timestamp_ms),
                open_since_offset=Offset(first_offset),
            ),
        )


def create_unclean_comparison(topics: TopicsImage, markers: MarkerWriter) -> UncleanStartComparison:
    """Record the state of all partitions. Order: before any write to them."""

    async def find_outcome(
        name: TopicPartition, marker: ProducerIdAndEpoch, since_ms: TimestampMs
    ) -> TransactionResult | None:
        partition = topics.find_partition(name.topic, name.partition)
        return None if partition is None else await find_marker_result(partition, marker, since_ms)

    start_states = {
        partition.topic_partition: _capture_partition_state(partition)
        for partition in topics.list_partitions()
    }
    return UncleanStartComparison(start_states, markers, find_outcome)


def _capture_partition_state(partition: Partition) -> PartitionStartState:
    """Return the log end offset, and the producers with an open transaction or a marker in the partition."""
    producers = {
        ProducerId(state.producer_id): ProducerStartState(
            epoch=ProducerEpoch(state.epoch),
            last_timestamp_ms=TimestampMs(state.last_timestamp_ms),
            open_since_offset=None
            if state.current_txn_first_offset is None
            else Offset(state.current_txn_first_offset),
        )
        for state in partition.log.producer_state_manager.active_producers.values()
        if state.current_txn_first_offset is not None or state.coordinator_epoch is not None
    }
    return PartitionStartState(log_end_offset=partition.log.log_end_offset, producers=producers)


async def find_marker_result(
    partition: Partition, marker: ProducerIdAndEpoch, since_ms: TimestampMs
) -> TransactionResult | None:
    """Return the outcome of the end marker of this producer id and epoch; None if there is none.

    Cost: reads what was written since `updated_ms`, then, if the marker is not there, the rest, as the clock
        may have been set back in between. SCAN_BYTES_MAX at most, and the loop runs after every piece:
        by the epoch of a batch, a client can cause a search for a marker that never existed.
    """
    log = partition.log
    position = log.reader.find_offset_by_timestamp(since_ms)
    begin = log.log_end_offset if position is None else position[0]
    budget = SCAN_BYTES_MAX
    for at, end in ((begin, log.log_end_offset), (log.log_start_offset, begin)):
        async for chunk in _iter_chunks(partition, at, end):
            result = _find_result_in_chunk(chunk, marker)
            budget -= len(chunk)
            if result is not None or budget <= 0:
                return result
    return None


async def _iter_chunks(partition: Partition, at: Offset, end: Offset) -> AsyncIterator[bytes]:
    while at < end:
        result = partition.log.reader.read(at, SCAN_BYTES, upper=end)
        if isinstance(result, Reject) or not result.data:
            return
        yield result.data
        await asyncio.sleep(0)
        for header in partition.log.reader.iter_headers(at, result.data):
            at = Offset(header.next_offset)


def _find_result_in_chunk(chunk: bytes, marker: ProducerIdAndEpoch) -> TransactionResult | None:
    for position, header in iter_headers(chunk):
        if header.is_control and header.producer_id_and_epoch == marker:
            end_marker = read_marker(chunk, position)
            if end_marker is not None:
                return _RESULTS_BY_CONTROL_TYPE[end_marker.control_type]
    return None
