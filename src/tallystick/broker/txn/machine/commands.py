"""Commands about a transactional id, their answers, and the ordered effects between the two."""

from collections.abc import Mapping
from enum import Enum
from types import MappingProxyType
from typing import Final

from tallystick.broker.txn.machine.model import Partitions, TransactionResult, TxnConfig, TxnEntry
from tallystick.kernel.codes import ErrorCode
from tallystick.kernel.errors import Reject
from tallystick.kernel.ids import (
    EPOCH_BUMP_VERSION,
    Offset,
    ProducerId,
    ProducerIdAndEpoch,
    TimestampMs,
    TopicPartition,
    TransactionalId,
)
from tallystick.kernel.value import Value

# ---- commands


class InitProducerId(Value, kw_only=True):
    """InitProducerId with a transactional id.

    expected_identity  the producer id and epoch in the request; None: a new incarnation, which has none
                       (KIP-360)
    timeout_ms         as requested; ignored with `enable_2pc`
    """

    timeout_ms: int
    expected_identity: ProducerIdAndEpoch | None = None
    enable_2pc: bool = False
    keep_prepared: bool = False


class AddPartitions(Value, kw_only=True):
    """AddPartitionsToTxn and AddOffsetsToTxn, by the client itself.

    transaction_version  2 when the request's version says so, else 0
    """

    identity: ProducerIdAndEpoch
    partitions: Partitions
    transaction_version: int


class AddPartitionsByLeader(Value, kw_only=True):
    """A partition leader got the first batch of a transaction: Produce 12+, TxnOffsetCommit 5+ (KIP-890).

    needs_durable   False: the leader answers its client only when the record is durable, so that it may be
                    told before (`TransactionCoordinator.when_durable`; ADR 0050)
    may_be_refused  False: the data is in the partition already, and nothing else can end it [TXN-14]
    """

    identity: ProducerIdAndEpoch
    partitions: Partitions
    needs_durable: bool = True
    may_be_refused: bool = True


class VerifyPartitions(Value, kw_only=True):
    """A partition leader got a batch of an older client, and verifies its transaction (KIP-890 part 1)."""

    identity: ProducerIdAndEpoch
    partitions: Partitions


class EndTxn(Value, kw_only=True):
    """The client's decision.

    transaction_version  2 for version 5 and later of the request, else 0
    """

    identity: ProducerIdAndEpoch
    outcome: TransactionResult
    transaction_version: int


class AbortTimedOut(Value, kw_only=True):
    """The transaction is past its timeout."""


class MarkersWritten(Value, kw_only=True):
    """Markers are durable in these partitions; None: the partition is gone, there is nothing to mark."""

    marker_identity: ProducerIdAndEpoch
    offsets: Mapping[TopicPartition, Offset | None]


class RecordForcedMarker(Value, kw_only=True):
    """An administrator has ended the transaction `writer` in one partition, bypassing the coordinator."""

    writer: ProducerIdAndEpoch
    partition: TopicPartition


class RemoveExpiredId(Value, kw_only=True):
    """The id has not been used for transactional.id.expiration.ms."""


TxnCommand = (
    InitProducerId
    | AddPartitions
    | AddPartitionsByLeader
    | VerifyPartitions
    | EndTxn
    | AbortTimedOut
    | MarkersWritten
    | RecordForcedMarker
    | RemoveExpiredId
)


class PendingPolicy(Enum):
    """Treatment of a command that arrives while the id's last Step is not durable yet."""

    REFUSE = "answered CONCURRENT_TRANSACTIONS immediately"
    CHECK_IDENTITY = "a wrong pair is refused for that, a right one with CONCURRENT_TRANSACTIONS"
    DECIDE_AT_ONCE = "decided on what is durable"
    WAIT = "decided after the Step, in order"
    MERGE = "waits, and shares the next append with others of its kind"


