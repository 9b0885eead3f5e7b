"""Transactional batches of a Produce request: appended immediately, or after asking the coordinator.

A batch is appended immediately if its transaction is open in the partition; all others are appended in order
after the coordinator's answer. One command covers all partitions of a request. If the coordinator need not
wait for the disk, it answers immediately, and no batch waits.

Source: KIP-890; KafkaApis.handleProduceRequest, ReplicaManager.handleProduceAppend.
"""

import asyncio
from collections.abc import Mapping, Sequence
from typing import Final

from tallystick.broker.handlers.data.produce_request import ProduceInProgress, TransactionalAppend
from tallystick.broker.handlers.data.verification import (
    AppendTurn,
    VerificationContext,
    begin_verification,
    check_not_replaced,
    collect_refusals,
    drop_verification,
    get_producer,
    request_verification,
)
from tallystick.broker.handlers.ports import ProducePort
from tallystick.broker.txn.machine.commands import DONE, TxnAnswer
from tallystick.kernel.codes import ErrorCode
from tallystick.kernel.errors import Reject
from tallystick.kernel.ids import TopicPartition, TransactionalId
from tallystick.kernel.value import Value
from tallystick.storage.disk.fs import StorageFailure
from tallystick.storage.log.log import NO_GUARD, AppendResult, TxnGuard
from tallystick.storage.state.producer_state import VerificationStateEntry

ABORTABLE_SINCE: Final = 11  # KIP-890: the client knows TRANSACTION_ABORTABLE
IMPLICIT_SINCE: Final = 12  # KIP-890: the broker adds partitions to the transaction

