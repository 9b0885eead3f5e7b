"""Producer ids and epochs for the batches of a producer, and when batches may be sent.

    NoIdentity             no idempotence: no producer id
    IdempotentIdentity     a producer id from InitProducerId without a transactional id; the producer bumps
                           its epoch when a partition has lost count of its sequence (KIP-360)
    TransactionalIdentity  the producer id and epoch of the open transaction, see `txn_context`

Everything runs on the engine's loop and nothing waits: when an answer changes, the identity calls `wake`.
"""

import asyncio
from collections.abc import Callable
from typing import Final, Protocol

from tallystick.client.errors import ClientError, build_broker_error
from tallystick.client.net.cluster import Cluster
from tallystick.client.producer.sequences.in_flight import bump_epoch
from tallystick.client.producer.sequences.txn_context import TxnContext
from tallystick.kernel.ids import INT32_MAX, ProducerEpoch, ProducerId, ProducerIdAndEpoch, TopicPartition
from tallystick.protocol.messages.txn.init_producer_id import InitProducerIdRequest, InitProducerIdResponse

# KIP-890: from version 12 on, Produce adds its partition to the transaction implicitly.
_EXPLICIT_ADD_VERSION_MAX: Final = 11
_IMPLICIT_ADD_TXN_VERSION: Final = 2


class ProducerIdentity(Protocol):
    """Questions a Sender asks before it sends."""

    @property
    def transactional_id(self) -> str | None:
        """Transactional id for every Produce request; None without transactions."""

    @property
    def is_ready(self) -> bool:
        """Whether new batches may be sent."""

    @property
    def identity(self) -> ProducerIdAndEpoch | None:
        """Producer id and epoch for new batches, while ready. Another one restarts sequence numbers at 0."""

    @property
    def produce_version_max(self) -> int | None:
        """Highest Produce version allowed; None for whatever both sides support."""

    def find_fatal_error(self) -> ClientError | None:
        """Return the error if batches that were never sent can never be sent; else None."""

    def may_send_to(self, at: TopicPartition) -> bool:
        """Return whether a batch for this partition may be sent now; if not, `wake` is called when it may."""

    def note_failure(self, at: TopicPartition, error: ClientError, *, is_numbered: bool) -> None:
        """Record that a batch, with its records, failed for good.

        Args:
            is_numbered: it had sequence numbers, which may be missing at the broker now.
        """


class NoIdentity:
    """A producer without idempotence."""

    transactional_id: str | None = None
    produce_version_max: int | None = None

    @property
    def is_ready(self) -> bool:
        return True

    @property
    def identity(self) -> ProducerIdAndEpoch | None:
        return None

    def find_fatal_error(self) -> ClientError | None:
        return None

    def may_send_to(self, at: TopicPartition) -> bool:
        return True

    def note_failure(self, at: TopicPartition, error: ClientError, *, is_numbered: bool) -> None:
        """Do nothing: the delivery carries the error, and nothing else depends on it."""


class IdempotentIdentity(NoIdentity):
    """Producer id and epoch of an idempotent producer without transactions."""

    def __init__(self, cluster: Cluster, wake: Callable[[], None]) -> None:
        self._cluster, self._wake = cluster, wake
        self._identity: ProducerIdAndEpoch | None = None
        self._request_task: asyncio.Task[None] | None = None
        self._error: ClientError | None = None

    @property
    def is_ready(self) -> bool:
        """Whether there is a producer id; requests one if there is none."""
        if self._identity is None and self._request_task is None and self._error is None:
            self._request_task = asyncio.get_running_loop().create_task(self._request_producer_id())
        return self._identity is not None

    @property
    def identity(self) -> ProducerIdAndEpoch | None:
        return self._identity

    def find_fatal_error(self) -> ClientError | None:
        return self._error

    def bump_epoch(self) -> ProducerIdAndEpoch | None:
        """Move to the next epoch and return it; None if epochs are used up, and another id is requested."""
        if self._identity is not None:
            self._identity = bump_epoch(self._identity)
        return self._identity if self.is_ready else None

    def close(self) -> None:
        if self._request_task is not None:
            self._request_task.cancel()

    async def _request_producer_id(self) -> None:
        """Request a producer id until it succeeds: the batches that wait for it have their own limits."""
        cluster = self._cluster

        async def attempt() -> InitProducerIdResponse:
            request = InitProducerIdRequest(transactional_id=None, transaction_timeout_ms=INT32_MAX)
            answer = await cluster.send_to_any(request, InitProducerIdResponse)
            if answer.error_code:
                raise build_broker_error("InitProducerId", "", answer.error_code)
            return answer

        try:
            deadline = cluster.start_deadline("close", INT32_MAX)
            response = await cluster.run_with_retries("InitProducerId", "", attempt, deadline)
            self._identity = ProducerIdAndEpoch(
                ProducerId(response.producer_id), ProducerEpoch(response.producer_epoch)
            )
        except ClientError as exc:
            self._error = exc
        finally:
            self._request_task = None
            self._wake()


class TransactionalIdentity:
    """Sends what the open transaction allows."""

    def __init__(self, context: TxnContext, wake: Callable[[], None]) -> None:
        self._context, self._wake = context, wake
        self._partitions_to_add: set[TopicPartition] = set()
        self._add_task: asyncio.Task[None] | None = None

    @property
    def transactional_id(self) -> str | None:
        return self._context.transactional_id

    @property
    def is_ready(self) -> bool:
        return self._context.may_send_batches

    @property
    def identity(self) -> ProducerIdAndEpoch | None:
        return self._context.identity

    @property
    def produce_version_max(self) -> int | None:
        implicit = self._context.transaction_version >= _IMPLICIT_ADD_TXN_VERSION
        return None if implicit else _EXPLICIT_ADD_VERSION_MAX

    def find_fatal_error(self) -> ClientError | None:
        return None if self._context.may_send_batches else self._context.build_send_error()

    def may_send_to(self, at: TopicPartition) -> bool:
        if self._context.is_partition_added(at):
            return True
        self._partitions_to_add.add(at)
        if self._add_task is None:
            self._add_task = asyncio.get_running_loop().create_task(self._add_partitions())
        return False

    def note_failure(self, at: TopicPartition, error: ClientError, *, is_numbered: bool) -> None:
        self._context.note_batch_failure(at, error, is_numbered=is_numbered)

    async def _add_partitions(self) -> None:
        """Add all partitions wanted by now to the transaction in one request; repeat until none is left."""
        partitions: set[TopicPartition] = set()
        try:
            while self._partitions_to_add:
                partitions, self._partitions_to_add = self._partitions_to_add, set()
                await self._context.add_partitions(partitions)
        except ClientError as exc:
            # The transaction has failed; batches that wait for it fail with `find_fatal_error`.
            self._partitions_to_add.clear()
            if self._context.may_send_batches:
                self._context.note_batch_failure(next(iter(partitions)), exc, is_numbered=False)
        finally:
            self._add_task = None
            self._wake()
