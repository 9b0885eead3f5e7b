"""Who signs the batches of a producer, and when they may go out: what a Dispatcher asks.

    Unsigned         no idempotence: nobody
    OwnIdentity      an id of this producer's own, from InitProducerId without a transactional id; it moves to
                     the next epoch by itself when a partition has lost count (KIP-360)
    InTransactions   whatever the transaction says, see `txn_context`

All of it runs on the engine's loop, and none of it waits: when an answer of it changes, it calls `wake`.
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

# From Produce 12 on, a write adds its partition to the transaction by itself (KIP-890).
_PRODUCE_BEFORE_IMPLICIT: Final = 11
_VERSION_OF_IMPLICIT: Final = 2


class Signer(Protocol):
    """What a Dispatcher asks before it sends."""

    @property
    def transactional_id(self) -> str | None:
        """Named in every Produce request; None: no transactions."""

    @property
    def ready(self) -> bool:
        """May new batches go out?"""

    @property
    def identity(self) -> Identity | None:
        """While ready: who signs new batches. Another one begins to number from 0."""

    @property
    def produce_version_max(self) -> int | None:
        """None: whatever both sides have."""

    def refusal(self) -> ClientError | None:
        """Why nothing that was never sent will ever be, if that is so."""

    def admits(self, at: TopicPartition) -> bool:
        """Right before a batch is taken: may it be sent there? If not, `wake` comes when it may."""

    def failed(self, at: TopicPartition, error: ClientError) -> None:
        """A batch failed for good, and its records with it."""


class Unsigned:
    """No idempotence."""

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
        """Its delivery says so; nothing else depends on it."""


class OwnIdentity(Unsigned):
    """The identity of an idempotent producer without transactions."""

    def __init__(self, cluster: Cluster, wake: Callable[[], None]) -> None:
        self._cluster, self._wake = cluster, wake
        self._identity: Identity | None = None
        self._asking: asyncio.Task[None] | None = None
        self._error: ClientError | None = None

    @property
    def ready(self) -> bool:
        """Asks for an identity if there is none."""
        if self._identity is None and self._asking is None and self._error is None:
            self._asking = asyncio.get_running_loop().create_task(self._ask())
        return self._identity is not None

    @property
    def identity(self) -> Identity | None:
        return self._identity

    def refusal(self) -> ClientError | None:
        return self._error

    def bump(self) -> Identity | None:
        """The next epoch; None when epochs are used up, and another id is asked for."""
        if self._identity is not None:
            self._identity = bumped(self._identity)
        return self._identity if self.ready else None

    def close(self) -> None:
        if self._asking is not None:
            self._asking.cancel()

    async def _ask(self) -> None:
        """Until it succeeds: the batches that wait for it have limits of their own."""
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
        """Partitions in one request as far as they are wanted by now."""
        wanted: set[TopicPartition] = set()
        try:
            while self._wanted:
                wanted, self._wanted = self._wanted, set()
                await self._context.enlist(wanted)
        except ClientError as exc:
            # The transaction has failed, and what waits for it fails with `refusal`.
            self._wanted.clear()
            if self._context.is_sending:
                self._context.batch_failed(next(iter(wanted)), exc)
        finally:
            self._enlisting = None
            self._wake()
