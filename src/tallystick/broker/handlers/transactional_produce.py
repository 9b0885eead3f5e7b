"""Transactional batches of a Produce request: appended at once, or after asking the coordinator.

A batch is appended at once if its transaction is open in the partition; all others are appended in order
after the coordinator's answer. One command covers all partitions of a request. If the coordinator need not
wait for the disk, it answers at once, and no batch waits.

Source: KIP-890; KafkaApis.handleProduceRequest, ReplicaManager.handleProduceAppend.
"""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from tallystick.broker.broker import Broker
from tallystick.broker.handlers.verification import (
    Asker,
    Turn,
    ask,
    begin,
    drop_refused,
    producer_of,
    refusals,
    refuse_replaced,
)
from tallystick.broker.partitions.partition import Partition
from tallystick.broker.server import acl
from tallystick.broker.server.acl import Operation
from tallystick.broker.server.request_context import RequestContext
from tallystick.broker.txn.machine.commands import DONE, Answer
from tallystick.kernel.codes import ErrorCode
from tallystick.kernel.errors import Reject
from tallystick.kernel.ids import TopicPartition, TransactionalId
from tallystick.kernel.value import frozen
from tallystick.protocol.records import BatchHeader
from tallystick.storage.fs import StorageFailure
from tallystick.storage.log import NO_GUARD, AppendResult, TxnGuard
from tallystick.storage.producers import Verification

ABORTABLE_SINCE: Final = 11  # KIP-890: the client knows TRANSACTION_ABORTABLE
IMPLICIT_SINCE: Final = 12  # KIP-890: the broker adds partitions to the transaction

UNVERIFIED: Final = Reject(
    ErrorCode.NOT_ENOUGH_REPLICAS, "the transaction coordinator did not answer within the request's timeout"
)
OUT_OF_MEMORY: Final = Reject(
    ErrorCode.NOT_ENOUGH_REPLICAS,
    "the transaction coordinator must be asked first, and there is no memory to keep the batch meanwhile "
    "(queued.max.request.bytes)",
)
# A producer does not expect these codes from a partition leader. It gets NOT_ENOUGH_REPLICAS instead, after
# which it sends the batch again without refreshing its metadata.
_NOT_READY: Final = frozenset(
    {
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
        ErrorCode.NOT_COORDINATOR,
    }
)


@dataclass(slots=True)
class Pending:
    """One partition of the response; `durable` is set while its batch is not on the disk."""

    index: int
    partition: Partition | None
    result: AppendResult | Reject
    durable: "asyncio.Future[None] | None" = None


@dataclass(slots=True, kw_only=True)
class InTransaction(Pending):
    """A transactional batch until it is appended or refused.

    `records` is a view of the request, and a copy once it has to wait, because the request's buffer is
    reused.
    """

    target: Partition
    header: BatchHeader
    records: bytes | memoryview


@frozen
class _Held:
    """A batch that waits for the coordinator, or behind one that does."""

    batch: InTransaction
    verification: Verification | None
    turn: Turn


def unauthorized(reason: str) -> Reject:
    return Reject(ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED, reason)


def append_transactional(
    broker: Broker, transactional_id: str, batches: Sequence[InTransaction], context: RequestContext
) -> "Waiting | None":
    """Append or refuse the batches that need not wait, and return those that must wait, if any."""
    refused = _refusal(broker, transactional_id, batches, context)
    implicit = context.api_version >= IMPLICIT_SINCE
    held: list[tuple[InTransaction, Verification | None]] = []
    for batch in batches:
        # Checked first: a batch that can never be appended must not take memory while it waits.
        too_large = _too_large(batch)
        verification = refused or too_large or begin(broker, batch.target, batch.header, implicit=implicit)
        if isinstance(verification, Reject):
            batch.result = verification
        elif verification is None and batch.header.producer_id not in batch.target.lines:
            _append(batch, NO_GUARD)
        else:
            held.append((batch, verification))
    if not held:
        return None
    asker = Asker(
        transactional_id=TransactionalId(transactional_id),
        implicit=implicit,
        knows_abortable=context.api_version >= ABORTABLE_SINCE,
    )
    waiting = Waiting(broker, asker, held)
    if waiting.settle_now():
        return None
    if broker.request_memory.is_short_for(context.client_host):
        waiting.give_up(OUT_OF_MEMORY)
        return None
    waiting.keep(context.client_host)
    return waiting


def _too_large(batch: InTransaction) -> Reject | None:
    limit = batch.target.log.config.max_message_bytes
    if len(batch.records) <= limit:
        return None
    return Reject(
        ErrorCode.MESSAGE_TOO_LARGE,
        f"a batch of {len(batch.records)} bytes, max.message.bytes is {limit}",
    )


