"""A FastStream service: each order becomes a row in PostgreSQL and a record in Kafka, or neither, and once.

    $ export KAFKA=localhost:9092 DATABASE=postgresql+asyncpg://localhost/shop
    $ faststream run --app-dir examples faststream_payments:app
    $ echo '{"customer": "ann", "cents": 350}' | tallystick produce orders

Kill it whenever you like: an order that is delivered again finds its place in the log in the database.
"""

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Annotated, Any

from faststream import AckPolicy, Context, FastStream
from faststream.kafka import KafkaBroker
from pydantic import BaseModel
from sqlalchemy.ext.asyncio import create_async_engine
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

from tallystick.dualwrite import AsyncSqlStore
from tallystick.dualwrite.aio import WriterPool
from tallystick.dualwrite.contrib.faststream import dual_write_middleware, recover_and_close

engine = create_async_engine(os.environ["DATABASE"])
store = AsyncSqlStore(engine)
config = {"bootstrap.servers": os.environ["KAFKA"], "transactional.id": "payments"}
writers = WriterPool(store, config, size=1)


class Base(DeclarativeBase):
    """Our tables."""


class Payment(Base):
    """A payment, as it is kept."""

    __tablename__ = "payments"
    id: Mapped[int] = mapped_column(primary_key=True)
    customer: Mapped[str]
    cents: Mapped[int]


class Order(BaseModel):
    """An order, as it is consumed."""

    customer: str
    cents: int


@asynccontextmanager
async def lifespan() -> AsyncIterator[None]:
    """Before the first order: make the tables, and finish what an earlier life has left."""
    async with engine.begin() as connection:
        await connection.run_sync(Base.metadata.create_all)
    await store.create()
    async with recover_and_close(writers)():
        yield
    await engine.dispose()


broker = KafkaBroker(os.environ["KAFKA"], middlewares=[dual_write_middleware(writers, scope="payments")])
app = FastStream(broker, lifespan=lifespan)


@broker.subscriber(
    "orders", group_id="payments", auto_offset_reset="earliest", ack_policy=AckPolicy.NACK_ON_ERROR
)
async def pay(order: Order, txn: Annotated[Any, Context()]) -> None:
    """When this is acknowledged, both are committed."""
    txn.session.add(Payment(customer=order.customer, cents=order.cents))
    await txn.send("payments", order.model_dump_json().encode(), order.customer.encode())
