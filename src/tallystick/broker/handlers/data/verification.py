"""Transaction verification (KIP-890): the first batch of a transaction waits for the coordinator.

A partition with an open transaction that the coordinator does not know would never get a marker, and its last
stable offset would never advance (KAFKA-14402). So before the first batch of a transaction is appended:

    1. a guard of the partition is taken, which records that a question is under way;
    2. a request to the coordinator: with the newer protocol it adds the partition, with the older one it
       verifies that the client did so itself (KIP-890 parts 2 and 1);
    3. the guard is passed to the log, which accepts it unless a marker in between made it void;
    4. a producer is answered when the data and the coordinator's record are durable; both are forced to the
       disk at the same time, where a power loss between them can be repaired (ADR 0050).

A batch whose transaction is open in its partition, at the same epoch, needs no question.

Batches of one producer are appended to a partition in the order of their arrival: an `AppendTurn` is a
batch's place behind those that still wait for their answer.

Source: KIP-890; AddPartitionsToTxnManager, ReplicaManager.handleProduceAppend.
"""

import asyncio
from collections.abc import Mapping
from typing import Final

from tallystick.broker.handlers.ports import HasTransactions, VerificationPort
from tallystick.broker.partitions.partition import Partition
from tallystick.broker.server.request_context import RequestContext
from tallystick.broker.txn.machine.commands import (
    AddPartitionsByLeader,
    TxnAnswer,
    TxnCommand,
    VerifyPartitions,
    VerifyPartitionsResult,
)
from tallystick.kernel.codes import ErrorCode
from tallystick.kernel.errors import Reject
from tallystick.kernel.ids import (
    ProducerEpoch,
    ProducerId,
    ProducerIdAndEpoch,
    TopicPartition,
    TransactionalId,
)
from tallystick.kernel.value import Value
from tallystick.protocol.records import BatchHeader
from tallystick.storage.log.log import NO_GUARD, TxnGuard
from tallystick.storage.state.producer_state import VerificationStateEntry

_PERMANENT_CODES: Final = frozenset({ErrorCode.INVALID_PRODUCER_ID_MAPPING, ErrorCode.INVALID_PRODUCER_EPOCH})


class VerificationContext(Value, kw_only=True):
    """The writer, and the capabilities of its protocol version.

    is_implicit      the partition is added on the client's behalf: Produce 12+, TxnOffsetCommit 5+
    knows_abortable  the client understands TRANSACTION_ABORTABLE: Produce 11+, TxnOffsetCommit 4+
    needs_durable    see `AddPartitionsByLeader`
    requester        for the history of the transactional id
    """

    transactional_id: TransactionalId
    is_implicit: bool
    knows_abortable: bool = True
    needs_durable: bool = True
    requester: RequestContext | None = None


class AppendTurn:
    """Place of a batch in its partition, behind earlier ones of the same producer."""

    __slots__ = ("_done_future", "_last_by_producer", "_predecessor", "_producer_id")

    def __init__(self, partition: Partition, producer_id: int) -> None:
        self._last_by_producer = partition.append_turns
        self._producer_id = producer_id
        self._predecessor = self._last_by_producer.get(producer_id)
        self._done_future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._last_by_producer[producer_id] = self._done_future

    async def wait(self) -> None:
        """Wait until all batches ahead have left."""
        if self._predecessor is not None:
            await asyncio.wait((self._predecessor,))

    def release(self) -> None:
        """Release the next batch once all batches ahead have left: this one is appended or refused."""
        if self._predecessor is not None and not self._predecessor.done():
            self._predecessor.add_done_callback(lambda _: self._finish())
        else:
            self._finish()

    def _finish(self) -> None:
        if not self._done_future.done():
            self._done_future.set_result(None)
            if self._last_by_producer.get(self._producer_id) is self._done_future:
                del self._last_by_producer[self._producer_id]


def begin_verification(
    broker: HasTransactions, partition: Partition, header: BatchHeader, *, implicit: bool
) -> VerificationStateEntry | Reject | None:
    """Return the guard to ask with, or None if no question is needed.

    No question is needed if the transaction is open here, or if the client is an older one and
    `transaction.partition.verification.enable` is off.

    Rejects with: INVALID_PRODUCER_EPOCH.
    """
    if implicit or partition.log.config.verification_required:
        verification = partition.begin_verification(header, supports_epoch_bump=implicit)
        if verification is not None:
            return verification
    return check_not_replaced(broker, header)


def check_not_replaced(broker: HasTransactions, header: BatchHeader) -> Reject | None:
    """Refuse data of the previous writer of a kept transaction [TXN-13].

    KIP-939 fences the old incarnation of a client at the coordinator alone: partitions that have its
    transaction open go on accepting its batches, which are then committed although they were written after
    the client prepared. Coordinator and partition are one process here, so the partition can know
    (docs/adr/0018). Called immediately before the append: the writer of a waiting batch may have been
    replaced meanwhile.
    """
    entry = broker.transactions.find_by_producer_id(ProducerId(header.producer_id))
    if entry is None or not entry.is_kept or entry.described_identity.epoch != header.producer_epoch:
        return None
    return Reject(
        ErrorCode.INVALID_PRODUCER_EPOCH,
        f"{entry.transactional_id!r} now belongs to {entry.client}, which keeps the transaction of"
        f" {entry.described_identity}; nothing was appended. Close this producer",
    )


