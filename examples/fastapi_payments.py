"""A FastAPI service: a payment is a row in PostgreSQL and a record in Kafka, or neither.

    $ export KAFKA=localhost:9092 DATABASE=postgresql+asyncpg://localhost/shop
    $ uvicorn --app-dir examples fastapi_payments:app
    $ curl localhost:8000/payments --json '{"customer": "ann", "cents": 350}'
    $ curl localhost:8000/orders -H 'Idempotency-Key: order-7' --json '{"customer": "ann", "cents": 350}'

Kill it whenever you like: the next start brings what was in doubt to the end that the database has recorded.
Send the order again if you had no answer: it is paid once.
"""

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Annotated

from fastapi import FastAPI
from pydantic import BaseModel
from sqlalchemy.ext.asyncio import create_async_engine
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

from tallystick.dualwrite import AsyncSqlStore
from tallystick.dualwrite.aio import Transaction, WriterPool
from tallystick.dualwrite.contrib.fastapi import (
    IdempotencyKeyHeader,
    add_error_answers,
    recover_and_close,
    transaction_of,
)
from tallystick.dualwrite.stores.sql_async import AsyncSqlTransaction

engine = create_async_engine(os.environ["DATABASE"])
store = AsyncSqlStore(engine)
config = {"bootstrap.servers": os.environ["KAFKA"], "transactional.id": "payments"}
writers = WriterPool(store, config, size=4)


class Base(DeclarativeBase):
    """Our tables."""


class Payment(Base):
    """A payment, as it is kept."""

    __tablename__ = "payments"
    id: Mapped[int] = mapped_column(primary_key=True)
    customer: Mapped[str]
    cents: Mapped[int]


class NewPayment(BaseModel):
    """A payment, as it is asked for."""

    customer: str
    cents: int


@asynccontextmanager
async def lifespan(app: FastAPI) -> AsyncIterator[None]:
    """Before the first request: make the tables, and finish what an earlier life has left."""
    async with engine.begin() as connection:
        await connection.run_sync(Base.metadata.create_all)
    await store.create()
    async with recover_and_close(writers)(app):
        yield
    await engine.dispose()


app = FastAPI(lifespan=lifespan)
add_error_answers(app)
OpenTransaction = Annotated[Transaction[AsyncSqlTransaction], transaction_of(writers)]


@app.post("/payments", status_code=201)
async def pay(new: NewPayment, txn: OpenTransaction) -> int:
    """When this is answered, both are committed."""
    payment = Payment(customer=new.customer, cents=new.cents)
    txn.session.add(payment)
    await txn.session.flush()
    await txn.send("payments", new.model_dump_json().encode(), new.customer.encode())
    return payment.id


@app.post("/orders", status_code=201)
@writers.transactional(idempotency_key="key")
async def order(txn: Transaction[AsyncSqlTransaction], new: NewPayment, key: IdempotencyKeyHeader) -> int:
    """However often it is sent with the same key, it is paid once, and the answer is the first one."""
    return await pay(new, txn)
