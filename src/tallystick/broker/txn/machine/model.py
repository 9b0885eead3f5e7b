"""State that the coordinator keeps for a transactional id. Values only.

A transaction has two identities (producer id and epoch), which are never merged:

    writer   writes the data of the open transaction; its markers carry the next epoch (KIP-890)
    client   the only identity from which the next request is accepted

They are the same until InitProducerId keeps a transaction for a new incarnation of its client (KIP-939):
then `client` moves ahead, once more for each further incarnation, and `writer` stays, because the data in
the partitions must keep matching its markers, and the token in an external database must keep naming it.

An id is in one of these phases. Kafka's names for them are in `TxnState`; the log has those.

    Idle      nothing is open: Empty after InitProducerId, CompleteCommit or CompleteAbort after an end
    Ongoing   data may be written; in doubt, if its client has prepared it: the broker cannot tell
    Decided   PrepareCommit or PrepareAbort: the outcome is durable and markers are in flight

    Idle ------- AddPartitions, or the first record --------------------> Ongoing
    Ongoing ---- EndTxn; InitProducerId without keep; timeout ----------> Decided
    Idle ------- EndTxn abort with nothing written (version 2 only) ----> Decided, and immediately Idle
    Decided ---- every partition has its marker ------------------------> Idle
    Idle ------- InitProducerId ----------------------------------------> Idle (Empty)
    Idle ------- unused for transactional.id.expiration.ms -------------> gone

Kafka's PrepareEpochFence has no counterpart: fencing and the abort it leads to are one step here.

Sources: KIP-98, KIP-360 (the owner may ask for the next epoch), KIP-890 (epoch and end), KIP-939 (keep).
"""

from collections.abc import Mapping
from enum import Enum, IntEnum
from types import MappingProxyType
from typing import ClassVar, Final

from msgspec import field

from tallystick.kernel.ids import (
    EPOCH_BUMP_VERSION,
    Offset,
    ProducerIdAndEpoch,
    TimestampMs,
    TopicPartition,
    TransactionalId,
)
from tallystick.kernel.value import Value

FORCED_OUTCOMES_MAX: Final = 8


class TxnState(IntEnum):
    """Kafka's states, with their numbers in the log."""

    EMPTY = 0
    ONGOING = 1
    PREPARE_COMMIT = 2
    PREPARE_ABORT = 3
    COMPLETE_COMMIT = 4
    COMPLETE_ABORT = 5
    DEAD = 6  # in Kafka's memory only: an id that is being removed
    PREPARE_EPOCH_FENCE = 7  # in Kafka's memory only

    @property
    def label(self) -> str:
        """Name of the state in DescribeTransactions and in the tools."""
        return _LABELS[self]


# ListTransactions writes one for each transactional id: computing them once saves a third of its work.
_LABELS: Final = MappingProxyType(
    {state: "".join(word.capitalize() for word in state.name.split("_")) for state in TxnState}
)


class TransactionResult(Enum):
    COMMIT = "commit"
    ABORT = "abort"


class ForcedCause(IntEnum):
    """Causes for which a transaction ends without its client's request; the numbers are in the log."""

    TERMINATED = 1  # InitProducerId without keep: forceTerminateTransaction, or a client that started over
    TIMED_OUT = 2  # transaction.timeout.ms
    MARKER = 3  # an administrator wrote an ABORT marker into a partition of an open transaction


class TxnForcedOutcome(Value, kw_only=True):
    """A heuristic decision: the transaction named by `writer` was aborted, and not by its client.

    partition  for MARKER the one partition the marker went to; the rest of the transaction is not ended
    """

    writer: ProducerIdAndEpoch
    cause: ForcedCause
    at_ms: TimestampMs
    partition: TopicPartition | None = None


Partitions = frozenset[TopicPartition]
NO_PARTITIONS: Final[Partitions] = frozenset()


class IdlePhase(Value, kw_only=True):
    """No transaction is open.

    outcome         how the last transaction ended; None: Empty
    started_ms      when that one had begun
    marker_offsets  offsets of its markers; known only where a power loss could take them back (flush.policy)
    """

    outcome: TransactionResult | None = None
    started_ms: TimestampMs | None = None
    marker_offsets: Mapping[TopicPartition, Offset] = field(default_factory=lambda: MappingProxyType({}))

    @property
    def state(self) -> TxnState:
        """Kafka's name for the phase."""
        outcome = self.outcome
        if outcome is None:
            return TxnState.EMPTY
        return TxnState.COMPLETE_COMMIT if outcome is TransactionResult.COMMIT else TxnState.COMPLETE_ABORT


class OngoingPhase(Value, kw_only=True):
    """A transaction is open.

    timeout_ms  of this transaction, counted from `started_ms`; None: two-phase commit, it never times out
    """

    writer: ProducerIdAndEpoch
    partitions: Partitions
    started_ms: TimestampMs
    timeout_ms: int | None

    state: ClassVar[TxnState] = TxnState.ONGOING


