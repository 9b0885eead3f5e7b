"""Before the first batch of a transaction enters a partition, the transaction coordinator is asked.

A partition that opened a transaction the coordinator does not know of would never see a marker for it, and
its last stable offset would stand still for ever (KAFKA-14402). So whoever appends the first batch

    1. takes the partition's guard, which says that a question is on its way;
    2. asks: the newer protocol has the coordinator add the partition, the older one has it look whether the
       client did so itself (KIP-890 parts 2 and 1);
    3. shows the guard to the log, which takes it if nothing happened in between: a marker makes it void.

A batch of a transaction that is open in its partition, at the same epoch, is not asked about.

Batches of one producer enter a partition in the order they came in: a `Turn` is a batch's place behind
those that still wait for their answer.

Source: KIP-890; AddPartitionsToTxnManager, ReplicaManager.handleProduceAppend.
"""

import asyncio
from collections.abc import Mapping
from typing import Final

from tallystick.broker.broker import Broker
from tallystick.broker.partitions.partition import Partition
from tallystick.broker.txn.machine.commands import AddImplicitly, Answer, PerPartition, VerifyPartitions
from tallystick.kernel.codes import ErrorCode
from tallystick.kernel.errors import Reject
from tallystick.kernel.ids import Identity, ProducerEpoch, ProducerId, TopicPartition, TransactionalId
from tallystick.kernel.value import frozen
from tallystick.protocol.records import BatchHeader
from tallystick.storage.log import NO_GUARD, TxnGuard
from tallystick.storage.producers import Verification

_FOR_GOOD: Final = frozenset({ErrorCode.INVALID_PRODUCER_ID_MAPPING, ErrorCode.INVALID_PRODUCER_EPOCH})


@frozen(kw_only=True)
class Asker:
    """Who writes, and what their version of the protocol has room for.

    implicit         the partition is added on the client's behalf: Produce 12+, TxnOffsetCommit 5+
    knows_abortable  the client understands TRANSACTION_ABORTABLE: Produce 11+, TxnOffsetCommit 4+
    """

    transactional_id: TransactionalId
    implicit: bool
    knows_abortable: bool = True


class Turn:
    """A batch's place in its partition, behind earlier ones of the same producer."""

    __slots__ = ("_ahead", "_left", "_line", "_producer_id")

    def __init__(self, partition: Partition, producer_id: int) -> None:
        self._line = partition.lines
        self._producer_id = producer_id
        self._ahead = self._line.get(producer_id)
        self._left: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._line[producer_id] = self._left

    @property
    def has_come(self) -> bool:
        return self._ahead is None or self._ahead.done()

    async def come(self) -> None:
        """Wait until everyone ahead has left."""
        if self._ahead is not None:
            await asyncio.wait((self._ahead,))

    def leave(self) -> None:
        """The batch is in the log, or will not be: whoever is behind may go, after all who are ahead."""
        if self._ahead is not None and not self._ahead.done():
            self._ahead.add_done_callback(lambda _: self._step_out())
        else:
            self._step_out()

    def _step_out(self) -> None:
        if not self._left.done():
            self._left.set_result(None)
            if self._line.get(self._producer_id) is self._left:
                del self._line[self._producer_id]


def begin(
    broker: Broker, partition: Partition, header: BatchHeader, *, implicit: bool
) -> Verification | Reject | None:
    """The guard to ask with; None where nothing needs to be asked: the transaction is open here, or the
    client is an older one and `transaction.partition.verification.enable` is off.

    Rejects with INVALID_PRODUCER_EPOCH.
    """
    if implicit or partition.log.config.verification_required:
        verification = partition.begin_verification(header, supports_epoch_bump=implicit)
        if verification is not None:
            return verification
    return refuse_replaced(broker, header)


def refuse_replaced(broker: Broker, header: BatchHeader) -> Reject | None:
    """A transaction that was kept takes no more data from its writer [TXN-13].

    KIP-939 fences the old incarnation of a client at the coordinator alone: partitions that have its
    transaction open go on taking its batches, which are then committed although they were written after the
    client prepared. One process is both here, so the partition can know (docs/adr/0018). Asked at the last
    moment: what waited may have been replaced meanwhile.
    """
    entry = broker.transactions.find_writer(ProducerId(header.producer_id))
    if entry is None or not entry.is_kept or entry.shown.epoch != header.producer_epoch:
        return None
    return Reject(
        ErrorCode.INVALID_PRODUCER_EPOCH,
        f"{entry.transactional_id!r} kept the transaction of {entry.shown} for {entry.client}",
    )


