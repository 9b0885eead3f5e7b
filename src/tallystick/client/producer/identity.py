"""Producer ids and epochs for the batches of a producer, and when batches may be sent.

    Unsigned         no idempotence: no producer id
    OwnIdentity      a producer id from InitProducerId without a transactional id; the producer bumps its
                     epoch by itself when a partition has lost count of its sequence (KIP-360)
    InTransactions   whatever the transaction says, see `txn_context`

Everything runs on the engine's loop and nothing waits: when an answer changes, the signer calls `wake`.
"""

import asyncio
from collections.abc import Callable
from typing import Final, Protocol

from tallystick.client.errors import ClientError, refused
from tallystick.client.net.cluster import Cluster
from tallystick.client.producer.in_flight import bumped
from tallystick.client.producer.txn_context import TxnContext
from tallystick.kernel.ids import INT32_MAX, Identity, ProducerEpoch, ProducerId, TopicPartition
from tallystick.protocol.messages.init_producer_id import InitProducerIdRequest, InitProducerIdResponse

# KIP-890: from version 12 on, Produce adds its partition to the transaction implicitly.
_PRODUCE_BEFORE_IMPLICIT: Final = 11
_VERSION_OF_IMPLICIT: Final = 2


class Signer(Protocol):
    """Questions a Dispatcher asks before it sends."""

    @property
    def transactional_id(self) -> str | None:
        """Transactional id for every Produce request; None without transactions."""

    @property
    def ready(self) -> bool:
        """Whether new batches may be sent."""

    @property
    def identity(self) -> Identity | None:
        """Producer id and epoch for new batches, while ready. Another one restarts sequence numbers at 0."""

    @property
    def produce_version_max(self) -> int | None:
        """Highest Produce version allowed; None for whatever both sides support."""

    def refusal(self) -> ClientError | None:
        """Return the error if batches that were never sent can never be sent; else None."""

    def admits(self, at: TopicPartition) -> bool:
        """Tell whether a batch for this partition may be sent now; if not, `wake` is called when it may."""

    def failed(self, at: TopicPartition, error: ClientError) -> None:
        """Note that a batch, with its records, failed for good."""


class Unsigned:
    """A producer without idempotence."""

    transactional_id: str | None = None
    produce_version_max: int | None = None

    @property
    def ready(self) -> bool:
        return True

    @property
    def identity(self) -> Identity | None:
        return None

    def refusal(self) -> ClientError | None:
        return None

    def admits(self, at: TopicPartition) -> bool:
        return True

    def failed(self, at: TopicPartition, error: ClientError) -> None:
        """Do nothing: the delivery carries the error, and nothing else depends on it."""


class OwnIdentity(Unsigned):
    """Producer id and epoch of an idempotent producer without transactions."""

    def __init__(self, cluster: Cluster, wake: Callable[[], None]) -> None:
        self._cluster, self._wake = cluster, wake
        self._identity: Identity | None = None
        self._asking: asyncio.Task[None] | None = None
        self._error: ClientError | None = None

    @property
    def ready(self) -> bool:
        """Whether there is a producer id; requests one if there is none."""
        if self._identity is None and self._asking is None and self._error is None:
            self._asking = asyncio.get_running_loop().create_task(self._ask())
        return self._identity is not None

    @property
    def identity(self) -> Identity | None:
        return self._identity

    def refusal(self) -> ClientError | None:
        return self._error

    def bump(self) -> Identity | None:
        """Move to the next epoch and return it; None if epochs are used up, and another id is requested."""
        if self._identity is not None:
            self._identity = bumped(self._identity)
        return self._identity if self.ready else None

    def close(self) -> None:
        if self._asking is not None:
            self._asking.cancel()

    async def _ask(self) -> None:
        """Request a producer id until it succeeds: the batches that wait for it have their own limits."""
        cluster = self._cluster

        async def attempt() -> InitProducerIdResponse:
            request = InitProducerIdRequest(transactional_id=None, transaction_timeout_ms=INT32_MAX)
            answer = await cluster.send_any(request, InitProducerIdResponse)
            if answer.error_code:
                raise refused("InitProducerId", "", answer.error_code)
            return answer

        try:
            deadline = cluster.deadline("close", INT32_MAX)
            got = await cluster.retrying("InitProducerId", "", attempt, deadline)
            self._identity = Identity(ProducerId(got.producer_id), ProducerEpoch(got.producer_epoch))
        except ClientError as exc:
            self._error = exc
        finally:
            self._asking = None
            self._wake()


class InTransactions:
    """Sends what the open transaction allows."""

    def __init__(self, context: TxnContext, wake: Callable[[], None]) -> None:
        self._context, self._wake = context, wake
        self._wanted: set[TopicPartition] = set()
        self._enlisting: asyncio.Task[None] | None = None

    @property
    def transactional_id(self) -> str | None:
        return self._context.transactional_id

    @property
    def ready(self) -> bool:
        return self._context.is_sending

    @property
    def identity(self) -> Identity | None:
        return self._context.identity

    @property
    def produce_version_max(self) -> int | None:
        implicit = self._context.transaction_version >= _VERSION_OF_IMPLICIT
        return None if implicit else _PRODUCE_BEFORE_IMPLICIT

    def refusal(self) -> ClientError | None:
        return None if self._context.is_sending else self._context.why_not()

    def admits(self, at: TopicPartition) -> bool:
        if self._context.is_enlisted(at):
            return True
        self._wanted.add(at)
        if self._enlisting is None:
            self._enlisting = asyncio.get_running_loop().create_task(self._enlist())
        return False

    def failed(self, at: TopicPartition, error: ClientError) -> None:
        self._context.batch_failed(at, error)

    async def _enlist(self) -> None:
        """Add all partitions wanted by now to the transaction in one request; repeat until none is left."""
        wanted: set[TopicPartition] = set()
        try:
            while self._wanted:
                wanted, self._wanted = self._wanted, set()
                await self._context.enlist(wanted)
        except ClientError as exc:
            # The transaction has failed; batches that wait for it fail with `refusal`.
            self._wanted.clear()
            if self._context.is_sending:
                self._context.batch_failed(next(iter(wanted)), exc)
        finally:
            self._enlisting = None
            self._wake()
