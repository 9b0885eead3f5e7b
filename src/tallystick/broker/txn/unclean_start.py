"""Comparison of the partitions with the coordinator at a start, before any transactional id is served.

After an unclean shutdown the findings of `txn.machine.consistency` are acted on. After a clean one no record
can have been lost, so nothing is repaired: a transaction that is open in a partition and not at the
coordinator is reported.

The state of the partitions is noted before any request can write to them; the transaction log is noted while
it is replayed; then `settle` acts, while every id still answers LOADING. Ids in a partition of the
transaction log that cannot be read then are compared when it is read back, before they are served. Until the
last one is read, an open transaction of no known id may be theirs, and is not reported as hanging.
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Iterable, Iterator
from types import MappingProxyType
from typing import Final

from tallystick.broker.partitions.partition import Partition
from tallystick.broker.partitions.topics import Topics
from tallystick.broker.txn.codec import decode_record, iter_stored, peek, peek_completed
from tallystick.broker.txn.machine.commands import AddImplicitly, Answer, EndTxn, SendMarkers
from tallystick.broker.txn.machine.consistency import (
    VERDICTS,
    Decision,
    Decisions,
    Finding,
    IdFound,
    Loss,
    OpenFound,
    Seen,
    SeenPartition,
    SeenProducer,
    Verdict,
    compare,
    open_producers,
)
from tallystick.broker.txn.machine.model import EPOCH_BUMP_VERSION, Decided, Outcome, TxnState
from tallystick.broker.txn.machine.producer_epochs import marker_of
from tallystick.broker.txn.marker_sender import MarkerSink
from tallystick.broker.txn.ports import LoadedIds
from tallystick.kernel.errors import Reject
from tallystick.kernel.ids import (
    Identity,
    Offset,
    ProducerEpoch,
    ProducerId,
    TimestampMs,
    TopicPartition,
)
from tallystick.protocol import DecodeError
from tallystick.protocol.records import ControlType, iter_headers, read_marker

_log = logging.getLogger("tallystick.transactions")

SCAN_BYTES: Final = 1024 * 1024
# Limit for one marker in one partition; the marker of a lost decision is near the end.
LOOKED_AT_BYTES_MAX: Final = 1024 * SCAN_BYTES
# About a millisecond of work; in between, the loop serves other requests.
LOOKED_AT_PER_SLICE: Final = 256
# For a marker that cannot be written at once: offsets are still being replayed, or the disk is full.
MARKER_TRIES: Final = 10
MARKER_RETRY_S: Final = 0.05
NAMED_AT_MOST: Final = 10

_COMPLETE: Final = frozenset({TxnState.COMPLETE_COMMIT, TxnState.COMPLETE_ABORT})
_OUTCOMES: Final = MappingProxyType({ControlType.COMMIT: Outcome.COMMIT, ControlType.ABORT: Outcome.ABORT})


FindOutcome = Callable[[TopicPartition, Identity, TimestampMs], Awaitable[Outcome | None]]


class _Judged:
    """Open transactions that have been judged, where the log is read in several passes."""

    def __init__(self) -> None:
        self._done: set[tuple[TopicPartition, Identity]] = set()

    def choose(self, found: Iterable[OpenFound], *, is_last: bool) -> list[OpenFound]:
        """Return those to judge now: each once, and unknown producer ids only when all ids are known."""
        chosen = [
            open_
            for open_ in found
            if (open_.partition, open_.writer) not in self._done
            and (is_last or open_.finding is not Finding.UNKNOWN)
        ]
        self._done.update((open_.partition, open_.writer) for open_ in chosen)
        return chosen


class UncleanStart:
    """The comparison at one start. Created before anything is served; then owned by the coordinator.

    hanging  hanging transactions (KIP-664) found at the start
    losses   records lost from below acknowledged commits
    """

    def __init__(self, seen: Seen, markers: MarkerSink, find_outcome: FindOutcome) -> None:
        """Create the comparison.

        Args:
            find_outcome: returns the outcome of a partition's end marker with this producer id and epoch, not
                older than the timestamp; None if there is none.
        """
        self.hanging: tuple[OpenFound, ...] = ()
        self.losses: tuple[Loss, ...] = ()
        self._seen = seen
        self._markers = markers
        self._find_outcome = find_outcome
        self._decisions: dict[int, Decisions] = {}  # by partition of the transaction log
        self._ends: list[Decision] = []  # from the partitions that were read whole
        self._judged = _Judged()
        self._open = open_producers(seen)
        self._watched: set[bytes] = set()  # keys of ids that wrote the open transactions

    def begin(self, index: int) -> None:
        """Note that a partition of the transaction log is read from its start."""
        self._decisions[index] = Decisions(self._seen)

    async def read(self, index: int, piece: bytes) -> None:
        """Take in a piece of a partition of the transaction log, all records of an id in order.

        A record that cannot be decoded is left to replay, which needs only the last record of an id.
        """
        for number, (key, value) in enumerate(iter_stored(piece), start=1):
            try:
                if self._matters(key, value):
                    self._decisions[index].note(decode_record(key, value))
            except DecodeError as exc:
                _log.warning("a record of __transaction_state is not compared: %s", exc)
            if number % LOOKED_AT_PER_SLICE == 0:
                await asyncio.sleep(0)

    def _matters(self, key: bytes, value: bytes | None) -> bool:
        """Return whether a record may say how a transaction ended that a partition has open, or has lost.

        Almost no record does, and there may be many for each id.
        """
        if key in self._watched or value is None:
            return key in self._watched
        state, producer_id = peek(value)
        if state in _COMPLETE:
            named, markers = peek_completed(value)
            return not named.isdisjoint(self._open) or any(
                at in self._seen and offset >= self._seen[at].log_end_offset for at, offset in markers.items()
            )
        if state == TxnState.EMPTY or producer_id not in self._open:
            return False
        self._watched.add(key)
        return True

    async def settle(self, ids: LoadedIds, indexes: Collection[int], *, is_last: bool) -> None:
        """Repair what can be repaired, and list the rest.

        Order: lost markers first. A partition that gets another marker of the same producer id before its own
            would end the wrong transaction with it.
        """
        try:
            for index in indexes:
                self._ends += self._decisions.pop(index).found
            await self._settle(ids, is_last=is_last)
        finally:
            if is_last:
                self._seen, self._ends = {}, []  # possibly large, and not needed again

    async def _settle(self, ids: LoadedIds, *, is_last: bool) -> None:
        found = compare(ids.to_compare(), self._ends, self._seen)
        opened = self._judged.choose(found.open, is_last=is_last)
        self._hang(open_ for open_ in opened if VERDICTS[open_.finding] is Verdict.HANGING)
        for open_ in opened:
            if VERDICTS[open_.finding] is Verdict.WRITE_MARKER:
                await self._write_marker(ids, open_)
        for open_ in opened:
            if VERDICTS[open_.finding] is Verdict.ADD_AGAIN:
                await self._add_again(ids, open_)
        for behind in found.ids:
            if VERDICTS[behind.finding] is Verdict.DECIDE_AGAIN:
                await self._decide_again(ids, behind)
        for behind in found.ids:
            if VERDICTS[behind.finding] is Verdict.NEW_PRODUCER_ID:
                await self._move(ids, behind)
        self._report(found.losses)

    def _report(self, losses: tuple[Loss, ...]) -> None:
        known, self.losses = self.losses, losses
        for loss in losses:
            if loss in known:
                continue
            names = loss.transactional_ids
            _log.error(
                "%s: offsets %d to %d are gone, below the end of transactions that were committed: %s%s",
                loss.partition,
                loss.first_offset,
                loss.last_offset,
                ", ".join(map(repr, names[:NAMED_AT_MOST])),
                f" and {len(names) - NAMED_AT_MOST} more" if len(names) > NAMED_AT_MOST else "",
            )

    def _hang(self, found: Iterable[OpenFound]) -> None:
        for open_ in found:
            _log.error("hanging transaction, no coordinator will end it: %s", open_)
            self.hanging += (open_,)

    async def _write_marker(self, ids: LoadedIds, open_: OpenFound) -> None:
        decision = open_.decision
        if decision is None or not await self._written(ids, open_.partition, decision):
            self._hang((open_,))
        else:
            _log.warning("%s of %s is written again: the marker was lost", decision.outcome.value, open_)

    async def _written(self, ids: LoadedIds, partition: TopicPartition, decision: Decision) -> bool:
        send = SendMarkers(
            marker=decision.marker,
            outcome=decision.outcome,
            partitions=frozenset({partition}),
            transaction_version=decision.transaction_version,
        )
        epoch = ids.coordinator_epoch(decision.transactional_id)
        for attempt in range(MARKER_TRIES):
            marked = self._markers.write(send, partition, epoch)
            done = await marked if isinstance(marked, Awaitable) else marked
            if not isinstance(done, Reject):
                return done is not None
            await asyncio.sleep(MARKER_RETRY_S * 2**attempt)
        return False

    async def _add_again(self, ids: LoadedIds, open_: OpenFound) -> None:
        transactional_id = open_.transactional_id
        if transactional_id is None:
            return
        command = AddImplicitly(identity=open_.writer, partitions=frozenset({open_.partition}))
        answer = asyncio.ensure_future(ids.run_loading(transactional_id, command))
        if isinstance(ids.loaded()[transactional_id].phase, Decided):
            # The command waits for markers, which are not written before loading is over.
            answer.add_done_callback(lambda done: self._added(open_, done.result()))
        else:
            self._added(open_, await answer)

    def _added(self, open_: OpenFound, answer: Answer) -> None:
        if isinstance(answer, Reject):
            self._hang((open_,))
        else:
            _log.warning("%s is part of the transaction again: the record of it was lost", open_)

    async def _decide_again(self, ids: LoadedIds, behind: IdFound) -> None:
        name, marker = behind.transactional_id, marker_of(behind.writer)
        outcome = None
        for at in behind.witnesses:
            outcome = outcome or await self._find_outcome(at, marker, behind.since_ms)
        if outcome is None:
            _log.error(
                "the transaction of %s, %r, was ended, and nothing is left that says how", behind.writer, name
            )
            return
        command = EndTxn(
            identity=ids.loaded()[name].client, outcome=outcome, transaction_version=EPOCH_BUMP_VERSION
        )
        answer = await ids.run_loading(name, command)
        if isinstance(answer, Reject):
            _log.error("%s of %r cannot be decided again: %s", outcome.value, name, answer.reason)
        else:
            _log.warning(
                "%s of %s, %r, is decided again: a marker says so", outcome.value, behind.writer, name
            )

    async def _move(self, ids: LoadedIds, behind: IdFound) -> None:
        answer = await ids.move_loading(behind.transactional_id)
        refused = f", but that is refused: {answer.reason}" if isinstance(answer, Reject) else ""
        _log.warning(
            "%r leaves producer id %d, of which a partition has records the transaction log has lost%s",
            behind.transactional_id,
            behind.writer.producer_id,
            refused,
        )


class CleanStart:
    """The comparison after a clean stop: it reports what is inconsistent, and repairs nothing.

    hanging  hanging transactions (KIP-664) found at the start
    losses   none
    """

    def __init__(self, seen: Seen) -> None:
        self.hanging: tuple[OpenFound, ...] = ()
        self.losses: tuple[Loss, ...] = ()
        self._seen = seen
        self._judged = _Judged()

    def begin(self, index: int) -> None:
        """Do nothing: only the last state of each id matters."""

    async def read(self, index: int, piece: bytes) -> None:
        """Do nothing: only the last state of each id matters."""

    async def settle(self, ids: LoadedIds, indexes: Collection[int], *, is_last: bool) -> None:
        """List the transactions that are open in a partition and that no coordinator will end."""
        found = compare(ids.to_compare(), (), self._seen)
        for each in self._judged.choose(found.open, is_last=is_last):
            if VERDICTS[each.finding] is not Verdict.NOTHING:
                _log.error("hanging transaction, no coordinator will end it: %s", each)
                self.hanging += (each,)
        if is_last:
            self._seen = {}


# ---- the partitions of this broker


def compare_after_clean_stop(topics: Topics) -> CleanStart | None:
    """Note the open transactions of all partitions; None if there are none. Order: before any write to them.

    Cost: linear in partitions and open transactions.
    """
    seen = {
        partition.topic_partition: SeenPartition(
            log_end_offset=partition.log.log_end_offset, producers=dict(_open_in(partition))
        )
        for partition in topics.all_partitions()
        if partition.log.producer_state.first_undecided_offset is not None
    }
    return CleanStart(seen) if seen else None


def _open_in(partition: Partition) -> Iterator[tuple[ProducerId, SeenProducer]]:
    producers = partition.log.producer_state
    for first_offset, producer_id in producers.open_transactions():
        state = producers.active[producer_id]
        yield (
            ProducerId(producer_id),
            SeenProducer(
                epoch=ProducerEpoch(state.epoch),
                last_timestamp_ms=TimestampMs(state.last_timestamp_ms),
                first_offset=Offset(first_offset),
            ),
        )


def compare_after_crash(topics: Topics, markers: MarkerSink) -> UncleanStart:
    """Note the state of all partitions. Order: before any write to them."""

    async def find_outcome(name: TopicPartition, marker: Identity, since_ms: TimestampMs) -> Outcome | None:
        partition = topics.partition(name.topic, name.partition)
        return None if partition is None else await read_outcome(partition, marker, since_ms)

    seen = {partition.topic_partition: _seen(partition) for partition in topics.all_partitions()}
    return UncleanStart(seen, markers, find_outcome)


def _seen(partition: Partition) -> SeenPartition:
    """Return the log end offset, and the producers with an open transaction or a marker in the partition."""
    producers = {
        ProducerId(state.producer_id): SeenProducer(
            epoch=ProducerEpoch(state.epoch),
            last_timestamp_ms=TimestampMs(state.last_timestamp_ms),
            first_offset=None if state.txn_first_offset is None else Offset(state.txn_first_offset),
        )
        for state in partition.log.producer_state.active.values()
        if state.txn_first_offset is not None or state.coordinator_epoch is not None
    }
    return SeenPartition(log_end_offset=partition.log.log_end_offset, producers=producers)


async def read_outcome(partition: Partition, marker: Identity, since_ms: TimestampMs) -> Outcome | None:
    """Return the outcome of the end marker with the producer id and epoch `marker`; None if there is none.

    Cost: reads what was written since `since_ms`, then, if the marker is not there, the rest, as the clock
        may have been set back in between. LOOKED_AT_BYTES_MAX at most, and the loop runs after every piece:
        by the epoch of a batch, a client can cause a search for a marker that never existed.
    """
    log = partition.log
    found = log.offset_for_timestamp(since_ms)
    begin = log.log_end_offset if found is None else found[0]
    left = LOOKED_AT_BYTES_MAX
    for at, end in ((begin, log.log_end_offset), (log.log_start_offset, begin)):
        async for piece in _pieces(partition, at, end):
            said = _outcome_in(piece, marker)
            left -= len(piece)
            if said is not None or left <= 0:
                return said
    return None


async def _pieces(partition: Partition, at: Offset, end: Offset) -> AsyncIterator[bytes]:
    while at < end:
        result = partition.log.read(at, SCAN_BYTES, upper=end)
        if isinstance(result, Reject) or not result.data:
            return
        yield result.data
        await asyncio.sleep(0)
        for _, header in iter_headers(result.data):
            at = Offset(header.next_offset)


def _outcome_in(piece: bytes, marker: Identity) -> Outcome | None:
    for position, header in iter_headers(piece):
        if header.is_control and header.producer == marker:
            read = read_marker(piece, position)
            if read is not None:
                return _OUTCOMES[read.type]
    return None
