"""Detection of what a power loss took from transactions, by comparing the transaction log and the partitions.

Under `flush.policy` `os` and `interval` every log may lose its end, and each a different part of it. What is
left may then disagree:

    the marker is gone, the record of the end is there      the partition has a completed transaction open
    the record of the end is gone, a marker is there         the coordinator has an ended transaction open
    the record that added a partition is gone                the partition's transaction is never ended
    the records that bumped the epoch are gone               the coordinator would hand out an epoch twice

Under version 2 a producer id and epoch name one transaction, so each of these can be repaired where enough is
left; no transaction is ended on a guess [TXN-12]. A transaction that no coordinator can end is *hanging*: it
is listed, and its producer id is not used again, as the next marker would end both transactions at once.

Under `ack` none of this happens: a record is on the disk before anything that depends on it is written.

Source: no KIP has this; Kafka relies on replicas. KIP-664 for the meaning of hanging; ADR 0019.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import field, replace
from enum import Enum, auto
from types import MappingProxyType
from typing import Final

from tallystick.broker.txn.machine.commands import DONE, EntryExpired, EntryStored, Env, Step, TxnRecord
from tallystick.broker.txn.machine.model import (
    EPOCH_BUMP_VERSION,
    Decided,
    ForcedCause,
    Idle,
    Ongoing,
    Outcome,
    Partitions,
    TxnEntry,
)
from tallystick.broker.txn.machine.producer_epochs import first_pair, marker_of
from tallystick.kernel.codes import ErrorCode
from tallystick.kernel.errors import Reject
from tallystick.kernel.ids import (
    Identity,
    Offset,
    ProducerEpoch,
    ProducerId,
    TimestampMs,
    TopicPartition,
    TransactionalId,
)
from tallystick.kernel.value import frozen

# ---- inputs of the comparison


@frozen(kw_only=True)
class SeenProducer:
    """State of a producer id in a partition. `first_offset`: of its open transaction there."""

    epoch: ProducerEpoch
    last_timestamp_ms: TimestampMs
    first_offset: Offset | None = None


@frozen(kw_only=True)
class SeenPartition:
    """A partition as found at the start, before anything was written to it."""

    log_end_offset: Offset
    producers: Mapping[ProducerId, SeenProducer]


Seen = Mapping[TopicPartition, SeenPartition]


def open_producers(seen: Seen) -> frozenset[ProducerId]:
    """Return the producer ids that have a transaction open in any partition."""
    return frozenset(
        producer_id
        for partition in seen.values()
        for producer_id, producer in partition.producers.items()
        if producer.first_offset is not None
    )


@frozen(kw_only=True)
class Decision:
    """End of a transaction, as recorded in the transaction log.

    offsets  where its markers were written; empty where that is not known
    """

    transactional_id: TransactionalId
    writer: Identity
    marker: Identity
    outcome: Outcome
    transaction_version: int
    partitions: Partitions
    offsets: Mapping[TopicPartition, Offset] = field(default_factory=lambda: MappingProxyType({}))


class Decisions:
    """The ends in the transaction log of which a partition may have lost something. Filled by one replay."""

    def __init__(self, seen: Seen) -> None:
        self.found: list[Decision] = []
        self._seen = seen
        self._open = open_producers(seen)
        # For each id: the writer of its open transaction, and the decision that is not completed yet.
        self._writers: dict[TransactionalId, Identity] = {}
        self._pending: dict[TransactionalId, Decision] = {}

    def note(self, record: TxnRecord) -> None:
        """Take in one record; all records of an id in log order."""
        if isinstance(record, EntryExpired):
            self._writers.pop(record.transactional_id, None)
            self._complete(self._pending.pop(record.transactional_id, None))
            return
        entry, phase = record.entry, record.entry.phase
        transactional_id = entry.transactional_id
        pending = self._pending.pop(transactional_id, None)
        match phase:
            case Decided():
                if pending is not None and pending.marker == phase.marker:
                    writer: Identity | None = pending.writer  # stored again, with a marker noted
                else:
                    self._complete(pending)
                    writer = self._writers.pop(transactional_id, None)
                self._pending[transactional_id] = _decided(entry, phase, writer)
            case Ongoing():
                self._complete(pending)
                self._writers[transactional_id] = phase.writer
            case Idle(markers=markers) if markers:
                self._complete(replace(pending or _completed(entry, phase), offsets=markers))
            case Idle():
                self._complete(pending)

    def _complete(self, decision: Decision | None) -> None:
        """Keep the decision if a partition may lack its marker or the data before that."""
        if decision is None:
            return
        of_open = decision.writer.producer_id in self._open
        for partition in decision.partitions:
            seen = self._seen.get(partition)
            if seen is not None and (of_open or decision.offsets.get(partition, -1) >= seen.log_end_offset):
                self.found.append(decision)
                return


def _decided(entry: TxnEntry, phase: Decided, writer: Identity | None) -> Decision:
    return Decision(
        transactional_id=entry.transactional_id,
        writer=writer or _writer_before(phase.marker, entry.transaction_version),
        marker=phase.marker,
        outcome=phase.outcome,
        transaction_version=entry.transaction_version,
        partitions=phase.partitions,
    )


def _completed(entry: TxnEntry, phase: Idle) -> Decision:
    """Rebuild a decision from the completion alone, where compaction removed the decision's record.

    For a kept transaction that record lacks the writer: `superseded` never wrote, and matches no open
    transaction.
    """
    bumped = entry.transaction_version >= EPOCH_BUMP_VERSION and entry.superseded is not None
    writer = entry.superseded if bumped and entry.superseded is not None else entry.client
    return Decision(
        transactional_id=entry.transactional_id,
        writer=writer,
        marker=marker_of(writer) if bumped else writer,
        outcome=phase.outcome or Outcome.ABORT,
        transaction_version=entry.transaction_version,
        partitions=frozenset(phase.markers),
    )


def _writer_before(marker: Identity, transaction_version: int) -> Identity:
    if transaction_version < EPOCH_BUMP_VERSION or not marker.epoch:
        return marker
    return Identity(marker.producer_id, ProducerEpoch(marker.epoch - 1))


# ---- findings


class Finding(Enum):
    """Relation of an open transaction of a partition, or of an id, to the coordinator's state."""

    KNOWN = auto()  # open at the coordinator, too, in this partition
    DECIDED = auto()  # its markers are sent again after every start
    MARKER_LOST = auto()  # it has ended, and this partition's marker is gone
    FORGOTTEN = auto()  # of the id's present epoch; the record that added the partition is gone
    STRAY = auto()  # of a known producer id, which has no such transaction in this partition
    UNKNOWN = auto()  # of a producer id that no coordinator knows
    DECISION_LOST = auto()  # open at the coordinator, and a partition has seen the next epoch
    PAIR_IN_USE = auto()  # the id's next writes would collide with its own lost past in a partition


