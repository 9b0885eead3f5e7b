"""The FastAPI module and Starlette's threads: requests that wait for a writer leave them to endpoints."""

import asyncio
from pathlib import Path
from typing import Annotated, Any

import anyio.to_thread
import httpx
import pytest
from fastapi import FastAPI
from sqlalchemy import create_engine, text
from sqlalchemy.pool import NullPool
from tests.support.dual_world import new_name
from tests.support.raw_producer import committed_values, make_topic

from tallystick.dualwrite import SqlStore, Transaction, WriterPool
from tallystick.dualwrite.contrib.fastapi import add_error_answers, recover_and_close, transaction_of
from tallystick.testing import EmbeddedBroker, eventually

pytestmark = pytest.mark.server

THREADS, REQUESTS = 2, 8


def test_requests_that_wait_for_a_writer_take_no_thread_from_the_one_that_has_it(
    broker: EmbeddedBroker, tmp_path: Path
) -> None:
    """More requests than threads: each endpoint needs a thread of its own while the others wait."""
    topic = new_name()
    make_topic(broker, topic)
    engine = create_engine(f"sqlite:///{tmp_path}/rows.db?timeout=60", poolclass=NullPool)
    with engine.begin() as connection:
        connection.execute(text("CREATE TABLE paid (what VARCHAR(50))"))
    SqlStore(engine).create()
    config = {"bootstrap.servers": broker.bootstrap_servers, "transactional.id": topic}
    pool = WriterPool(SqlStore(engine), config, size=1, wait_s=20)
    app = FastAPI(lifespan=recover_and_close(pool))
    add_error_answers(app)

    @app.post("/pay/{what}", status_code=201)
    def pay(what: str, txn: Annotated[Transaction[Any], transaction_of(pool)]) -> str:
        txn.connection.execute(text("INSERT INTO paid VALUES (:what)"), {"what": what})
        txn.send(topic, what.encode())
        return what

    async def tell() -> list[int]:
        async with app.router.lifespan_context(app):
            anyio.to_thread.current_default_thread_limiter().total_tokens = THREADS
            transport = httpx.ASGITransport(app)
            async with httpx.AsyncClient(transport=transport, base_url="http://service") as client:
                answers = await asyncio.gather(*(client.post(f"/pay/{n}") for n in range(REQUESTS)))
            return [each.status_code for each in answers]

    assert asyncio.run(tell()) == [201] * REQUESTS
    with engine.connect() as connection:
        rows = sorted(connection.execute(text("SELECT what FROM paid")).scalars())
    eventually(lambda: sorted(committed_values(broker, topic, 0)) == rows)
    assert rows == [str(n) for n in range(REQUESTS)]
