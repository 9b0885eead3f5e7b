"""Calls of SQLAlchemy that differ between a blocking and an asyncio engine, in pairs.

The stores themselves are written once: `sql` is generated from `sql_async`, which uses the functions with the
suffix `_async`.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, TypeVar, cast

from sqlalchemy import Connection, Engine
from sqlalchemy.orm import Session

from tallystick.dualwrite.stores.sql_guard import watch_engine
from tallystick.kernel.check import require

if TYPE_CHECKING:
    from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine, AsyncSession

A = ParamSpec("A")
T = TypeVar("T")


def get_connection(connection: Connection) -> Connection:
    """Return SQLAlchemy's blocking connection, for the event system."""
    return connection


def get_connection_async(connection: "AsyncConnection") -> Connection:
    return require(connection.sync_connection, "a connection that was begun")


def derive_guarded_engine(engine: Engine) -> Engine:
    """Return an engine over the same pool, with the guard's listeners."""
    derived = engine.execution_options()
    watch_engine(derived)
    return derived


def derive_guarded_engine_async(engine: "AsyncEngine") -> "AsyncEngine":
    derived = engine.execution_options()
    watch_engine(derived.sync_engine)
    return derived


def get_engine(engine: Engine) -> Engine:
    """Return SQLAlchemy's blocking engine, which has the pool."""
    return engine


def get_engine_async(engine: "AsyncEngine") -> Engine:
    return engine.sync_engine


def get_session(session: Session) -> Session:
    """Return SQLAlchemy's blocking session, for the event system."""
    return session


def get_session_async(session: "AsyncSession") -> Session:
    return session.sync_session


def get_driver_connection(connection: Connection) -> Any:
    """Return the driver's connection."""
    return cast(Any, connection.connection.driver_connection)


async def get_driver_connection_async(connection: "AsyncConnection") -> Any:
    return (await connection.get_raw_connection()).driver_connection


def roll_back_driver(connection: Connection) -> None:
    """Roll back what the database may have open, although SQLAlchemy's transaction has ended.

    A COMMIT that was refused ends SQLAlchemy's transaction, which then returns the connection to the pool
    without a ROLLBACK: what is open in it would be committed with what the next user of it writes.
    """
    if connection.invalidated:
        return
    try:
        connection.dialect.do_rollback(connection.connection)
    except BaseException as exc:
        connection.invalidate()
        if not isinstance(exc, Exception):
            raise


def call_with_connection(
    connection: Connection,
    function: Callable[Concatenate[Connection, A], T],
    *args: A.args,
    **kwargs: A.kwargs,
) -> T:
    """Call blocking code on a connection."""
    return function(connection, *args, **kwargs)


async def call_with_connection_async(
    connection: "AsyncConnection",
    function: Callable[Concatenate[Connection, A], T],
    *args: A.args,
    **kwargs: A.kwargs,
) -> T:
    return await connection.run_sync(function, *args, **kwargs)


def call_with_session(
    session: Session, function: Callable[Concatenate[Session, A], T], *args: A.args, **kwargs: A.kwargs
) -> T:
    """Call blocking code on a session."""
    return function(session, *args, **kwargs)


async def call_with_session_async(
    session: "AsyncSession",
    function: Callable[Concatenate[Session, A], T],
    *args: A.args,
    **kwargs: A.kwargs,
) -> T:
    return await session.run_sync(function, *args, **kwargs)
