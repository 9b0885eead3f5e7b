"""What a user has inside the block: the database's half by its own names, and where to send records.

A store's transaction may call what the user works with by names of its own. They are handed on here with
their types, so that `txn.session` of a writer over SqlStore is a Session to a type checker, and an error over
a store that has none.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import AsyncExitStack, ExitStack, contextmanager
from functools import partial
from typing import Any, Generic, Protocol, TypeVar

from tallystick.dualwrite.errors import NotYours
from tallystick.dualwrite.forks import Home, leave_to_parent

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


class Half(Generic[D_co]):
    """The database's half of one transaction, until the block ends."""

    def __init__(self, database: D_co) -> None:
        self._database = database
        self._ended = False
        self.home = Home()
        self.home.enter("this transaction")

    def end(self) -> None:
        """The block has ended: whatever is kept of it is of no use any more."""
        self._ended = True

    @property
    def database(self) -> D_co:
        """The store's transaction. Its commit and rollback are the writer's."""
        self.check_open()
        return self._database

    @property
    def session(self: "Half[HasSession[X]]") -> X:
        """The SQLAlchemy Session of this transaction. Commit and roll back are the writer's."""
        return self.database.session

    @property
    def connection(self: "Half[HasConnection[X]]") -> X:
        """The SQLAlchemy Connection of this transaction. Commit and roll back are the writer's."""
        return self.database.connection

    @property
    def handle(self: "Half[HasHandle[X]]") -> X:
        """What the store gives to work with, whatever it is called there."""
        return self.database.handle

    def check_process(self) -> None:
        """Raises: NotYours in a child of the process that began it."""
        self.home.check("this transaction")

    def check_open(self) -> None:
        self.check_process()
        if self._ended:
            raise NotYours("this transaction has ended; begin another with `with writer.transaction()`")


class Savepoint:
    """Rows and records that are kept or taken back together, inside a transaction.

    What is sent here goes out when the savepoint is released; if its block raises, nothing of it does.
    """

    def __init__(self, send: Callable[..., object], send_batch: Callable[..., object]) -> None:
        """Args: the transaction's own."""
        self.kept: list[Callable[[], object]] = []
        self._send = send
        self._send_batch = send_batch

    def send(self, *args: object, **named: object) -> None:
        """As the transaction's `send`, later."""
        self.kept.append(partial(self._send, *args, **named))

    def send_batch(self, *args: object, **named: object) -> None:
        """As the transaction's `send_batch`, later."""
        self.kept.append(partial(self._send_batch, *args, **named))


def savepoint_of(database: object) -> Any:
    """The store's savepoint, a context manager. Raises: NotYours without one."""
    begin = getattr(database, "savepoint", None)
    if begin is None:
        raise NotYours(f"{type(database).__name__} has no savepoints: what is in its transaction stays in it")
    return begin()


@contextmanager
def left_if_forked(home: Home, stack: ExitStack | AsyncExitStack) -> Iterator[None]:
    """In a forked child what is in `stack` is not ended: its parent's savepoint would be."""
    try:
        yield
    finally:
        if home.is_elsewhere:
            leave_to_parent(stack.pop_all())


class Leaving(Protocol):
    """`Session`, which must not depend on how its facades end."""

    def leave(self, block: object) -> None: ...


class Block:
    """What a call of a facade enters a session with, and leaves, however it ends.

    It is entered twice, `with Block(session) as block, block:`: the interrupt that keeps one from leaving is
    met by the other.
    """

    def __init__(self, session: Leaving) -> None:
        self._session = session

    def __enter__(self) -> "Block":
        return self

    def __exit__(self, *_: object) -> None:
        self._session.leave(self)


def one_of(producers: Mapping[str, C], cluster: str | None) -> C:
    """The producer of a cluster; without a name, of the only one. Raises: ValueError."""
    if cluster is None and len(producers) == 1:
        return next(iter(producers.values()))
    if cluster is None or cluster not in producers:
        raise ValueError(f"cluster={cluster!r}: this writer has {', '.join(producers)}")
    return producers[cluster]


# What a store's transaction may have beyond the contract: `flush`, called at the end of the block, while
# records can still be sent; `sent`, told of every record; `savepoint`, a context manager.


def flush_rows(database: object) -> None:
    """Rows that are still in memory, and hooks of the user's session, come before Kafka prepares."""
    flush = getattr(database, "flush", None)
    if flush is not None:
        flush()


async def flush_rows_async(database: object) -> None:
    flush = getattr(database, "flush", None)
    if flush is not None:
        await flush()


def note_sent(database: object) -> None:
    """A record is on its way: a savepoint that is rolled back does not take it back."""
    sent = getattr(database, "sent", None)
    if sent is not None:
        sent()