class DecidedPhase(Value, kw_only=True):
    """The outcome is durable.

    marker_identity  identity of the markers: under version 2 the writer with the next epoch
    partitions       of the transaction, as in the log
    marker_offsets   offsets of markers already written; in memory alone, a restart sends all of them again
    """

    outcome: TransactionResult
    marker_identity: ProducerIdAndEpoch
    partitions: Partitions
    started_ms: TimestampMs
    timeout_ms: int | None
    marker_offsets: Mapping[TopicPartition, Offset | None] = field(
        default_factory=lambda: MappingProxyType({})
    )

    @property
    def state(self) -> TxnState:
        """Kafka's name for the phase."""
        is_commit = self.outcome is TransactionResult.COMMIT
        return TxnState.PREPARE_COMMIT if is_commit else TxnState.PREPARE_ABORT

    @property
    def unmarked_partitions(self) -> Partitions:
        return self.partitions - self.marker_offsets.keys()


TxnPhase = IdlePhase | OngoingPhase | DecidedPhase


class TxnEntry(Value, kw_only=True):
    """State of one transactional id.

    client               identity whose next request is accepted; while Decided, once that is over
    previous_identity    identity whose retry is answered with `client`: the previous one of the owner of
                         `client`. None when another client took over: a former incarnation must not
                         learn the new epoch (KIP-360)
    timeout_ms           for the transactions `client` begins; None: two-phase commit (KIP-939)
    transaction_version  the protocol of the open transaction, else of the last one: 0, 1 or 2
    forced_outcomes      the last FORCED_OUTCOMES_MAX heuristic decisions, oldest first
    """

    transactional_id: TransactionalId
    phase: TxnPhase
    client: ProducerIdAndEpoch
    previous_identity: ProducerIdAndEpoch | None
    timeout_ms: int | None
    transaction_version: int
    updated_ms: TimestampMs
    forced_outcomes: tuple[TxnForcedOutcome, ...] = ()

    @property
    def state(self) -> TxnState:
        return self.phase.state

    @property
    def is_kept(self) -> bool:
        """Whether a transaction is open whose client has been replaced since it wrote."""
        return isinstance(self.phase, OngoingPhase) and self.phase.writer != self.client

    @property
    def is_two_phase(self) -> bool:
        """Whether a transaction is open that only an external decision ends."""
        return isinstance(self.phase, OngoingPhase) and self.phase.timeout_ms is None

    def is_current_transaction(self, writer: ProducerIdAndEpoch, partition: TopicPartition) -> bool:
        """Return whether `writer`'s open transaction in a partition is the present one."""
        match self.phase:
            case OngoingPhase(writer=present, partitions=partitions):
                same = writer.epoch == present.epoch
            case DecidedPhase(marker_identity=marker, partitions=partitions):
                same = 0 <= marker.epoch - writer.epoch <= 1  # under version 2 the marker is ahead by one
            case _:
                return False
        return same and partition in partitions

    @property
    def described_identity(self) -> ProducerIdAndEpoch:
        """Identity in Describe- and ListTransactions: the one that is in the partitions (KIP-939)."""
        phase = self.phase
        if isinstance(phase, IdlePhase):
            return self.client
        return phase.writer if isinstance(phase, OngoingPhase) else phase.marker_identity


# Valid previous states of each state, once an id exists [TXN-3].
PREVIOUS_STATES: Final[Mapping[TxnState, frozenset[TxnState]]] = MappingProxyType(
    {
        TxnState.EMPTY: frozenset({TxnState.EMPTY, TxnState.COMPLETE_COMMIT, TxnState.COMPLETE_ABORT}),
        TxnState.ONGOING: frozenset(
            {TxnState.ONGOING, TxnState.EMPTY, TxnState.COMPLETE_COMMIT, TxnState.COMPLETE_ABORT}
        ),
        # After itself: an administrator's marker is noted. Kafka writes no such record, and accepts it.
        TxnState.PREPARE_COMMIT: frozenset({TxnState.ONGOING, TxnState.PREPARE_COMMIT}),
        TxnState.PREPARE_ABORT: frozenset(
            {TxnState.ONGOING, TxnState.EMPTY, TxnState.COMPLETE_COMMIT, TxnState.COMPLETE_ABORT}
        ),
        TxnState.COMPLETE_COMMIT: frozenset({TxnState.PREPARE_COMMIT}),
        TxnState.COMPLETE_ABORT: frozenset({TxnState.PREPARE_ABORT}),
    }
)


class TxnConfig(Value, kw_only=True):
    """Settings of the transaction coordinator, with Kafka's names and defaults.

    transaction_version                    the finalized level of the feature: 0, 1 or 2
    remember_marker_offsets                keep `IdlePhase.marker_offsets`; for flush policies that may lose
    them
    """

    transaction_max_timeout_ms: int = 900_000
    transaction_two_phase_commit_enable: bool = False
    transactional_id_expiration_ms: int = 604_800_000
    transaction_version: int = EPOCH_BUMP_VERSION
    remember_marker_offsets: bool = False


def is_timed_out(entry: TxnEntry, now_ms: TimestampMs) -> bool:
    """Return whether the transaction is past its timeout; never true with two-phase commit [TXN-7]."""
    phase = entry.phase
    # KIP-939: with two-phase commit only the client, or an operator, decides; there is no timeout.
    if not isinstance(phase, OngoingPhase) or phase.timeout_ms is None:
        return False
    return phase.started_ms + phase.timeout_ms < now_ms


def is_expired(entry: TxnEntry, now_ms: TimestampMs, config: TxnConfig) -> bool:
    """Return whether the id has been unused for transactional.id.expiration.ms."""
    # KIP-98: an id with an open or decided transaction never expires, as its outcome would be lost.
    return isinstance(entry.phase, IdlePhase) and (
        entry.updated_ms <= now_ms - config.transactional_id_expiration_ms
    )