def refuse_borrowed(broker: Broker, header: BatchHeader) -> Reject | None:
    """A batch outside of transactions, under a producer id that the coordinator gave to a transactional id.

    No client of that id sends one: without a transaction it refuses to write. Kafka takes it, and whoever
    guesses the number fences the owner from the partition. Here the comparison after a crash would conclude
    more from it, that a decision was lost (`txn/machine/consistency.py`).
    """
    entry = broker.transactions.find_writer(ProducerId(header.producer_id))
    if entry is None:
        return None
    return Reject(
        ErrorCode.INVALID_TXN_STATE,
        f"producer id {header.producer_id} is that of {entry.transactional_id!r}: it writes in transactions",
    )


def ask(
    broker: Broker, asker: Asker, identity: Identity, partitions: frozenset[TopicPartition]
) -> asyncio.Future[Answer]:
    """Have the coordinator add the partitions to the transaction, or say whether it includes them.

    One command for all of them, which is one append at most. The coordinator answers in bounded time, and
    at once where it need not wait for the disk; `refusals` reads the answer.
    """
    command = AddImplicitly if asker.implicit else VerifyPartitions
    return broker.transactions.submit(
        asker.transactional_id, command(identity=identity, partitions=partitions)
    )


def refusals(
    answer: Answer, asker: Asker, partitions: frozenset[TopicPartition]
) -> Mapping[TopicPartition, Reject]:
    """The partitions refused, with codes as producers know them: INVALID_PRODUCER_EPOCH,
    INVALID_PRODUCER_ID_MAPPING, INVALID_TXN_STATE, TRANSACTION_ABORTABLE, CONCURRENT_TRANSACTIONS, and
    those of a coordinator that is not ready.
    """
    if isinstance(answer, Reject):
        return dict.fromkeys(partitions, _translated(answer, asker))
    if isinstance(answer, PerPartition):
        return {
            partition: _translated(Reject(code, f"the transaction does not include {partition}"), asker)
            for partition, code in answer.refused.items()
        }
    return {}


def _translated(refused: Reject, asker: Asker) -> Reject:
    """Source: AddPartitionsToTxnHandler. A fenced producer hears INVALID_PRODUCER_EPOCH from partition
    leaders, after which it may abort and go on (KAFKA-10687)."""
    match refused.code:
        case ErrorCode.PRODUCER_FENCED:
            return Reject(ErrorCode.INVALID_PRODUCER_EPOCH, refused.reason)
        case ErrorCode.TRANSACTION_ABORTABLE if not asker.knows_abortable:
            return Reject(ErrorCode.INVALID_TXN_STATE, refused.reason)
    return refused


async def open_transaction(
    broker: Broker,
    partition: Partition,
    header: BatchHeader,
    *,
    transactional_id: TransactionalId,
    implicit: bool,
    knows_abortable: bool = True,
) -> TxnGuard | Reject:
    """See to it that a batch may open its transaction in one partition; what to append it with.

    Args: as in `Asker`.
    Rejects with: as `refusals`.
    """
    asker = Asker(transactional_id=transactional_id, implicit=implicit, knows_abortable=knows_abortable)
    verification = begin(broker, partition, header, implicit=asker.implicit)
    if isinstance(verification, Reject):
        return verification
    if verification is None:
        return NO_GUARD
    name = partition.topic_partition
    answer = await ask(broker, asker, producer_of(header), frozenset({name}))
    refused = refusals(answer, asker, frozenset({name}))
    broker.metrics.verification_failures.add(by=len(refused))
    reject = refused.get(name)
    if reject is not None:
        drop_refused(partition, header, verification, reject)
        return reject
    return TxnGuard(verification)


def drop_refused(
    partition: Partition, header: BatchHeader, verification: Verification | None, refused: Reject
) -> None:
    """Keep no guard for a pair that the coordinator will never let in: anybody may make up any number.

    Of others it is kept: the lowest sequence asked for must not be overtaken, however often it is refused
    for now.
    """
    if verification is not None and refused.code in _FOR_GOOD:
        partition.log.producer_state.drop_verification(header.producer_id, verification)


def producer_of(header: BatchHeader) -> Identity:
    """Who signed a transactional batch."""
    return Identity(ProducerId(header.producer_id), ProducerEpoch(header.producer_epoch))
