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

from tallystick.broker.authorizer.authorizer import Operation, transactional_id_resource
from tallystick.broker.handlers.ports import ProducePort
from tallystick.broker.handlers.verification import (
    AppendTurn,
    VerificationContext,
    begin_verification,
    check_not_replaced,
    collect_refusals,
    drop_verification,
    get_producer,
    request_verification,
)
from tallystick.broker.partitions.partition import Partition
from tallystick.broker.server.request_context import RequestContext
from tallystick.broker.txn.machine.commands import DONE, TxnAnswer
from tallystick.kernel.codes import ErrorCode
from tallystick.kernel.errors import Reject
from tallystick.kernel.ids import TopicPartition, TransactionalId
from tallystick.kernel.value import Value
from tallystick.protocol.records import BatchHeader
from tallystick.storage.fs import StorageFailure
from tallystick.storage.log import NO_GUARD, AppendResult, TxnGuard
from tallystick.storage.producer_state import VerificationStateEntry

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
_COORDINATOR_NOT_READY: Final = frozenset(
    {
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
        ErrorCode.NOT_COORDINATOR,
    }
)


@dataclass(slots=True)
class ProducePartitionStatus:
    """One partition of the response; `when_durable` is set while its batch is not on the disk."""

    index: int
    partition: Partition | None
    result: AppendResult | Reject
    durable_future: "asyncio.Future[None] | None" = None


@dataclass(slots=True, kw_only=True)
class TransactionalAppend(ProducePartitionStatus):
    """A transactional batch until it is appended or refused.

    `records` is a view of the request, and a copy once it has to wait, because the request's buffer is
    reused.
    """

    target: Partition
    header: BatchHeader
    records: bytes | memoryview


class _WaitingBatch(Value):
    """A batch that waits for the coordinator, or behind one that does."""

    batch: TransactionalAppend
    verification: VerificationStateEntry | None
    turn: AppendTurn


def reject_unauthorized(reason: str) -> Reject:
    return Reject(ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED, reason)


def append_transactional(
    broker: ProducePort,
    transactional_id: str,
    batches: Sequence[TransactionalAppend],
    context: RequestContext,
) -> "WaitingBatches | None":
    """Append or refuse the batches that need not wait, and return those that must wait, if any."""
    refused = _check_request(broker, transactional_id, batches, context)
    implicit = context.api_version >= IMPLICIT_SINCE
    held: list[tuple[TransactionalAppend, VerificationStateEntry | None]] = []
    for batch in batches:
        # Checked first: a batch that can never be appended must not take memory while it waits.
        too_large = _check_size(batch)
        verification = (
            refused or too_large or begin_verification(broker, batch.target, batch.header, implicit=implicit)
        )
        if isinstance(verification, Reject):
            batch.result = verification
        elif verification is None and batch.header.producer_id not in batch.target.append_turns:
            _append(batch, NO_GUARD)
        else:
            held.append((batch, verification))
    if not held:
        return None
    asker = VerificationContext(
        transactional_id=TransactionalId(transactional_id),
        is_implicit=implicit,
        knows_abortable=context.api_version >= ABORTABLE_SINCE,
    )
    waiting = WaitingBatches(broker, asker, held)
    if waiting.try_append_now():
        return None
    if broker.request_memory.is_short_for(context.client_host):
        waiting.reject_all(OUT_OF_MEMORY)
        return None
    waiting.retain_records(context.client_host)
    return waiting


def _check_size(batch: TransactionalAppend) -> Reject | None:
    limit = batch.target.log.config.max_message_bytes
    if len(batch.records) <= limit:
        return None
    return Reject(
        ErrorCode.MESSAGE_TOO_LARGE,
        f"a batch of {len(batch.records)} bytes, max.message.bytes is {limit}",
    )


def _check_request(
    broker: ProducePort,
    transactional_id: str,
    batches: Sequence[TransactionalAppend],
    context: RequestContext,
) -> Reject | None:
    """Return why all transactional batches of the request are refused, or None.

    Kafka then refuses the other batches, too; no client mixes transactional batches with others.
    """
    if not broker.authorizer.allows(context, Operation.WRITE, transactional_id_resource(transactional_id)):
        return reject_unauthorized(f"no right to write as {transactional_id!r}")
    producers = {get_producer(batch.header) for batch in batches}
    if len(producers) > 1:
        return Reject(
            ErrorCode.INVALID_PRODUCER_ID_MAPPING,
            f"one request has transactional batches of {len(producers)} producers",
        )
    return None


