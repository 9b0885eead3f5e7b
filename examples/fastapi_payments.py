"""A FastAPI service: a payment is a row in PostgreSQL and a record in Kafka, or neither.

    $ export KAFKA=localhost:9092 DATABASE=postgresql+asyncpg://localhost/shop
    $ uvicorn --app-dir examples fastapi_payments:app
    $ curl localhost:8000/payments --json '{"customer": "ann", "cents": 350}'

Kill it whenever you like: the next start brings what was in doubt to the end that the database has recorded.
"""

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from fastapi import FastAPI
from pydantic import BaseModel
from sqlalchemy.ext.asyncio import create_async_engine
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

from tallystick.dualwrite import AsyncSqlStore
from tallystick.dualwrite.aio import WriterPool

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
async def lifespan(_: FastAPI) -> AsyncIterator[None]:
    """Before the first request: finish what an earlier life has left."""
    async with engine.begin() as connection:
        await connection.run_sync(Base.metadata.create_all)
    await store.create()
    print(await writers.recover())
    yield
    await writers.close()
    await engine.dispose()


app = FastAPI(lifespan=lifespan)


@app.post("/payments", status_code=201)
async def pay(new: NewPayment) -> int:
    """When this answers, both are committed."""
    payment = Payment(customer=new.customer, cents=new.cents)
    async with writers.transaction() as txn:
        txn.session.add(payment)
        await txn.send("payments", new.model_dump_json().encode(), new.customer.encode())
    return payment.id
