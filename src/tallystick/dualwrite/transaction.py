"""What a user has inside the block: the database's half by its own names, and where to send records.

A store's transaction may call what the user works with by names of its own. They are handed on here with
their types, so that `txn.session` of a writer over SqlStore is a Session to a type checker, and an error over
a store that has none.
"""

from collections.abc import Mapping
from typing import Generic, Protocol, TypeVar

from tallystick.dualwrite.errors import NotYours

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

    def check_open(self) -> None:
        if self._ended:
            raise NotYours("this transaction has ended; begin another with `with writer.transaction()`")


def one_of(producers: Mapping[str, C], cluster: str | None) -> C:
    """The producer of a cluster; without a name, of the only one. Raises: ValueError."""
    if cluster is None and len(producers) == 1:
        return next(iter(producers.values()))
    if cluster is None or cluster not in producers:
        raise ValueError(f"cluster={cluster!r}: this writer has {', '.join(producers)}")
    return producers[cluster]
