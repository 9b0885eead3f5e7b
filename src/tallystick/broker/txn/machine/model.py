"""What the coordinator knows of a transactional id. Values only.

Two identities make up a transaction, and they are never squeezed together:

    writer   signs the data of the open transaction; its markers carry the next epoch (KIP-890)
    client   the only one that may speak next

They are the same until InitProducerId keeps a transaction for a new incarnation of its client (KIP-939):
then `client` moves ahead, once more for each further incarnation, and `writer` stays, because the data in
the partitions must go on matching its markers, and the token in somebody's database must go on naming it.

An id is in one of these phases. Kafka's names for them are in `TxnState`; the log has those.

    Idle      nothing is open: Empty after InitProducerId, CompleteCommit or CompleteAbort after an end
    Ongoing   data may be written; in doubt, if its client has prepared it: the broker cannot tell
    Decided   PrepareCommit or PrepareAbort: the outcome is durable and markers are on their way

    Idle ------- AddPartitions, or the first record --------------------> Ongoing
    Ongoing ---- EndTxn; InitProducerId without keep; time is up -------> Decided
    Idle ------- EndTxn abort with nothing written (version 2 only) ----> Decided, and at once Idle
    Decided ---- every partition has its marker ------------------------> Idle
    Idle ------- InitProducerId ----------------------------------------> Idle (Empty)
    Idle ------- nothing for transactional.id.expiration.ms ------------> gone

Kafka's PrepareEpochFence has no counterpart: fencing and the abort it leads to are one step here.

Sources: KIP-98, KIP-360 (the owner may ask for the next epoch), KIP-890 (epoch and end), KIP-939 (keep).
"""

from collections.abc import Mapping
from dataclasses import field
from enum import Enum, IntEnum
from types import MappingProxyType
from typing import Final

from tallystick.kernel.ids import Identity, Offset, TimestampMs, TopicPartition, TransactionalId
from tallystick.kernel.value import frozen

# From this transaction version on every end moves the epoch, so that a pair names one transaction (KIP-890).
EPOCH_BUMP_VERSION: Final = 2

FORCED_OUTCOMES_KEPT: Final = 8


class TxnState(IntEnum):
    """Kafka's states, with the numbers they have in the log."""

    EMPTY = 0
    ONGOING = 1
    PREPARE_COMMIT = 2
    PREPARE_ABORT = 3
    COMPLETE_COMMIT = 4
    COMPLETE_ABORT = 5
    DEAD = 6  # in Kafka's memory only: an id on its way out
    PREPARE_EPOCH_FENCE = 7  # in Kafka's memory only

    @property
    def label(self) -> str:
        """As DescribeTransactions and the tools write it."""
        return _LABELS[self]


# ListTransactions writes one a transactional id: made once, it is a third of the work less.
_LABELS: Final = MappingProxyType(
    {state: "".join(word.capitalize() for word in state.name.split("_")) for state in TxnState}
)


class Outcome(Enum):
    COMMIT = "commit"
    ABORT = "abort"


class ForcedCause(IntEnum):
    """Who ended a transaction without its client having asked for that; the numbers are in the log."""

    TERMINATED = 1  # InitProducerId without keep: forceTerminateTransaction, or a client that started over
    TIMED_OUT = 2  # transaction.timeout.ms
    MARKER = 3  # an administrator wrote an ABORT marker into a partition of an open transaction


@frozen(kw_only=True)
class ForcedOutcome:
    """A heuristic decision: the transaction that `writer` names was aborted, and not by its client.

    partition  for MARKER the one partition the marker went to; the rest of the transaction is not ended
    """

    writer: Identity
    cause: ForcedCause
    at_ms: TimestampMs
    partition: TopicPartition | None = None


Partitions = frozenset[TopicPartition]
NO_PARTITIONS: Final[Partitions] = frozenset()


@frozen(kw_only=True)
class Idle:
    """Nothing is open.

    outcome     how the last transaction ended; None: Empty
    started_ms  when that one had begun
    markers     where its markers are; known only where a power loss could take them back (flush.policy)
    """

    outcome: Outcome | None = None
    started_ms: TimestampMs | None = None
    markers: Mapping[TopicPartition, Offset] = field(default_factory=lambda: MappingProxyType({}))


@frozen(kw_only=True)
class Ongoing:
    """A transaction is open.

    timeout_ms  of this transaction, from `started_ms` on; None: two-phase commit, it never times out
    """

    writer: Identity
    partitions: Partitions
    started_ms: TimestampMs
    timeout_ms: int | None