UNVERIFIED: Final = Reject(
    ErrorCode.NOT_ENOUGH_REPLICAS,
    "the transaction coordinator did not verify the batch within the request's timeout; nothing was"
    " appended. Retry",
)
OUT_OF_MEMORY: Final = Reject(
    ErrorCode.NOT_ENOUGH_REPLICAS,
    "the batch has to be verified first, and there is no memory to keep it meanwhile"
    " (queued.max.request.bytes); nothing was appended. Retry",
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


class _WaitingBatch(Value):
    """A batch that waits for the coordinator, or behind one that does."""

    batch: TransactionalAppend
    verification: VerificationStateEntry | None
    turn: AppendTurn


def reject_unauthorized(reason: str) -> Reject:
    return Reject(ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED, reason)


def append_transactional(broker: ProducePort, produce: ProduceInProgress) -> "WaitingBatches | None":
    """Append or refuse the batches that need not wait, and return those that must wait, if any."""
    context, batches = produce.context, produce.transactional
    refusal = _check_producers(batches)
    implicit = context.api_version >= IMPLICIT_SINCE
    guarded: list[tuple[TransactionalAppend, VerificationStateEntry | None]] = []
    for batch in batches:
        # Checked first: a batch that can never be appended must not take memory while it waits.
        too_large = _check_size(batch)
        verification = (
            refusal or too_large or begin_verification(broker, batch.target, batch.header, implicit=implicit)
        )
        if isinstance(verification, Reject):
            batch.part.result = verification
        elif verification is None and batch.header.producer_id not in batch.target.append_turns:
            _append(broker, produce, batch, NO_GUARD)
        else:
            guarded.append((batch, verification))
    if not guarded:
        return None
    verification_context = VerificationContext(
        transactional_id=_get_transactional_id(produce),
        is_implicit=implicit,
        knows_abortable=context.api_version >= ABORTABLE_SINCE,
        needs_durable=False,
        requester=context,
    )
    waiting_batches = WaitingBatches(broker, produce, verification_context, guarded)
    if waiting_batches.try_append_now():
        return None
    waiting_batches.queue_up()
    if broker.request_memory.is_short_for(context.client_host):
        waiting_batches.reject_all(OUT_OF_MEMORY)
        return None
    waiting_batches.retain_records(context.client_host)
    return waiting_batches


def _check_size(batch: TransactionalAppend) -> Reject | None:
    size, limit = len(batch.part.records), batch.target.log.config.max_message_bytes
    if size <= limit:
        return None
    return Reject(
        ErrorCode.MESSAGE_TOO_LARGE,
        f"the batch has {size} bytes, but max.message.bytes is {limit}; nothing was appended."
        " Send smaller batches or raise the limit",
    )


def _check_producers(batches: Sequence[TransactionalAppend]) -> Reject | None:
    """Return why all transactional batches of the request are refused, or None.

    Kafka then refuses the other batches, too; no client mixes transactional batches with others.
    """
    # KIP-890: the request has one transactional id, and the coordinator verifies one producer for it.
    producers = {get_producer(batch.header) for batch in batches}
    if len(producers) > 1:
        return Reject(
            ErrorCode.INVALID_PRODUCER_ID_MAPPING,
            f"the request has transactional batches of {len(producers)} producers; it may have those of one",
        )
    return None


class WaitingBatches:
    """Batches of one request that wait. Used once.

    `try_append_now`, and if that fails immediately `queue_up`, and `append_when_verified`.
    """

    def __init__(
        self,
        broker: ProducePort,
        produce: ProduceInProgress,
        verification_context: VerificationContext,
        guarded: Sequence[tuple[TransactionalAppend, VerificationStateEntry | None]],
    ) -> None:
        self._broker = broker
        self._produce = produce
        self._verification_context = verification_context
        self._partitions_to_verify = frozenset(
            batch.target.topic_partition for batch, guard in guarded if guard is not None
        )
        # No question is needed if all batches merely wait behind earlier ones.
        self._answer: asyncio.Future[TxnAnswer] | None = None
        if self._partitions_to_verify:
            self._answer = request_verification(
                broker, verification_context, get_producer(guarded[0][0].header), self._partitions_to_verify
            )
        self._memory_charge: tuple[str, int] | None = None  # host, bytes
        self._guarded = guarded
        self._batches: list[_WaitingBatch] = []

    def try_append_now(self) -> bool:
        """Append if the coordinator has answered and no earlier batch is waiting; return whether it did."""
        answer = self._answer
        if (answer is not None and not answer.done()) or any(
            batch.header.producer_id in batch.target.append_turns for batch, _ in self._guarded
        ):
            return False
        refusals = self._collect_refusals(DONE if answer is None else answer.result())
        for batch, verification in self._guarded:
            self._append_unless_refused(batch, verification, refusals)
        return True

    def queue_up(self) -> None:
        """Queue the batches behind earlier ones. Order: no await since the coordinator was asked."""
        self._batches = [
            _WaitingBatch(batch, verification, AppendTurn(batch.target, batch.header.producer_id))
            for batch, verification in self._guarded
        ]

    async def append_when_verified(self, limit_s: float) -> None:
        """Append in turn when the answer arrives. A batch not appended within `limit_s` stays UNVERIFIED."""
        try:
            async with asyncio.timeout(limit_s):
                refusals = self._collect_refusals(DONE if self._answer is None else await self._answer)
                for entry in self._batches:
                    await entry.turn.wait()
                    self._append_unless_refused(entry.batch, entry.verification, refusals)
                    entry.turn.release()
        except TimeoutError:
            pass
        finally:
            self._release()

    def retain_records(self, host: str) -> None:
        """Copy the records out of the request's buffer, and account their memory to that host."""
        for entry in self._batches:
            part = entry.batch.part
            if isinstance(part.records, memoryview):
                part.records = bytes(part.records)
        self._memory_charge = (host, sum(len(entry.batch.part.records) for entry in self._batches))
        self._broker.request_memory.acquire(*self._memory_charge)

    def reject_all(self, refusal: Reject) -> None:
        """Refuse all batches now; the producer sends them again."""
        for entry in self._batches:
            entry.batch.part.result = refusal
        self._release()

    def _release(self) -> None:
        """Give up the turns and the memory of this request."""
        for entry in self._batches:
            entry.turn.release()
        if self._memory_charge is not None:
            self._broker.request_memory.release(*self._memory_charge)
            self._memory_charge = None

    def _collect_refusals(self, answer: TxnAnswer) -> Mapping[TopicPartition, Reject]:
        refusals = collect_refusals(answer, self._verification_context, self._partitions_to_verify)
        if not refusals:
            return refusals
        self._broker.metrics.verification_failures.add(by=len(refusals))
        return {partition: self._translate_for_producer(refusal) for partition, refusal in refusals.items()}

    def _translate_for_producer(self, refusal: Reject) -> Reject:
        # Older clients do not know that CONCURRENT_TRANSACTIONS is retriable.
        later = refusal.code in _COORDINATOR_NOT_READY or (
            refusal.code is ErrorCode.CONCURRENT_TRANSACTIONS and not self._verification_context.is_implicit
        )
        return Reject(ErrorCode.NOT_ENOUGH_REPLICAS, refusal.reason) if later else refusal

    def _append_unless_refused(
        self,
        batch: TransactionalAppend,
        verification: VerificationStateEntry | None,
        refusals: Mapping[TopicPartition, Reject],
    ) -> None:
        name = batch.target.topic_partition
        reject = refusals.get(name) or check_not_replaced(self._broker, batch.header)
        if reject is not None:
            batch.part.result = reject
            drop_verification(batch.target, batch.header, verification, reject)
        elif self._broker.topics.find_partition(name.topic, name.partition) is not batch.target:
            batch.part.result = Reject(
                ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
                f"{name} was deleted while the batch was verified; nothing was appended",
            )
        else:
            # The state may have changed since the question: the log checks again, with the guard [PRD-7].
            _append(self._broker, self._produce, batch, TxnGuard(verification))


def _append(
    broker: ProducePort, produce: ProduceInProgress, batch: TransactionalAppend, guard: TxnGuard
) -> None:
    part, partition = batch.part, batch.target
    try:
        part.result = result = partition.append(part.records, guard=guard)
    except StorageFailure as exc:
        part.result = Reject(ErrorCode.KAFKA_STORAGE_ERROR, str(exc))
        return
    if isinstance(result, AppendResult):
        produce.add_unfinished(part, partition.when_durable(result.last_offset))
        # The record that adds the partition, also where an earlier batch caused it.
        produce.add_unfinished(part, broker.transactions.when_durable(_get_transactional_id(produce)))


def _get_transactional_id(produce: ProduceInProgress) -> TransactionalId:
    """Return the id of a request with transactional batches, which are refused without one."""
    return TransactionalId(produce.request.transactional_id or "")
