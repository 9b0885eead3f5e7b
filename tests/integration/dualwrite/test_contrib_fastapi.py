"""The FastAPI module: what a client is told is what both halves have."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Annotated, Any

import httpx
import pytest
from fastapi import FastAPI, HTTPException
from fastapi.responses import JSONResponse
from sqlalchemy import create_engine, text
from sqlalchemy.ext.asyncio import create_async_engine
from sqlalchemy.pool import NullPool
from starlette.types import Message, Receive, Scope, Send
from tests.support.dual_world import new_name
from tests.support.raw_producer import committed_values, make_topic

from tallystick.dualwrite import (
    AsyncSqlStore,
    CommitUnknown,
    NoFreeId,
    NotCommitted,
    Outcome,
    SqlStore,
    Transaction,
    WriteInDoubt,
    WriterPool,
    aio,
)
from tallystick.dualwrite.block.steps import RecipeStep
from tallystick.dualwrite.contrib.fastapi import (
    NOT_DONE_TEXT,
    UNKNOWN_TEXT,
    IdempotencyKeyHeader,
    add_error_answers,
    recover_and_close,
    transaction_of,
)
from tallystick.testing import EmbeddedBroker, eventually

pytestmark = pytest.mark.server


class Service:
    """An application with one endpoint of each kind, over a table and a topic that must agree."""

    def __init__(self, broker: EmbeddedBroker, folder: Path, *, is_async: bool) -> None:
        self.broker, self.topic, self.is_async = broker, new_name(), is_async
        make_topic(broker, self.topic)
        self.url = f"{folder}/rows.db?timeout=60"
        self.engine = create_engine(f"sqlite:///{self.url}", poolclass=NullPool)
        with self.engine.begin() as connection:
            connection.execute(text("CREATE TABLE paid (what VARCHAR(50))"))
        SqlStore(self.engine).create()
        self.events: list[str] = []
        self.fails_at = ""
        self.failure: Exception | None = None
        config = {"bootstrap.servers": broker.bootstrap_servers, "transactional.id": self.topic}
        self.pool: Any
        if is_async:
            self.async_engine = create_async_engine(f"sqlite+aiosqlite:///{self.url}", poolclass=NullPool)
            self.pool = aio.WriterPool(AsyncSqlStore(self.async_engine), config, size=2, watch=self.watch)
            self.app = self.build_async()
        else:
            self.pool = WriterPool(SqlStore(self.engine), config, size=2, watch=self.watch)
            self.app = self.build()
        add_error_answers(self.app)

    def watch(self, _: int, step: RecipeStep, done: bool) -> None:
        if done:
            self.events.append(step.name)
        if self.failure is not None and self.fails_at == f"{'after' if done else 'before'} {step.name}":
            failure, self.failure = self.failure, None
            raise failure

    def build_async(self) -> FastAPI:
        app = FastAPI(lifespan=recover_and_close(self.pool))
        open_transaction = Annotated[aio.Transaction[Any], transaction_of(self.pool)]

        async def insert(txn: Any, what: str) -> None:
            await txn.connection.execute(text(f"INSERT INTO paid VALUES ('{what}')"))
            await txn.send(self.topic, what.encode())

        @app.post("/pay/{what}", status_code=201)
        async def pay(what: str, txn: open_transaction) -> str:
            await insert(txn, what)
            if what == "refused":
                raise HTTPException(402, "no money")
            return what

        @app.post("/order/{what}", status_code=201)
        @self.pool.transactional(idempotency_key="key", retry=0)
        async def order(txn: Any, what: str, key: IdempotencyKeyHeader) -> dict[str, str]:
            await insert(txn, what)
            return {"what": what, "key": key}

        return app

    def build(self) -> FastAPI:
        app = FastAPI(lifespan=recover_and_close(self.pool))
        open_transaction = Annotated[Transaction[Any], transaction_of(self.pool)]

        def insert(txn: Any, what: str) -> None:
            txn.connection.execute(text(f"INSERT INTO paid VALUES ('{what}')"))
            txn.send(self.topic, what.encode())

        @app.post("/pay/{what}", status_code=201)
        def pay(what: str, txn: open_transaction) -> str:
            insert(txn, what)
            if what == "refused":
                raise HTTPException(402, "no money")
            return what

        @app.post("/order/{what}", status_code=201)
        @self.pool.transactional(idempotency_key="key", retry=0)
        def order(txn: Any, what: str, key: IdempotencyKeyHeader) -> dict[str, str]:
            insert(txn, what)
            return {"what": what, "key": key}

        return app

    async def listening(self, scope: Scope, receive: Receive, send: Send) -> None:
        """The application, noting when its answer leaves."""

        async def note(message: Message) -> None:
            self.events.append(message["type"])
            await send(message)

        await self.app(scope, receive, note)

    @asynccontextmanager
    async def client(self) -> AsyncIterator[httpx.AsyncClient]:
        async with self.app.router.lifespan_context(self.app):
            transport = httpx.ASGITransport(self.listening, raise_app_exceptions=False)
            async with httpx.AsyncClient(transport=transport, base_url="http://service") as client:
                yield client

    def check(self) -> list[str]:
        with self.engine.connect() as connection:
            rows = sorted(connection.execute(text("SELECT what FROM paid")).scalars())
        eventually(lambda: sorted(committed_values(self.broker, self.topic, 0)) == rows)
        return rows


@pytest.fixture(params=["asyncio", "threads"])
def service(request: pytest.FixtureRequest, broker: EmbeddedBroker, tmp_path: Path) -> Service:
    return Service(broker, tmp_path, is_async=request.param == "asyncio")


def committed_elsewhere() -> WriteInDoubt:
    doubt = WriteInDoubt("audit-1: Kafka's half is to be finished", {})
    doubt.set_outcome(Outcome.COMMITTED)
    return doubt


def tell(service: Service, story: Callable[[httpx.AsyncClient], Any]) -> list[str]:
    async def told() -> None:
        async with service.client() as client:
            await story(client)
        if service.is_async:
            await service.async_engine.dispose()

    asyncio.run(told())
    return service.check()


def test_the_answer_leaves_after_both_halves_are_committed(service: Service) -> None:
    async def story(client: httpx.AsyncClient) -> None:
        for path in ("/pay/a", "/order/b"):
            service.events.clear()
            answer = await client.post(path, headers={"Idempotency-Key": "1"})
            assert answer.status_code == 201
            assert service.events.index("commit") < service.events.index("http.response.start")

    assert tell(service, story) == ["a", "b"]


def test_an_endpoint_that_raises_rolls_back(service: Service) -> None:
    async def story(client: httpx.AsyncClient) -> None:
        assert (await client.post("/pay/refused")).status_code == 402
        assert (await client.post("/pay/a")).json() == "a"

    assert tell(service, story) == ["a"]


@pytest.mark.gate(2)
@pytest.mark.parametrize(
    ("failure", "fails_at", "status", "detail", "paid"),
    [
        (NotCommitted(ValueError("a constraint")), "before commit database", 500, None, []),
        (CommitUnknown("lost"), "before commit database", 503, NOT_DONE_TEXT, []),
        (CommitUnknown("lost"), "after commit database", 201, None, ["a"]),
        (NoFreeId("none of 2"), "before begin database", 503, NOT_DONE_TEXT, []),
        (NotCommitted(committed_elsewhere()), "before commit database", 503, UNKNOWN_TEXT, []),
    ],
    ids=["refused", "not committed", "committed", "no id", "another writer's doubt"],
)
def test_a_failure_of_the_commit_is_the_answer(
    service: Service, failure: Exception, fails_at: str, status: int, detail: str | None, paid: list[str]
) -> None:
    """[DW-3] A doubt is recovered first; what is committed is answered as if nothing had happened."""

    async def story(client: httpx.AsyncClient) -> None:
        service.failure, service.fails_at = failure, fails_at
        answer = await client.post("/pay/a")
        assert answer.status_code == status
        if detail is not None:
            assert answer.json() == {"detail": detail}

    assert tell(service, story) == paid


def test_an_outcome_that_stays_unknown_is_said(service: Service) -> None:
    """[DW-16] And the key tells, when the request is sent again."""

    async def story(client: httpx.AsyncClient) -> None:
        def fail(_: object, step: RecipeStep, done: bool) -> None:
            Service.watch(service, 0, step, done)
            if "commit database" in service.events and step.name == "claim" and not done:
                service.events.clear()
                raise ConnectionError("the database is gone")

        for writer in service.pool._writers:
            writer._steps._watch = fail
        service.failure, service.fails_at = CommitUnknown("lost"), "after commit database"
        answer = await client.post("/order/a", headers={"Idempotency-Key": "7"})
        assert (answer.status_code, answer.json()) == (503, {"detail": UNKNOWN_TEXT})
        answer = await client.post("/order/a", headers={"Idempotency-Key": "7"})
        assert (answer.status_code, answer.json()) == (201, {"what": "a", "key": "7"})

    assert tell(service, story) == ["a"]


def test_the_header_is_the_key(service: Service) -> None:
    """[DW-16] One payment for each key; requests at the same time wait for each other."""

    async def story(client: httpx.AsyncClient) -> None:
        async def send(key: str) -> Any:
            return (await client.post("/order/a", headers={"Idempotency-Key": key})).json()

        answers = await asyncio.gather(*(send(key) for key in ["1", "2"] * 4))
        assert answers == [{"what": "a", "key": key} for key in ["1", "2"] * 4]
        assert (await client.post("/order/a")).status_code == 422
        assert (await client.post("/order/a", headers={"Idempotency-Key": " "})).status_code == 422
        assert (await client.post("/order/a", headers={"Idempotency-Key": "x" * 751})).status_code == 422

    assert tell(service, story) == ["a", "a"]


def test_a_response_that_is_returned_is_committed(service: Service) -> None:
    """Whatever its status says: only an exception rolls back."""

    @service.app.post("/late/{what}")
    async def late(what: str, txn: Annotated[Any, transaction_of(service.pool)]) -> JSONResponse:
        sent = txn.connection.execute(text(f"INSERT INTO paid VALUES ('{what}')"))
        if service.is_async:
            await sent
            await txn.send(service.topic, what.encode())
        else:
            txn.send(service.topic, what.encode())
        return JSONResponse("teapot", status_code=418)

    async def story(client: httpx.AsyncClient) -> None:
        assert (await client.post("/late/a")).status_code == 418

    assert tell(service, story) == ["a"]