class Verdict(Enum):
    NOTHING = auto()
    WRITE_MARKER = auto()  # the marker of the recorded decision
    ADD_AGAIN = auto()  # add the partition to the id's transaction
    HANGING = auto()  # list it: only an administrator can decide
    DECIDE_AGAIN = auto()  # with the outcome of the marker that exists
    NEW_PRODUCER_ID = auto()  # for the id: its old epochs are fenced, open transactions stay as they are


# STRAY: an epoch that the id has not reached, or has left, with no record of how the transaction ended. An
# abort might revert a commit that was acknowledged.
VERDICTS: Final[Mapping[Finding, Verdict]] = MappingProxyType(
    {
        Finding.KNOWN: Verdict.NOTHING,
        Finding.DECIDED: Verdict.NOTHING,
        Finding.MARKER_LOST: Verdict.WRITE_MARKER,
        Finding.FORGOTTEN: Verdict.ADD_AGAIN,
        Finding.STRAY: Verdict.HANGING,
        Finding.UNKNOWN: Verdict.HANGING,
        Finding.DECISION_LOST: Verdict.DECIDE_AGAIN,
        Finding.PAIR_IN_USE: Verdict.NEW_PRODUCER_ID,
    }
)


@frozen(kw_only=True)
class OpenFound:
    """A transaction that is open in a partition.

    transactional_id  id that owns the producer id, or did when it ended; None: no id does
    decision          for MARKER_LOST
    """

    finding: Finding
    partition: TopicPartition
    writer: Identity
    first_offset: Offset
    last_timestamp_ms: TimestampMs
    transactional_id: TransactionalId | None = None
    decision: Decision | None = None

    def __str__(self) -> str:
        whose = "no transactional id" if self.transactional_id is None else repr(self.transactional_id)
        return f"{self.partition} from offset {self.first_offset}, written by {self.writer} of {whose}"


@frozen(kw_only=True)
class IdFound:
    """A transactional id whose state is behind the state of partitions.

    since_ms   when the coordinator last updated it
    witnesses  for DECISION_LOST the partitions that may have the marker of `writer`
    """

    finding: Finding
    transactional_id: TransactionalId
    writer: Identity
    since_ms: TimestampMs
    witnesses: tuple[TopicPartition, ...] = ()


