"""What a power loss has taken from transactions: the transaction log and the partitions, compared.

Under `flush.policy` `os` and `interval` every log may lose its end, and each another stretch of it. What
is left of them may then disagree:

    the marker is gone, the record of the end is there      the partition has open what is complete
    the record of the end is gone, a marker is there         the coordinator has open what was ended
    the record that added a partition is gone                the partition has open what nobody will end
    the records that moved the epoch are gone                the coordinator would hand out a pair twice

A pair names one transaction under version 2, so each of these can be put right where enough is left; nothing
is ended on a guess [TXN-12]. What nobody can end is *hanging*: it is listed, and its producer id is not
written with again, as the next marker would end both transactions at once.

Under `ack` none of this happens: a record is on the disk before anything that rests on it is written.

Source: no KIP has this; Kafka relies on replicas. KIP-664 for what hanging means; ADR 0019.
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

# ---- what is compared


@frozen(kw_only=True)
class SeenProducer:
    """What a partition knows of a producer id. `first_offset`: of its transaction that is open there."""

    epoch: ProducerEpoch
    last_timestamp_ms: TimestampMs
    first_offset: Offset | None = None


@frozen(kw_only=True)
class SeenPartition:
    """A partition as the start found it, before anything was written to it."""

    log_end_offset: Offset
    producers: Mapping[ProducerId, SeenProducer]


Seen = Mapping[TopicPartition, SeenPartition]


def open_producers(seen: Seen) -> frozenset[ProducerId]:
    """Whoever has a transaction open somewhere."""
    return frozenset(
        producer_id
        for partition in seen.values()
        for producer_id, producer in partition.producers.items()
        if producer.first_offset is not None
    )


@frozen(kw_only=True)
class Decision:
    """An end of a transaction, as the transaction log has it.

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
        # Of each id: who wrote the transaction that was open, and how the one that was decided ends.
        self._writers: dict[TransactionalId, Identity] = {}
        self._pending: dict[TransactionalId, Decision] = {}

    def note(self, record: TxnRecord) -> None:
        """Take in one record; all of an id in the order of the log."""
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
                    writer: Identity | None = pending.writer  # stored once more, with a note
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
        """Keep it if a partition may lack its marker or the data before that."""
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
    """From the record of the completion alone, where compaction took the decision's.

    Of a kept transaction it does not have the writer: `superseded` never wrote, and nothing matches it.
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


# ---- what is found


class Finding(Enum):
    """How a transaction that a partition has open, or an id, relates to what the coordinator remembers."""

    KNOWN = auto()  # open at the coordinator, too, in this partition
    DECIDED = auto()  # its markers are on their way again after every start
    MARKER_LOST = auto()  # it has ended, and this partition's marker is gone
    FORGOTTEN = auto()  # of the id's present pair; the record that added the partition is gone
    STRAY = auto()  # of a known producer id, which has no such transaction in this partition
    UNKNOWN = auto()  # of a producer id that no coordinator knows
    DECISION_LOST = auto()  # open at the coordinator, and a partition has seen the pair after it
    PAIR_IN_USE = auto()  # what the id writes next would meet its own lost past in a partition


class Verdict(Enum):
    NOTHING = auto()
    WRITE_MARKER = auto()  # the one the log's record says
    ADD_AGAIN = auto()  # to the id's transaction
    HANGING = auto()  # list it: only an administrator can know
    DECIDE_AGAIN = auto()  # as the marker says that is there
    NEW_PRODUCER_ID = auto()  # for the id: its old pairs are fenced, what is open stays as it is


# STRAY under a pair the id has not reached, or has left: no record says how it ended. To abort it could take
# back what a client was told is committed.
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
    """A transaction that a partition has open.

    transactional_id  whose producer id it is, or was when it ended; None: nobody's
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
    """A transactional id behind what partitions have seen.

    since_ms   when the coordinator last heard of it
    witnesses  for DECISION_LOST the partitions that may have the marker of `writer`
    """

    finding: Finding
    transactional_id: TransactionalId
    writer: Identity
    since_ms: TimestampMs
    witnesses: tuple[TopicPartition, ...] = ()


@frozen(kw_only=True)
class Loss:
    """Records below the markers of commits that were acknowledged, gone from the end of a partition.

    A topic that was deleted and made again looks like this once, for the commits in the one before.
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
    """Every transaction that is open in a partition, every id that is behind one, and what is gone.

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
    """Partitions that have seen a later epoch."""
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
    """What the coordinator makes of a transaction that `writer` has open in a partition.

    Args:
        entry: of whoever has the producer id.
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
    # Below version 2 the pair may have been that of the transaction before. Not if there was none under this
    # pair, and not if the log says where its markers are: then this partition has its own.
    fresh = isinstance(phase, Idle) and (phase.outcome is None or bool(phase.markers))
    return Finding.FORGOTTEN if bumped or (fresh and not is_overtaken) else Finding.STRAY


def _ends(phase: Decided, writer: Identity, bumped: bool) -> bool:
    """Whether the markers are for what `writer` wrote. Below version 2 a fence alone has the next epoch."""
    before = phase.marker.epoch - writer.epoch
    return writer.producer_id == phase.marker.producer_id and before in ((1,) if bumped else (0, 1))


def find_lost_marker(
    partition: TopicPartition, log_end_offset: Offset, ended: Sequence[Decision], stands: Finding
) -> Decision | None:
    """The end whose marker this partition has lost: the first of those that were beyond its end.

    Where the log does not say where the marker was, it is a lost one only if nothing else explains what is
    open: below version 2 the same pair may have begun another transaction.
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
    # An administrator's marker may have any epoch, and says nothing about the transaction as a whole.
    forced = {note.partition for note in entry.forced if note.cause is ForcedCause.MARKER}
    witnesses: tuple[TopicPartition, ...] = ()
    if isinstance(entry.phase, Ongoing) or (isinstance(entry.phase, Idle) and forgotten):
        bumped = entry.transaction_version >= EPOCH_BUMP_VERSION
        witnesses = tuple(at for at in _after(sightings, writer) if bumped and at not in forced)
    if witnesses:
        yield _as_id_found(Finding.DECISION_LOST, entry, witnesses)
    # An end that is decided again moves the client by one, to the pair that the marker has been seen with.
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
    """NEW_PRODUCER_ID: whoever has the id's pair is fenced, what is open stays in doubt.

    Refused where the finalized version has no room for a client apart from its transaction; that is then
    ended by its client or by time.
    """
    idle, version = isinstance(entry.phase, Idle), env.config.transaction_version
    if not idle and version < EPOCH_BUMP_VERSION:
        return Reject(
            ErrorCode.UNSUPPORTED_VERSION, f"a transaction is open, transaction.version is {version}"
        )
    after = replace(entry, client=first_pair(env.spare_id), superseded=None, updated_ms=env.now_ms)
    stored = EntryStored(entry=replace(after, phase=Idle()) if idle else after)
    return Step(append=(stored,), then_apply=(stored,), then_reply=DONE, used_spare=True)
