"""FastStream: each consumed message is a dual write, applied once however often it is delivered.

    writers = WriterPool(AsyncSqlStore(engine), config, size=4)
    broker = KafkaBroker(..., middlewares=[dual_write_middleware(writers, scope="payments")])
    app = FastStream(broker, lifespan=recover_and_close(writers))

    @broker.subscriber("orders", group_id="payments", ack_policy=AckPolicy.NACK_ON_ERROR)
    async def pay(order: Order, txn: Annotated[Transaction, Context()]) -> None:
        txn.session.add(Payment(...))
        await txn.send("payments", b"...")

The handler's rows and records are committed together when it returns, and then the message is acknowledged.
Its place in the log is the idempotency key, so a message that is delivered again, after a crash or a
rebalance, does nothing. That takes the place of consumed offsets in the transaction, and also holds for the
rows.

What a handler sends through FastStream itself, `broker.publish` or `@broker.publisher`, is not part of the
transaction. `AckPolicy.ACK_FIRST`, which is FastStream's default for Kafka, acknowledges before the commit
and may lose messages: a subscriber with it is refused.

Source: FastStream, "Middlewares", `consume_scope`; "Acknowledgement".
"""

import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from typing import Any, Final

from faststream import AckPolicy, BaseMiddleware, ContextRepo
from faststream.message import StreamMessage

from tallystick.client.errors import NotSupported
from tallystick.dualwrite.aio.pool import WriterPool
from tallystick.dualwrite.aio.writer import Transaction
from tallystick.dualwrite.rules.idempotency import IdempotencyKey
from tallystick.dualwrite.rules.retries import DEFAULT_RETRY, Retry, to_retry

_log = logging.getLogger("tallystick.dualwrite")

TRANSACTION_NAME: Final = "txn"
"""The name of the open transaction in FastStream's context."""

KeyOfMessage = Callable[[StreamMessage[Any]], str]
"""Returns text that is the same whenever a message is delivered, and another one for any other message."""


def get_position(message: StreamMessage[Any]) -> str:
    """Return the place of a Kafka message in its log, with its timestamp: a topic may be made again.

    Raises: NotSupported for a batch, which may be another one when it is delivered again, and for the
        messages of other brokers.
    """
    record = message.raw_message
    if isinstance(record, tuple | list):
        raise NotSupported(
            "a dual write of a batch", "one message: a batch has no place of its own in the log"
        )
    try:
        return f"{record.topic}-{record.partition}@{record.offset}:{record.timestamp}"
    except AttributeError:
        name = type(record).__name__
        raise NotSupported(f"the key of a {name}", "its place in a log of Kafka: pass key_of") from None


def dual_write_middleware(
    writers: WriterPool[Any],
    *,
    scope: str,
    key_of: KeyOfMessage = get_position,
    retry: Retry | int = DEFAULT_RETRY,
) -> Any:
    """Return a middleware for a broker, router or subscriber: one transaction for each message.

    Args:
        scope: the scope of the keys, for one consumer group. Another group that reads the same topic into the
            same database needs another one.
        key_of: the key of a message.
        retry: what is repeated within one delivery; see DualWriter.run.
    Raises: BadConfig, ValueError for a retry that cannot hold.
    """
    rule = to_retry(retry)

    class DualWriteMiddleware(BaseMiddleware[Any, Any]):
        """Runs the handler of a message in a transaction."""

        async def consume_scope(
            self, call_next: Callable[[Any], Awaitable[Any]], msg: StreamMessage[Any]
        ) -> Any:
            _refuse_early_acknowledgement(self.context)
            context = self.context

            async def work(txn: Transaction[Any]) -> None:
                with context.scope(TRANSACTION_NAME, txn):
                    await call_next(msg)

            await writers.run(work, retries=rule, idempotency_key=IdempotencyKey(scope, key_of(msg)))

    return DualWriteMiddleware


def _refuse_early_acknowledgement(context: ContextRepo) -> None:
    """Raise NotSupported under a policy that acknowledges a message before it is processed."""
    policy = getattr(context.get("handler_"), "ack_policy", None)
    if policy is AckPolicy.ACK_FIRST:
        raise NotSupported(
            "a dual write under AckPolicy.ACK_FIRST",
            "an acknowledgement after the commit: pass ack_policy=AckPolicy.NACK_ON_ERROR to the subscriber",
        )


def recover_and_close(*pools: WriterPool[Any]) -> Callable[[], AbstractAsyncContextManager[None]]:
    """Return the lifespan of an application that recovers its pools before the first message.

    It closes them after the last one. The application creates the tables before, and disposes of its engine.
    """

    @asynccontextmanager
    async def lifespan() -> AsyncIterator[None]:
        async with AsyncExitStack() as stack:
            for pool in pools:
                stack.push_async_callback(pool.close)
                _log.info("%s", await pool.recover())
            yield

    return lifespan
