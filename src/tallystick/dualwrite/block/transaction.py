"""Building blocks of the user's transaction object: the database transaction, savepoints and sending.

A store's transaction may have its own name for the object the user works with. Those names are exposed here
with their types, so that `txn.session` of a writer over SqlStore is a Session to a type checker, and an error
over a store that has none.
"""

import inspect
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import AsyncExitStack, ExitStack, contextmanager
from functools import partial
from typing import Any, Generic, Protocol, TypeVar

from tallystick.dualwrite.errors import ManagedByWriter
from tallystick.dualwrite.forks import OwningProcess, leak_reference
from tallystick.kernel.check import require

D_co = TypeVar("D_co", covariant=True)
X = TypeVar("X")
X_co = TypeVar("X_co", covariant=True)
C = TypeVar("C")


class HasSession(Protocol[X_co]):
    @property
    def session(self) -> X_co: ...


class HasConnection(Protocol[X_co]):
    @property
    def connection(self) -> X_co: ...


class HasHandle(Protocol[X_co]):
    @property
    def handle(self) -> X_co: ...


class DatabaseSide(Generic[D_co]):
    """The database side of one transaction, until the block ends."""

    def __init__(self, database: D_co) -> None:
        self._database = database
        self._is_ended = False
        self.owning_process = OwningProcess()
        self.owning_process.claim_process("this transaction")

    def mark_ended(self) -> None:
        """End the block: any later use of this object raises ManagedByWriter."""
        self._is_ended = True

    @property
    def database(self) -> D_co:
        """The store's transaction. Only the writer commits it or rolls it back."""
        self.check_open()
        return self._database

    @property
    def session(self: "DatabaseSide[HasSession[X]]") -> X:
        """The SQLAlchemy Session of this transaction. Only the writer commits it or rolls it back."""
        return self.database.session

    @property
    def connection(self: "DatabaseSide[HasConnection[X]]") -> X:
        """The SQLAlchemy Connection of this transaction. Only the writer commits it or rolls it back."""
        return self.database.connection

    @property
    def handle(self: "DatabaseSide[HasHandle[X]]") -> X:
        """The store's object for reads and writes, under a common name."""
        return self.database.handle

    def check_process(self) -> None:
        """Raise ManagedByWriter in a forked child of the process that began it."""
        self.owning_process.check_process("this transaction")

    def check_open(self) -> None:
        self.check_process()
        if self._is_ended:
            raise ManagedByWriter(
                "this transaction has ended; begin another with `with writer.transaction()`"
            )


class Savepoint:
    """Rows and records inside a transaction that are kept or rolled back together.

    Records are sent when the savepoint is released; if its block raises, none are sent.
    """

    def __init__(self, send: Callable[..., object], send_batch: Callable[..., object]) -> None:
        """Create a savepoint that sends through the transaction's own methods."""
        self.queued_sends: list[Callable[[], Any]] = []
        self._send = send
        self._send_batch = send_batch

    def send(self, *args: object, **kwargs: object) -> None:
        """Queue a call of the transaction's `send` until release."""
        self.queued_sends.append(partial(self._send, *args, **kwargs))

    def send_batch(self, *args: object, **kwargs: object) -> None:
        """Queue a call of the transaction's `send_batch` until release."""
        self.queued_sends.append(partial(self._send_batch, *args, **kwargs))


def bind_queued(queued: Callable[[], Any]) -> tuple[Callable[..., Any], dict[str, Any]]:
    """Return the method that a queued call is of, and all its arguments by name. Raises: TypeError."""
    call = require(queued if isinstance(queued, partial) else None, "a savepoint queues calls")
    bound = inspect.signature(call.func).bind(*call.args, **call.keywords)
    bound.apply_defaults()
    return call.func, bound.arguments


def begin_savepoint(database: object) -> Any:
    """Begin the store's savepoint, a context manager. Raises: ManagedByWriter if the store has none."""
    begin = getattr(database, "savepoint", None)
    if begin is None:
        raise ManagedByWriter(
            f"{type(database).__name__} has no savepoints: what is in its transaction stays in it"
        )
    return begin()


@contextmanager
def keep_open_if_forked(home: OwningProcess, stack: ExitStack | AsyncExitStack) -> Iterator[None]:
    """Keep `stack` open in a forked child, where closing it would end the parent's savepoint."""
    try:
        yield
    finally:
        if home.is_forked_child:
            leak_reference(stack.pop_all())


class LeavableSession(Protocol):
    """The part of `Session` that `LeaveOnExit` uses."""

    def leave(self, block: object) -> None: ...


class LeaveOnExit:
    """A context manager that makes a session `leave` a facade's call, however it ends.

    It is entered twice, `with Block(session) as block, block:`, so that if an interrupt prevents one exit,
    the other still runs.
    """

    def __init__(self, session: LeavableSession) -> None:
        self._session = session

    def __enter__(self) -> "LeaveOnExit":
        return self

    def __exit__(self, *_: object) -> None:
        self._session.leave(self)


def select_producer(producers: Mapping[str, C], cluster: str | None) -> C:
    """Return the producer of a cluster, or the only one if `cluster` is None. Raises: ValueError."""
    if cluster is None and len(producers) == 1:
        return next(iter(producers.values()))
    if cluster is None or cluster not in producers:
        raise ValueError(f"cluster={cluster!r}: this writer has {', '.join(producers)}")
    return producers[cluster]


def call_work(work: Callable[[X], C], txn: X) -> C:
    """Call the work of a transaction. Raises: TypeError for a coroutine function, which has done nothing."""
    result = work(txn)
    if inspect.iscoroutine(result):
        result.close()
        raise TypeError(
            f"{work!r} is a coroutine function: neither side is committed. Its writer or pool is that of "
            "tallystick.dualwrite.aio"
        )
    return result


async def call_work_async(work: Callable[[X], Awaitable[C]], txn: X) -> C:
    return await work(txn)


# Optional methods of a store's transaction: `flush`, called at the end of the block, while records can still
# be sent; `sent`, called for every record; `savepoint`, which returns a context manager. Its value may be a
# function: that flushes rows in memory, so that one that is refused is known before records are sent.


def flush_rows(database: object) -> None:
    """Flush rows in memory and run the hooks of the user's session, before Kafka prepares."""
    flush = getattr(database, "flush", None)
    if flush is not None:
        flush()


async def flush_rows_async(database: object) -> None:
    flush = getattr(database, "flush", None)
    if flush is not None:
        await flush()


def notify_sent(database: object) -> None:
    """Notify the database transaction of a sent record, which no savepoint rollback can undo."""
    notify = getattr(database, "sent", None)
    if notify is not None:
        notify()
