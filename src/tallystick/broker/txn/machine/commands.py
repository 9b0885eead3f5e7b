"""Commands about a transactional id, their answers, and the ordered effects between the two."""

from collections.abc import Mapping
from enum import Enum
from types import MappingProxyType
from typing import Final

from tallystick.broker.txn.machine.model import Outcome, Partitions, TxnConfig, TxnEntry
from tallystick.kernel.codes import ErrorCode
from tallystick.kernel.errors import Reject
from tallystick.kernel.ids import (
    Identity,
    Offset,
    ProducerId,
    TimestampMs,
    TopicPartition,
    TransactionalId,
)
from tallystick.kernel.value import frozen

# ---- commands


@frozen(kw_only=True)
class InitProducerId:
    """InitProducerId with a transactional id.

    expected    the producer id and epoch in the request; None: a new incarnation, which has none (KIP-360)
    timeout_ms  as requested; ignored with `enable_2pc`
    """

    timeout_ms: int
    expected: Identity | None = None
    enable_2pc: bool = False
    keep_prepared: bool = False


@frozen(kw_only=True)
class AddPartitions:
    """AddPartitionsToTxn and AddOffsetsToTxn, by the client itself.

    transaction_version  2 when the request's version says so, else 0
    """

    identity: Identity
    partitions: Partitions
    transaction_version: int


@frozen(kw_only=True)
class AddImplicitly:
    """A partition leader got the first batch of a transaction: Produce 12+, TxnOffsetCommit 5+ (KIP-890)."""

    identity: Identity
    partitions: Partitions


@frozen(kw_only=True)
class VerifyPartitions:
    """A partition leader got a batch of an older client, and verifies its transaction (KIP-890 part 1)."""

    identity: Identity
    partitions: Partitions


@frozen(kw_only=True)
class EndTxn:
    """The client's decision.

    transaction_version  2 for version 5 and later of the request, else 0
    """

    identity: Identity
    outcome: Outcome
    transaction_version: int


@frozen(kw_only=True)
class TimeOut:
    """The transaction is past its timeout."""


@frozen(kw_only=True)
class MarkersWritten:
    """Markers are durable in these partitions; None: the partition is gone, there is nothing to mark."""

    marker: Identity
    offsets: Mapping[TopicPartition, Offset | None]


@frozen(kw_only=True)
class NoteForcedMarker:
    """An administrator has ended the transaction `writer` in one partition, bypassing the coordinator."""

    writer: Identity
    partition: TopicPartition


@frozen(kw_only=True)
class Expire:
    """The id has not been used for transactional.id.expiration.ms."""


Command = (
    InitProducerId
    | AddPartitions
    | AddImplicitly
    | VerifyPartitions
    | EndTxn
    | TimeOut
    | MarkersWritten
    | NoteForcedMarker
    | Expire
)


class WhilePending(Enum):
    """Treatment of a command that arrives while the id's last Step is not durable yet."""

    REFUSE = "answered CONCURRENT_TRANSACTIONS at once"
    IDENTITY_FIRST = "a wrong pair is refused for that, a right one with CONCURRENT_TRANSACTIONS"
    PASS = "decided on what is durable"
    WAIT = "decided after the Step, in order"
    MERGE = "waits, and shares the next append with others of its kind"


# Source: TransactionCoordinator.handle*; VerifyOnly passes on purpose (KAFKA-14904). While Decided,
# AddImplicitly keeps waiting: markers are written by this same process, and a client of version 2 already
# knows that its transaction ended (KAFKA-18575, KAFKA-18654) [TXN-5].
WHILE_PENDING: Final[Mapping[type, WhilePending]] = MappingProxyType(
    {
        InitProducerId: WhilePending.REFUSE,
        AddPartitions: WhilePending.REFUSE,
        AddImplicitly: WhilePending.MERGE,
        VerifyPartitions: WhilePending.PASS,
        EndTxn: WhilePending.IDENTITY_FIRST,  # from version 2 on: REFUSE
        TimeOut: WhilePending.WAIT,
        MarkersWritten: WhilePending.WAIT,
        NoteForcedMarker: WhilePending.WAIT,
        Expire: WhilePending.WAIT,
    }
)


def while_pending(command: Command) -> WhilePending:
    """Return the row of the table for a command."""
    if isinstance(command, EndTxn) and command.transaction_version >= 2:
        return WhilePending.REFUSE
    return WHILE_PENDING[type(command)]


# ---- answers


@frozen(kw_only=True)
class Initialised:
    """`ongoing`: the identity of the transaction that was kept, for the client to compare with its token."""

    client: Identity
    ongoing: Identity | None = None


@frozen(kw_only=True)
class Ended:
    """`client`: the producer id and epoch for the next transaction. Markers may still be in flight."""

    client: Identity


@frozen(kw_only=True)
class PerPartition:
    """Outcome of VerifyPartitions: the refused partitions and their errors."""

    refused: Mapping[TopicPartition, ErrorCode]


@frozen(kw_only=True)
class Done:
    """Success without further content."""


Reply = Initialised | Ended | PerPartition | Done
Answer = Reply | Reject
DONE: Final = Done()

# ---- effects


@frozen(kw_only=True)
class EntryStored:
    """A record of `__transaction_state`: the whole entry, as it is from now on."""

    entry: TxnEntry


@frozen(kw_only=True)
class EntryExpired:
    """A tombstone."""

    transactional_id: TransactionalId


@frozen(kw_only=True)
class MarkersNoted:
    """Progress of a decided transaction; in memory alone."""

    marker: Identity
    offsets: Mapping[TopicPartition, Offset | None]


TxnRecord = EntryStored | EntryExpired
Event = TxnRecord | MarkersNoted


@frozen(kw_only=True)
class SendMarkers:
    """Request to write an end marker to every partition; answered by MarkersWritten."""

    marker: Identity
    outcome: Outcome
    partitions: Partitions
    transaction_version: int


@frozen(kw_only=True)
class Step:
    """Work for the coordinator, to be done in exactly this order [TXN-1].

    append           records for `__transaction_state`, one batch; wait until they are durable
    then_apply       every event of the step, those of `append` included, in order
    then_reply       the answer; a Reject here comes after a change: a fence answers
                     CONCURRENT_TRANSACTIONS, and its retry finds the transaction ended
    then_send        markers; while they are in flight the id is Decided
    needs_durable    False: the next Step may be decided as soon as the log has the records, since it follows
                     them in the log; no answer rests on them alone
    used_spare       `Env.spare_id` is taken: the next decision gets another
    begins           the Step begins something optional: its size or a full disk may keep it out of the log.
                     Whatever leads to an end must be possible [TXN-14]
    """

    append: tuple[TxnRecord, ...] = ()
    then_apply: tuple[Event, ...] = ()
    then_reply: Answer
    then_send: SendMarkers | None = None
    needs_durable: bool = True
    used_spare: bool = False
    begins: bool = False


@frozen(kw_only=True)
class Env:
    """Inputs of a decision besides the entry: settings, time, and an unused producer id."""

    transactional_id: TransactionalId
    config: TxnConfig
    now_ms: TimestampMs
    spare_id: ProducerId
