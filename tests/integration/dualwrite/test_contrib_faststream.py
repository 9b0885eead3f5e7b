"""The FastStream middleware on messages that are delivered again, fail, or have no place of their own."""

import asyncio
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psycopg.errors
import pytest
from faststream import AckPolicy, ContextRepo
from faststream.message import StreamMessage
from sqlalchemy import text
from sqlalchemy.ext.asyncio import create_async_engine
from sqlalchemy.pool import NullPool
from tests.support.dual_world import new_name
from tests.support.raw_producer import committed_values, make_topic

from tallystick.client.errors import NotSupported
from tallystick.dualwrite import AsyncSqlStore, aio
from tallystick.dualwrite.contrib.faststream import (
    dual_write_middleware,
    get_position,
    recover_and_close,
)
from tallystick.testing import EmbeddedBroker, eventually

pytestmark = pytest.mark.server


def message(offset: int = 7, timestamp: int = 1000, topic: str = "orders") -> StreamMessage[Any]:
    record = SimpleNamespace(topic=topic, partition=0, offset=offset, timestamp=timestamp)
    return StreamMessage(raw_message=record, body=b"")


class Service:
    """A handler that writes a row and a record of the offset of its message."""

    def __init__(self, broker: EmbeddedBroker, folder: Path) -> None:
        self.topic = new_name()
        make_topic(broker, self.topic)
        self.engine = create_async_engine(f"sqlite+aiosqlite:///{folder}/rows.db", poolclass=NullPool)
        self.store = AsyncSqlStore(self.engine)
        config = {"bootstrap.servers": broker.bootstrap_servers, "transactional.id": self.topic}
        self.pool = aio.WriterPool(self.store, config, size=1)
        self.errors: list[Exception] = []
        self.runs = 0

    async def deliver(
        self, msg: StreamMessage[Any], *, scope: str = "payments", policy: AckPolicy = AckPolicy.NACK_ON_ERROR
    ) -> None:
        context = ContextRepo()
        middleware = dual_write_middleware(self.pool, scope=scope)(msg.raw_message, context=context)

        async def handle(handled: StreamMessage[Any]) -> None:
            self.runs += 1
            txn = context.get("txn")
            await txn.connection.execute(text(f"INSERT INTO paid VALUES ({handled.raw_message.offset})"))
            await txn.send(self.topic, str(handled.raw_message.offset).encode())
            if self.errors:
                raise self.errors.pop(0)

        with context.scope("handler_", SimpleNamespace(ack_policy=policy)):
            await middleware.consume_scope(handle, msg)


def tell(broker: EmbeddedBroker, folder: Path, story: Callable[[Service], Any]) -> list[str]:
    """Run a story, and return the payments that both sides have after it."""

    async def told() -> tuple[str, list[str]]:
        service = Service(broker, folder)
        async with service.engine.begin() as connection:
            await connection.execute(text("CREATE TABLE paid (n INTEGER)"))
        await service.store.create()
        async with recover_and_close(service.pool)():
            await story(service)
        async with service.engine.connect() as connection:
            rows = [str(n) for n in (await connection.execute(text("SELECT n FROM paid"))).scalars()]
        await service.engine.dispose()
        return service.topic, rows

    topic, rows = asyncio.run(told())
    eventually(lambda: committed_values(broker, topic, 0) == rows)
    return rows


def test_a_message_that_is_delivered_again_does_nothing(broker: EmbeddedBroker, tmp_path: Path) -> None:
    """[DW-16] Another one does, also at the same place of a topic that was made again."""

    async def story(service: Service) -> None:
        for _ in range(2):
            await service.deliver(message(7))
        await service.deliver(message(8))
        await service.deliver(message(7, timestamp=2000))
        await service.deliver(message(7, topic="other"))
        await service.deliver(message(7), scope="another group")
        assert service.runs == 5

    assert tell(broker, tmp_path, story) == ["7", "8", "7", "7", "7"]


def test_a_handler_that_fails_is_delivered_again(broker: EmbeddedBroker, tmp_path: Path) -> None:
    async def story(service: Service) -> None:
        service.errors = [ZeroDivisionError()]
        with pytest.raises(ZeroDivisionError):
            await service.deliver(message(7))
        await service.deliver(message(7))
        service.errors = [psycopg.errors.DeadlockDetected()]
        await service.deliver(message(8))
        assert service.runs == 4

    assert tell(broker, tmp_path, story) == ["7", "8"]


def test_an_acknowledgement_before_the_commit_is_refused(broker: EmbeddedBroker, tmp_path: Path) -> None:
    async def story(service: Service) -> None:
        with pytest.raises(NotSupported, match="NACK_ON_ERROR"):
            await service.deliver(message(7), policy=AckPolicy.ACK_FIRST)

    assert tell(broker, tmp_path, story) == []


@pytest.mark.parametrize(("raw", "reason"), [((message(),), "a batch"), ({"nats": 1}, "pass key_of")])
def test_a_message_without_a_place_is_refused(raw: object, reason: str) -> None:
    with pytest.raises(NotSupported, match=reason):
        get_position(StreamMessage(raw_message=raw, body=b""))