@frozen(kw_only=True)
class Decided:
    """The outcome is durable.

    marker      signs the markers: under version 2 the writer with the next epoch
    partitions  of the transaction, as the log has them
    written     where markers are already; in memory alone, a restart sends all of them again
    """

    outcome: Outcome
    marker: Identity
    partitions: Partitions
    started_ms: TimestampMs
    timeout_ms: int | None
    written: Mapping[TopicPartition, Offset | None] = field(default_factory=lambda: MappingProxyType({}))

    @property
    def unmarked(self) -> Partitions:
        return self.partitions - self.written.keys()


Phase = Idle | Ongoing | Decided


@frozen(kw_only=True)
class TxnEntry:
    """One transactional id.

    client               who may speak next; while Decided, as soon as that is over
    superseded           whose repeated request is answered with `client`: what the owner of `client` was
                         called before. None when somebody else took over: a former incarnation must not
                         be told the new pair (KIP-360)
    timeout_ms           for the transactions `client` begins; None: two-phase commit (KIP-939)
    transaction_version  the protocol of the open transaction, else of the last one: 0, 1 or 2
    forced               the last FORCED_OUTCOMES_KEPT heuristic decisions, oldest first
    """

    transactional_id: TransactionalId
    phase: Phase
    client: Identity
    superseded: Identity | None
    timeout_ms: int | None
    transaction_version: int
    updated_ms: TimestampMs
    forced: tuple[ForcedOutcome, ...] = ()

    @property
    def state(self) -> TxnState:
        match self.phase:
            case Idle(outcome=None):
                return TxnState.EMPTY
            case Idle(outcome=Outcome.COMMIT):
                return TxnState.COMPLETE_COMMIT
            case Idle():
                return TxnState.COMPLETE_ABORT
            case Ongoing():
                return TxnState.ONGOING
            case Decided(outcome=Outcome.COMMIT):
                return TxnState.PREPARE_COMMIT
            case _:
                return TxnState.PREPARE_ABORT

    @property
    def is_kept(self) -> bool:
        """Open, and its client has been replaced since it wrote."""
        return isinstance(self.phase, Ongoing) and self.phase.writer != self.client

    @property
    def is_two_phase(self) -> bool:
        """Open, and only a decision from outside ends it."""
        return isinstance(self.phase, Ongoing) and self.phase.timeout_ms is None

    def will_end(self, writer: Identity, partition: TopicPartition) -> bool:
        """Whether what `writer` has open in a partition is the present transaction."""
        match self.phase:
            case Ongoing(writer=present, partitions=partitions):
                same = writer.epoch == present.epoch
            case Decided(marker=marker, partitions=partitions):
                same = 0 <= marker.epoch - writer.epoch <= 1  # under transaction version 2 it is ahead by one
            case _:
                return False
        return same and partition in partitions

    @property
    def shown(self) -> Identity:
        """The pair of Describe- and ListTransactions: the one that is in the partitions (KIP-939)."""
        match self.phase:
            case Ongoing(writer=writer):
                return writer
            case Decided(marker=marker):
                return marker
            case Idle():
                return self.client


# Which states may come before, where an id has been seen before [TXN-3].
PREVIOUS_STATES: Final[Mapping[TxnState, frozenset[TxnState]]] = MappingProxyType(
    {
        TxnState.EMPTY: frozenset({TxnState.EMPTY, TxnState.COMPLETE_COMMIT, TxnState.COMPLETE_ABORT}),
        TxnState.ONGOING: frozenset(
            {TxnState.ONGOING, TxnState.EMPTY, TxnState.COMPLETE_COMMIT, TxnState.COMPLETE_ABORT}
        ),
        # After itself: somebody's marker is noted. Kafka has no such record, and minds none.
        TxnState.PREPARE_COMMIT: frozenset({TxnState.ONGOING, TxnState.PREPARE_COMMIT}),
        TxnState.PREPARE_ABORT: frozenset(
            {TxnState.ONGOING, TxnState.EMPTY, TxnState.COMPLETE_COMMIT, TxnState.COMPLETE_ABORT}
        ),
        TxnState.COMPLETE_COMMIT: frozenset({TxnState.PREPARE_COMMIT}),
        TxnState.COMPLETE_ABORT: frozenset({TxnState.PREPARE_ABORT}),
    }
)


@frozen(kw_only=True)
class TxnConfig:
    """Settings of the transaction coordinator, Kafka's names and defaults.

    transaction_version                    the finalized level of the feature: 0, 1 or 2
    remember_marker_offsets                keep `Idle.markers`; for durabilities that may lose them
    """

    transaction_max_timeout_ms: int = 900_000
    transaction_two_phase_commit_enable: bool = False
    transactional_id_expiration_ms: int = 604_800_000
    transaction_version: int = EPOCH_BUMP_VERSION
    remember_marker_offsets: bool = False