# Source: TransactionCoordinator.handle*; VerifyOnly passes on purpose (KAFKA-14904). While Decided,
# AddPartitionsByLeader keeps waiting: markers are written by this same process, and a client of version 2
# already knows that its transaction ended (KAFKA-18575, KAFKA-18654) [TXN-5].
PENDING_POLICIES: Final[Mapping[type, PendingPolicy]] = MappingProxyType(
    {
        InitProducerId: PendingPolicy.REFUSE,
        AddPartitions: PendingPolicy.REFUSE,
        AddPartitionsByLeader: PendingPolicy.MERGE,
        VerifyPartitions: PendingPolicy.DECIDE_AT_ONCE,
        EndTxn: PendingPolicy.CHECK_IDENTITY,  # from version 2 on: REFUSE
        AbortTimedOut: PendingPolicy.WAIT,
        MarkersWritten: PendingPolicy.WAIT,
        RecordForcedMarker: PendingPolicy.WAIT,
        RemoveExpiredId: PendingPolicy.WAIT,
    }
)


def find_pending_policy(command: TxnCommand) -> PendingPolicy:
    """Return the row of the table for a command."""
    if isinstance(command, EndTxn) and command.transaction_version >= EPOCH_BUMP_VERSION:
        return PendingPolicy.REFUSE
    return PENDING_POLICIES[type(command)]


# ---- answers


class InitProducerIdResult(Value, kw_only=True):
    """`ongoing_identity`.

    The identity of the transaction that was kept, for the client to compare with its token.
    """

    client: ProducerIdAndEpoch
    ongoing_identity: ProducerIdAndEpoch | None = None


class EndTxnResult(Value, kw_only=True):
    """`client`: the producer id and epoch for the next transaction. Markers may still be in flight."""

    client: ProducerIdAndEpoch


class VerifyPartitionsResult(Value, kw_only=True):
    """Outcome of VerifyPartitions: the refused partitions and their errors."""

    errors: Mapping[TopicPartition, ErrorCode]


class TxnDone(Value, kw_only=True):
    """Success without further content."""


TxnReply = InitProducerIdResult | EndTxnResult | VerifyPartitionsResult | TxnDone
TxnAnswer = TxnReply | Reject
DONE: Final = TxnDone()

# ---- effects


class EntryStored(Value, kw_only=True):
    """A record of `__transaction_state`: the whole entry, as it is from now on."""

    entry: TxnEntry


class EntryRemoved(Value, kw_only=True):
    """A tombstone."""

    transactional_id: TransactionalId


class MarkerProgress(Value, kw_only=True):
    """Progress of a decided transaction; in memory alone."""

    marker_identity: ProducerIdAndEpoch
    offsets: Mapping[TopicPartition, Offset | None]


TxnRecord = EntryStored | EntryRemoved
TxnEvent = TxnRecord | MarkerProgress


class MarkerRequest(Value, kw_only=True):
    """Request to write an end marker to every partition; answered by MarkersWritten."""

    marker_identity: ProducerIdAndEpoch
    outcome: TransactionResult
    partitions: Partitions
    transaction_version: int


class TxnStep(Value, kw_only=True):
    """Work for the coordinator, to be done in exactly this order [TXN-1].

    records         records for `__transaction_state`, one batch; wait until they are durable
    events          every event of the step, those of `records` included, in order
    reply           the answer; a Reject here comes after a change: a fence answers
                    CONCURRENT_TRANSACTIONS, and its retry finds the transaction ended
    marker_request  markers; while they are in flight the id is Decided
    needs_durable   False: the step takes effect as soon as the log has the records, since the next one
                    follows them there. Either nothing rests on them, or who is answered waits for them
                    itself before it answers a client (`TransactionCoordinator.when_durable`)
    uses_spare_id   `TxnEnv.spare_producer_id` is taken: the next decision gets another
    may_be_refused  the Step begins something optional: its size or a full disk may keep it out of the log.
                    Whatever leads to an end must be possible [TXN-14]
    """

    records: tuple[TxnRecord, ...] = ()
    events: tuple[TxnEvent, ...] = ()
    reply: TxnAnswer
    marker_request: MarkerRequest | None = None
    needs_durable: bool = True
    uses_spare_id: bool = False
    may_be_refused: bool = False


class TxnEnv(Value, kw_only=True):
    """Inputs of a decision besides the entry: settings, time, and an unused producer id."""

    transactional_id: TransactionalId
    config: TxnConfig
    now_ms: TimestampMs
    spare_producer_id: ProducerId
