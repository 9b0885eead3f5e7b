"""FastAPI: both sides are committed before the answer is sent, and a failure of the commit is the answer.

    writers = WriterPool(store, config, size=8)
    app = FastAPI(lifespan=recover_and_close(writers))
    add_error_answers(app)
    OpenTransaction = Annotated[Transaction, transaction_of(writers)]

    @app.post("/payments", status_code=201)
    async def pay(new: NewPayment, txn: OpenTransaction) -> None:
        txn.session.add(Payment(...))
        await txn.send("payments", b"...")

    @app.post("/orders", status_code=201)
    @writers.transactional(idempotency_key="key")
    async def order(txn: Transaction, new: NewOrder, key: IdempotencyKeyHeader) -> dict[str, int]: ...

The second form is repeated after conflicts, and answers a request that is sent again with the first result.
An endpoint rolls back by raising, `HTTPException` included; one that returns has committed, whatever the
status of the response that it returns.

Needs FastAPI 0.121, whose dependencies can end before the response is sent. Source: FastAPI, "Dependencies
with yield", `Depends(scope="function")`.
"""

import logging
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import (
    AbstractAsyncContextManager,
    AsyncExitStack,
    asynccontextmanager,
    contextmanager,
)
from typing import Annotated, Any, Final

from anyio import CancelScope, CapacityLimiter
from anyio.lowlevel import RunVar
from anyio.to_thread import run_sync
from fastapi import Depends, FastAPI, Header, Request
from fastapi.concurrency import run_in_threadpool
from fastapi.responses import JSONResponse

from tallystick.dualwrite import aio
from tallystick.dualwrite.aio.writer import resolve_doubt as resolve_doubt_async
from tallystick.dualwrite.blocking.pool import WriterPool
from tallystick.dualwrite.blocking.writer import Transaction, resolve_doubt
from tallystick.dualwrite.errors import NoFreeId, Outcome, WriteInDoubt
from tallystick.dualwrite.rules.idempotency import KEY_BYTES_MAX
from tallystick.kernel.errors import InDoubt

_log = logging.getLogger("tallystick.dualwrite")

Pool = WriterPool[Any] | aio.WriterPool[Any]

IdempotencyKeyHeader = Annotated[
    str, Header(alias="Idempotency-Key", min_length=1, max_length=KEY_BYTES_MAX, pattern=r"^[!-~]+$")
]
"""The header `Idempotency-Key` of a request; without it the answer is 422."""

UNKNOWN_TEXT: Final = (
    "whether this was done is not known yet: send it again with the same Idempotency-Key, or look it up"
)
NOT_DONE_TEXT: Final = "this was not done: send it again"


def transaction_of(writers: Pool) -> Any:
    """Return the dependency that is a transaction of its request, open while the endpoint runs.

    Endpoints that are coroutines need a pool of `tallystick.dualwrite.aio`, others may have either. If the
    outcome of the commit is in doubt, the dependency recovers, so that the answer is the endpoint's if both
    sides are committed. It is never repeated.
    """
    open_transaction: Callable[[], Any]
    if isinstance(writers, aio.WriterPool):
        open_transaction = _open_async(writers)
    else:
        open_transaction = _open(writers)
    return Depends(open_transaction, scope="function")


def _open_async(writers: "aio.WriterPool[Any]") -> Callable[[], AsyncIterator["aio.Transaction[Any]"]]:
    async def open_transaction() -> AsyncIterator["aio.Transaction[Any]"]:
        async with writers.writer() as writer:
            try:
                async with writer.transaction() as txn:
                    yield txn
            except WriteInDoubt as doubt:
                await resolve_doubt_async(writer, doubt)

    return open_transaction


def _open(writers: WriterPool[Any]) -> Callable[[], AsyncIterator[Transaction[Any]]]:
    @contextmanager
    def run_transaction() -> Iterator[Transaction[Any]]:
        with writers.writer() as writer:
            try:
                with writer.transaction() as txn:
                    yield txn
            except WriteInDoubt as doubt:
                resolve_doubt(writer, doubt)

    async def open_transaction() -> AsyncIterator[Transaction[Any]]:
        # Not in the threads that run endpoints: an endpoint that has a writer must not wait for one of them
        # until those that wait for its writer give up.
        block = run_transaction()
        txn = await run_sync(block.__enter__, limiter=_get_waiting_threads())
        raised: tuple[Any, Any, Any] = (None, None, None)
        try:
            yield txn
        except BaseException as exc:
            raised = (type(exc), exc, exc.__traceback__)
            raise
        finally:  # in a thread that is always free, even if the request is cancelled
            with CancelScope(shield=True):
                await run_sync(block.__exit__, *raised, limiter=CapacityLimiter(1))

    return open_transaction


WAITING_THREADS: Final = 40
"""Threads of one event loop that wait for writers; more requests wait without a thread."""
_waiting_threads: RunVar[CapacityLimiter] = RunVar("tallystick_waiting_threads")


def _get_waiting_threads() -> CapacityLimiter:
    try:
        return _waiting_threads.get()
    except LookupError:
        limiter = CapacityLimiter(WAITING_THREADS)
        _waiting_threads.set(limiter)
        return limiter


def recover_and_close(*pools: Pool) -> Callable[[FastAPI], AbstractAsyncContextManager[None]]:
    """Return the lifespan of an application that recovers its pools before the first request.

    It closes them after the last one. The application creates the tables before, and disposes of its engine.
    """

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        async with AsyncExitStack() as stack:
            for pool in pools:
                if isinstance(pool, aio.WriterPool):
                    stack.push_async_callback(pool.close)
                    report = await pool.recover()
                else:
                    stack.push_async_callback(run_in_threadpool, pool.close)
                    report = await run_in_threadpool(pool.recover)
                _log.info("%s", report)
            yield

    return lifespan


def add_error_answers(app: FastAPI) -> None:
    """Answer 503 where a client may send its request again: an outcome in doubt, or no free id.

    The body says whether the request was done. Any other failure of a commit is answered by 500, as all
    errors of an endpoint are: neither side is committed then.
    """
    app.add_exception_handler(InDoubt, _answer_in_doubt)
    app.add_exception_handler(NoFreeId, _answer_not_done)


async def _answer_in_doubt(_: Request, exc: Exception) -> JSONResponse:
    _log.error("%s", exc)
    is_undone = isinstance(exc, WriteInDoubt) and exc.outcome() is Outcome.NOT_COMMITTED
    return JSONResponse({"detail": NOT_DONE_TEXT if is_undone else UNKNOWN_TEXT}, status_code=503)


async def _answer_not_done(_: Request, exc: Exception) -> JSONResponse:
    _log.error("%s", exc)
    return JSONResponse({"detail": NOT_DONE_TEXT}, status_code=503)
