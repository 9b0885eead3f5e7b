"""Connections of an engine's pool across a fork.

A child has copies of the pool's connections. Two processes that use one would share one transaction of the
server: a COMMIT of the one would commit the other's rows. So the child's engine gets a new pool, and nothing
of the old one is closed there, since a close would be sent to the parent's server.

SQLite keeps what it knows of a file once for each process, locks included, and the child has a copy of that.
No connection that is opened next to an inherited one is safe, so the store is refused there.

Sources: SQLAlchemy, "Using Connection Pools with Multiprocessing or os.fork()"; SQLite, "How To Corrupt An
SQLite Database File", 2.6.
"""

import os

from sqlalchemy import Engine
from sqlalchemy.pool import NullPool, Pool, QueuePool

from tallystick.dualwrite.errors import ManagedByWriter
from tallystick.dualwrite.forks import leak_reference, watch_forks


class PoolAcrossForks:
    """The pool of a store's engine: the parent's connections stay the parent's."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._parent_pid: int | None = None
        watch_forks(self)

    def leave_to_parent(self) -> None:
        """Give the engine a new pool, and never close a connection of the old one."""
        pool = self._engine.pool
        leak_reference(pool)
        if self._engine.dialect.name == "sqlite" and _has_open_connections(pool):
            self._parent_pid = os.getppid()
        self._engine.dispose(close=False)

    def check_process(self) -> None:
        """Raise ManagedByWriter in a child that cannot have a connection of its own [DW-11]."""
        if self._parent_pid is not None:
            raise ManagedByWriter(
                f"process {self._parent_pid} had {self._engine.url!r} open when it forked this one; SQLite "
                "cannot be used across a fork: nothing was done here. Call engine.dispose() before the fork"
            )


def _has_open_connections(pool: Pool) -> bool:
    """Return whether a pool may have a connection open. A NullPool's are its user's, and end with the use."""
    if isinstance(pool, QueuePool):
        return pool.checkedin() + pool.checkedout() > 0
    return not isinstance(pool, NullPool)