def check_producer_id_owner(broker: HasTransactions, header: BatchHeader) -> Reject | None:
    """Refuse a batch outside of transactions whose producer id belongs to a transactional id.

    No client of that id sends one: it refuses to write without a transaction. Kafka accepts it, so a client
    that guesses the number fences the owner from the partition. Here the consistency check after a crash
    would even conclude that a decision was lost (`txn/machine/consistency.py`).
    """
    entry = broker.transactions.find_by_producer_id(ProducerId(header.producer_id))
    if entry is None:
        return None
    return Reject(
        ErrorCode.INVALID_TXN_STATE,
        f"producer id {header.producer_id} belongs to {entry.transactional_id!r}, which writes in"
        " transactions only; nothing was appended",
    )


def request_verification(
    broker: HasTransactions,
    verification: VerificationContext,
    identity: ProducerIdAndEpoch,
    partitions: frozenset[TopicPartition],
) -> asyncio.Future[TxnAnswer]:
    """Ask the coordinator to add the partitions to the transaction, or to verify that it includes them.

    One command, and at most one append, for all of them. The coordinator answers in bounded time, and at once
    if it need not wait for the disk; `collect_refusals` reads the answer.
    """
    command: TxnCommand = (
        AddPartitionsByLeader(
            identity=identity, partitions=partitions, needs_durable=verification.needs_durable
        )
        if verification.is_implicit
        else VerifyPartitions(identity=identity, partitions=partitions)
    )
    return broker.transactions.submit(verification.transactional_id, command, verification.requester)


def collect_refusals(
    answer: TxnAnswer, verification: VerificationContext, partitions: frozenset[TopicPartition]
) -> Mapping[TopicPartition, Reject]:
    """Return the refused partitions, with the codes that producers know.

    These are INVALID_PRODUCER_EPOCH, INVALID_PRODUCER_ID_MAPPING, INVALID_TXN_STATE, TRANSACTION_ABORTABLE,
    CONCURRENT_TRANSACTIONS, and the codes of a coordinator that is not ready.
    """
    if isinstance(answer, Reject):
        return dict.fromkeys(partitions, _translate_refusal(answer, verification))
    if isinstance(answer, VerifyPartitionsResult):
        return {
            partition: _translate_refusal(
                Reject(code, f"the transaction does not include {partition}; nothing was appended. Abort it"),
                verification,
            )
            for partition, code in answer.errors.items()
        }
    return {}


def _translate_refusal(refusal: Reject, verification: VerificationContext) -> Reject:
    """Translate a refusal for the producer.

    A fenced producer gets INVALID_PRODUCER_EPOCH from partition leaders, after which it may abort and
    continue (KAFKA-10687).

    Source: AddPartitionsToTxnHandler.
    """
    match refusal.code:
        case ErrorCode.PRODUCER_FENCED:
            return Reject(ErrorCode.INVALID_PRODUCER_EPOCH, refusal.reason)
        case ErrorCode.TRANSACTION_ABORTABLE if not verification.knows_abortable:
            return Reject(ErrorCode.INVALID_TXN_STATE, refusal.reason)
    return refusal


async def open_transaction(
    broker: VerificationPort,
    partition: Partition,
    header: BatchHeader,
    *,
    transactional_id: TransactionalId,
    implicit: bool,
    knows_abortable: bool = True,
    requester: RequestContext | None = None,
) -> TxnGuard | Reject:
    """Make sure that a batch may open its transaction in one partition, and return the guard for the append.

    Args: as in `VerificationContext`.

    Rejects with: as `collect_refusals`.
    """
    context = VerificationContext(
        transactional_id=transactional_id,
        is_implicit=implicit,
        knows_abortable=knows_abortable,
        requester=requester,
    )
    verification = begin_verification(broker, partition, header, implicit=context.is_implicit)
    if isinstance(verification, Reject):
        return verification
    if verification is None:
        return NO_GUARD
    name = partition.topic_partition
    answer = await request_verification(broker, context, get_producer(header), frozenset({name}))
    refusals = collect_refusals(answer, context, frozenset({name}))
    broker.metrics.verification_failures.add(by=len(refusals))
    reject = refusals.get(name)
    if reject is not None:
        drop_verification(partition, header, verification, reject)
        return reject
    return TxnGuard(verification)


def drop_verification(
    partition: Partition, header: BatchHeader, verification: VerificationStateEntry | None, refusal: Reject
) -> None:
    """Drop the guard if the coordinator will never accept this producer id and epoch.

    Otherwise any client could fill the memory with invented ids. After other refusals the guard stays: a
    later batch must not overtake the lowest sequence that was asked for, however often it is refused for now.
    """
    if verification is not None and refusal.code in _PERMANENT_CODES:
        partition.log.producer_state_manager.drop_verification(header.producer_id, verification)


def get_producer(header: BatchHeader) -> ProducerIdAndEpoch:
    """Return the producer id and epoch of a transactional batch."""
    return ProducerIdAndEpoch(ProducerId(header.producer_id), ProducerEpoch(header.producer_epoch))