class WaitingBatches:
    """Batches of one request that wait. Used once.

    `try_append_now`, and if that fails `append_when_verified`.
    """

    def __init__(
        self,
        broker: ProducePort,
        asker: VerificationContext,
        held: Sequence[tuple[TransactionalAppend, VerificationStateEntry | None]],
    ) -> None:
        self._broker = broker
        self._verification_context = asker
        self._partitions_to_verify = frozenset(
            batch.target.topic_partition for batch, guard in held if guard is not None
        )
        # No question is needed if all batches merely wait behind earlier ones.
        self._answer: asyncio.Future[TxnAnswer] | None = None
        if self._partitions_to_verify:
            self._answer = request_verification(
                broker, asker, get_producer(held[0][0].header), self._partitions_to_verify
            )
        self._memory_charge: tuple[str, int] | None = None  # host, bytes
        self._batches = [
            _WaitingBatch(batch, verification, AppendTurn(batch.target, batch.header.producer_id))
            for batch, verification in held
        ]

    def try_append_now(self) -> bool:
        """Append if the coordinator has answered and no earlier batch is waiting; return whether it did."""
        answered = self._answer is None or self._answer.done()
        if not answered or not all(held.turn.has_arrived for held in self._batches):
            return False
        try:
            refused = self._collect_refusals(DONE if self._answer is None else self._answer.result())
            for held in self._batches:
                self._append_in_turn(held, refused)
        finally:
            self._release()
        return True

    async def append_when_verified(self, limit_s: float) -> None:
        """Append in turn when the answer arrives. A batch not appended within `limit_s` stays UNVERIFIED."""
        try:
            async with asyncio.timeout(limit_s):
                refused = self._collect_refusals(DONE if self._answer is None else await self._answer)
                for held in self._batches:
                    await held.turn.wait()
                    self._append_in_turn(held, refused)
        except TimeoutError:
            pass
        finally:
            self._release()

    def retain_records(self, host: str) -> None:
        """Copy the records out of the request's buffer, and account their memory to that host."""
        for held in self._batches:
            if isinstance(held.batch.records, memoryview):
                held.batch.records = bytes(held.batch.records)
        self._memory_charge = (host, sum(len(held.batch.records) for held in self._batches))
        self._broker.request_memory.acquire(*self._memory_charge)

    def reject_all(self, refused: Reject) -> None:
        """Refuse all batches now; the producer sends them again."""
        for held in self._batches:
            held.batch.result = refused
        self._release()

    def _release(self) -> None:
        """Give up the turns and the memory of this request."""
        for held in self._batches:
            held.turn.release()
        if self._memory_charge is not None:
            self._broker.request_memory.release(*self._memory_charge)
            self._memory_charge = None

    def _collect_refusals(self, answer: TxnAnswer) -> Mapping[TopicPartition, Reject]:
        found = collect_refusals(answer, self._verification_context, self._partitions_to_verify)
        self._broker.metrics.verification_failures.add(by=len(found))
        return {partition: self._translate_for_producer(refused) for partition, refused in found.items()}

    def _translate_for_producer(self, refused: Reject) -> Reject:
        # Older clients do not know that CONCURRENT_TRANSACTIONS is retriable.
        later = refused.code in _COORDINATOR_NOT_READY or (
            refused.code is ErrorCode.CONCURRENT_TRANSACTIONS and not self._verification_context.is_implicit
        )
        return Reject(ErrorCode.NOT_ENOUGH_REPLICAS, refused.reason) if later else refused

    def _append_in_turn(self, held: _WaitingBatch, refused: Mapping[TopicPartition, Reject]) -> None:
        batch = held.batch
        name = batch.target.topic_partition
        reject = refused.get(name) or check_not_replaced(self._broker, batch.header)
        if reject is not None:
            batch.result = reject
            drop_verification(batch.target, batch.header, held.verification, reject)
        elif self._broker.topics.find_partition(name.topic, name.partition) is not batch.target:
            batch.result = Reject(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"{name} was deleted meanwhile")
        else:
            # The state may have changed since the question: the log checks again, with the guard [PRD-7].
            _append(batch, TxnGuard(held.verification))
        held.turn.release()


def _append(batch: TransactionalAppend, guard: TxnGuard) -> None:
    try:
        batch.result = batch.target.append(batch.records, guard=guard)
    except StorageFailure as exc:
        batch.result = Reject(ErrorCode.KAFKA_STORAGE_ERROR, str(exc))
    if isinstance(batch.result, AppendResult):
        batch.durable_future = batch.target.when_durable(batch.result.last_offset)