@frozen(kw_only=True)
class Loss:
    """Records missing at the end of a partition, below the markers of acknowledged commits.

    A topic that was deleted and created again looks like this once, for the commits in its predecessor.
    """

    partition: TopicPartition
    first_offset: Offset
    last_offset: Offset
    transactional_ids: tuple[TransactionalId, ...]


@frozen(kw_only=True)
class Comparison:
    open: tuple[OpenFound, ...] = ()
    ids: tuple[IdFound, ...] = ()
    losses: tuple[Loss, ...] = ()


# ---- comparing


def compare(entries: Iterable[TxnEntry], decisions: Sequence[Decision], seen: Seen) -> Comparison:
    """Find the open transactions of partitions, the ids that are behind a partition, and lost records.

    Args:
        entries: as the transaction log leaves them.
        decisions: from `Decisions`, in the order of the log.

    Cost: linear in producers known to partitions.
    """
    known = tuple(entries)
    owners = {entry.shown.producer_id: entry for entry in known}
    owners |= {entry.client.producer_id: entry for entry in known}
    sightings = _sightings(owners, seen)
    opened = tuple(_open_found(owners, sightings, decisions, seen))
    of_id: dict[TransactionalId | None, list[OpenFound]] = {}
    for found in opened:
        of_id.setdefault(found.transactional_id, []).append(found)
    return Comparison(
        open=opened,
        ids=tuple(
            behind
            for entry in known
            for behind in _id_found(entry, sightings, of_id.get(entry.transactional_id, ()))
        ),
        losses=_losses(decisions, seen),
    )


Sightings = Mapping[ProducerId, Sequence[tuple[TopicPartition, ProducerEpoch]]]


def _sightings(owners: Mapping[ProducerId, TxnEntry], seen: Seen) -> Sightings:
    found: dict[ProducerId, list[tuple[TopicPartition, ProducerEpoch]]] = {}
    for partition, state in seen.items():
        for producer_id, producer in state.producers.items():
            if producer_id in owners:
                found.setdefault(producer_id, []).append((partition, producer.epoch))
    return found


def _after(sightings: Sightings, pair: Identity) -> tuple[TopicPartition, ...]:
    """Return the partitions that have seen a later epoch."""
    return tuple(partition for partition, epoch in sightings.get(pair.producer_id, ()) if epoch > pair.epoch)


def _open_found(
    owners: Mapping[ProducerId, TxnEntry], sightings: Sightings, decisions: Sequence[Decision], seen: Seen
) -> Iterable[OpenFound]:
    by_writer: dict[Identity, list[Decision]] = {}
    for decision in decisions:
        by_writer.setdefault(decision.writer, []).append(decision)
    for partition, state in seen.items():
        for producer_id, producer in state.producers.items():
            if producer.first_offset is None:
                continue
            writer = Identity(producer_id, producer.epoch)
            entry = owners.get(producer_id)
            ended = [d for d in by_writer.get(writer, ()) if partition in d.partitions]
            stands = find_open(partition, writer, entry, is_overtaken=bool(_after(sightings, writer)))
            lost = find_lost_marker(partition, state.log_end_offset, ended, stands)
            whose = lost.transactional_id if lost else entry.transactional_id if entry else None
            yield OpenFound(
                finding=Finding.MARKER_LOST if lost else stands,
                partition=partition,
                writer=writer,
                first_offset=producer.first_offset,
                last_timestamp_ms=producer.last_timestamp_ms,
                transactional_id=whose,
                decision=lost,
            )


def find_open(
    partition: TopicPartition, writer: Identity, entry: TxnEntry | None, *, is_overtaken: bool
) -> Finding:
    """Classify a transaction that `writer` has open in a partition.

    Args:
        entry: of the owner of the producer id.
        is_overtaken: a partition has seen a later epoch of it.
    """
    if entry is None:
        return Finding.UNKNOWN
    phase = entry.phase
    bumped = entry.transaction_version >= EPOCH_BUMP_VERSION
    if isinstance(phase, Ongoing) and writer == phase.writer and partition in phase.partitions:
        return Finding.KNOWN
    if isinstance(phase, Decided) and partition in phase.partitions and _ends(phase, writer, bumped):
        return Finding.DECIDED
    if writer != entry.client or entry.is_kept:
        return Finding.STRAY
    # Below version 2 the previous transaction may have had the same epoch. That is excluded if there was none
    # under this epoch, or if the log has its marker offsets: then this partition has its marker.
    fresh = isinstance(phase, Idle) and (phase.outcome is None or bool(phase.markers))
    return Finding.FORGOTTEN if bumped or (fresh and not is_overtaken) else Finding.STRAY