def _refusal(
    broker: Broker, transactional_id: str, batches: Sequence[InTransaction], context: RequestContext
) -> Reject | None:
    """Return why all transactional batches of the request are refused, or None.

    Kafka then refuses the other batches, too; no client mixes transactional batches with others.
    """
    if not broker.authorizer.allows(context, Operation.WRITE, acl.transactional_id(transactional_id)):
        return unauthorized(f"no right to write as {transactional_id!r}")
    producers = {producer_of(batch.header) for batch in batches}
    if len(producers) > 1:
        return Reject(
            ErrorCode.INVALID_PRODUCER_ID_MAPPING,
            f"one request has transactional batches of {len(producers)} producers",
        )
    return None


class Waiting:
    """Batches of one request that wait. Used once: `settle_now`, and if that fails `settle`."""

    def __init__(
        self, broker: Broker, asker: Asker, held: Sequence[tuple[InTransaction, Verification | None]]
    ) -> None:
        self._broker = broker
        self._asker = asker
        self._asked = frozenset(batch.target.topic_partition for batch, guard in held if guard is not None)
        # No question is needed if all batches merely wait behind earlier ones.
        self._answer: asyncio.Future[Answer] | None = None
        if self._asked:
            self._answer = ask(broker, asker, producer_of(held[0][0].header), self._asked)
        self._kept: tuple[str, int] | None = None  # host, bytes
        self._held = [
            _Held(batch, verification, Turn(batch.target, batch.header.producer_id))
            for batch, verification in held
        ]

    def settle_now(self) -> bool:
        """Append if the coordinator has answered and no earlier batch is waiting; return whether it did."""
        answered = self._answer is None or self._answer.done()
        if not answered or not all(held.turn.has_come for held in self._held):
            return False
        try:
            refused = self._refused(DONE if self._answer is None else self._answer.result())
            for held in self._held:
                self._append_in_turn(held, refused)
        finally:
            self._leave()
        return True

    async def settle(self, limit_s: float) -> None:
        """Append in turn when the answer arrives. A batch not appended within `limit_s` stays UNVERIFIED."""
        try:
            async with asyncio.timeout(limit_s):
                refused = self._refused(DONE if self._answer is None else await self._answer)
                for held in self._held:
                    await held.turn.come()
                    self._append_in_turn(held, refused)
        except TimeoutError:
            pass
        finally:
            self._leave()

    def keep(self, host: str) -> None:
        """Copy the records out of the request's buffer, and account their memory to that host."""
        for held in self._held:
            if isinstance(held.batch.records, memoryview):
                held.batch.records = bytes(held.batch.records)
        self._kept = (host, sum(len(held.batch.records) for held in self._held))
        self._broker.request_memory.take(*self._kept)

    def give_up(self, refused: Reject) -> None:
        """Refuse all batches now; the producer sends them again."""
        for held in self._held:
            held.batch.result = refused
        self._leave()

    def _leave(self) -> None:
        """Give up the turns and the memory of this request."""
        for held in self._held:
            held.turn.leave()
        if self._kept is not None:
            self._broker.request_memory.give(*self._kept)
            self._kept = None

    def _refused(self, answer: Answer) -> Mapping[TopicPartition, Reject]:
        found = refusals(answer, self._asker, self._asked)
        self._broker.metrics.verification_failures.add(by=len(found))
        return {partition: self._towards_producer(refused) for partition, refused in found.items()}

    def _towards_producer(self, refused: Reject) -> Reject:
        # Older clients do not know that CONCURRENT_TRANSACTIONS is retriable.
        later = refused.code in _NOT_READY or (
            refused.code is ErrorCode.CONCURRENT_TRANSACTIONS and not self._asker.implicit
        )
        return Reject(ErrorCode.NOT_ENOUGH_REPLICAS, refused.reason) if later else refused

    def _append_in_turn(self, held: _Held, refused: Mapping[TopicPartition, Reject]) -> None:
        batch = held.batch
        name = batch.target.topic_partition
        reject = refused.get(name) or refuse_replaced(self._broker, batch.header)
        if reject is not None:
            batch.result = reject
            drop_refused(batch.target, batch.header, held.verification, reject)
        elif self._broker.topics.partition(name.topic, name.partition) is not batch.target:
            batch.result = Reject(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"{name} was deleted meanwhile")
        else:
            # The state may have changed since the question: the log checks again, with the guard [PRD-7].
            _append(batch, TxnGuard(held.verification))
        held.turn.leave()


def _append(batch: InTransaction, guard: TxnGuard) -> None:
    try:
        batch.result = batch.target.append(batch.records, guard=guard)
    except StorageFailure as exc:
        batch.result = Reject(ErrorCode.KAFKA_STORAGE_ERROR, str(exc))
    if isinstance(batch.result, AppendResult):
        batch.durable = batch.target.durable(batch.result.last_offset)