def _ends(phase: Decided, writer: Identity, bumped: bool) -> bool:
    """Return whether the markers end what `writer` wrote. Below version 2 only a fence bumps the epoch."""
    before = phase.marker.epoch - writer.epoch
    return writer.producer_id == phase.marker.producer_id and before in ((1,) if bumped else (0, 1))


def find_lost_marker(
    partition: TopicPartition, log_end_offset: Offset, ended: Sequence[Decision], stands: Finding
) -> Decision | None:
    """Return the first end whose marker was beyond the end of the partition, and is lost.

    Without a recorded offset, the marker counts as lost only if nothing else explains the open transaction:
    below version 2 the same epoch may have begun another one.
    """
    for decision in ended:
        offset = decision.offsets.get(partition)
        if offset is not None and offset >= log_end_offset:
            return decision
    if VERDICTS[stands] is not Verdict.HANGING:
        return None
    return next((decision for decision in ended if partition not in decision.offsets), None)


def _id_found(entry: TxnEntry, sightings: Sightings, own: Sequence[OpenFound]) -> Iterable[IdFound]:
    forgotten = any(found.finding is Finding.FORGOTTEN for found in own)
    writer, client = entry.shown, entry.client
    # An administrator's marker may have any epoch, and does not decide the transaction as a whole.
    forced = {note.partition for note in entry.forced if note.cause is ForcedCause.MARKER}
    witnesses: tuple[TopicPartition, ...] = ()
    if isinstance(entry.phase, Ongoing) or (isinstance(entry.phase, Idle) and forgotten):
        bumped = entry.transaction_version >= EPOCH_BUMP_VERSION
        witnesses = tuple(at for at in _after(sightings, writer) if bumped and at not in forced)
    if witnesses:
        yield _as_id_found(Finding.DECISION_LOST, entry, witnesses)
    # Deciding an end again bumps the client's epoch by one, to the epoch of the marker that was seen.
    reached = Identity(client.producer_id, ProducerEpoch(client.epoch + bool(witnesses)))
    strays = any(
        VERDICTS[found.finding] is Verdict.HANGING and found.writer.producer_id == client.producer_id
        for found in own
    )
    if strays or any(at not in forced for at in _after(sightings, reached)):
        yield _as_id_found(Finding.PAIR_IN_USE, entry)


def _as_id_found(finding: Finding, entry: TxnEntry, witnesses: tuple[TopicPartition, ...] = ()) -> IdFound:
    return IdFound(
        finding=finding,
        transactional_id=entry.transactional_id,
        writer=entry.shown,
        since_ms=entry.updated_ms,
        witnesses=witnesses,
    )


def _losses(decisions: Sequence[Decision], seen: Seen) -> tuple[Loss, ...]:
    lost: dict[TopicPartition, tuple[Offset, list[TransactionalId]]] = {}
    for decision in decisions:
        if decision.outcome is not Outcome.COMMIT:
            continue
        for partition, marker in decision.offsets.items():
            if partition in seen and marker > seen[partition].log_end_offset:
                before, names = lost.get(partition, (marker, []))
                lost[partition] = (max(before, marker), [*names, decision.transactional_id])
    return tuple(
        Loss(
            partition=partition,
            first_offset=seen[partition].log_end_offset,
            last_offset=Offset(marker - 1),
            transactional_ids=tuple(dict.fromkeys(names)),
        )
        for partition, (marker, names) in sorted(lost.items())
    )


def moved(entry: TxnEntry, env: Env) -> Step | Reject:
    """Give the id another producer id (NEW_PRODUCER_ID): its clients are fenced, open work stays in doubt.

    Refused where the finalized version has no room for a client apart from its transaction; the client or the
    timeout ends that transaction then.
    """
    idle, version = isinstance(entry.phase, Idle), env.config.transaction_version
    if not idle and version < EPOCH_BUMP_VERSION:
        return Reject(
            ErrorCode.UNSUPPORTED_VERSION, f"a transaction is open, transaction.version is {version}"
        )
    after = replace(entry, client=first_pair(env.spare_id), superseded=None, updated_ms=env.now_ms)
    stored = EntryStored(entry=replace(after, phase=Idle()) if idle else after)
    return Step(append=(stored,), then_apply=(stored,), then_reply=DONE, used_spare=True)
