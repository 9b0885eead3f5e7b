"""Faults between the sink and its database, where topic and table are decided together.

Every relevant SQL statement and commit passes a point (`spark_torture`), before it is sent and when it is
answered:

    stage             a task's rows, on their way, each piece of them; `commit-stage` is their transaction's
    claim_row         the driver takes the row of its prefix
    decide move mark  the decision is written, the rows are moved; afterwards the note that all is completed
    commit-decide     the commit point. A failure after it loses the answer: the driver does not know it
"""

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any, Final

import psycopg
import pymysql
from sqlalchemy import Engine, event
from tests.support.spark_torture import Effects, EndedOneByOne, TorturedStation, strike

from tallystick.client.net.cluster import Cluster
from tallystick.spark.decisions.database import DecisionDatabase, get_engine, resolve_database
from tallystick.spark.decisions.decision_table import TABLE
from tallystick.spark.decisions.store_log import DatabaseParticipants
from tallystick.spark.options.sink_options import SinkOptions
from tallystick.spark.options.sinks import Sink, ToTable, to_table, to_topic
from tallystick.spark.protocol.ports import DecisionLogPort, ParticipantsPort
from tallystick.spark.sink.driver.context import OpenContext, SinkContext, get_sink_context
from tallystick.spark.sink.driver.database_context import DatabaseSinkContext

TARGET: Final = "rows_of_the_query"
DATABASE_POINTS: Final = tuple(
    f"{name}.{when}"
    for name in ("claim_row", "commit-claim_row", "decide", "move", "commit-decide", "mark", "commit-mark")
    for when in ("before", "after")
)
STAGING_POINTS: Final = tuple(
    f"{name}.{when}" for name in ("stage", "commit-stage") for when in ("before", "after")
)
# How a statement begins, and its purpose. The first of several in a transaction names its commit.
_MEANT: Final = (
    ("INSERT INTO tallystick_staged_", "stage"),
    (f"INSERT INTO {TABLE} ", "claim_row"),
    (f"INSERT INTO {TARGET} ", "move"),
    (f"UPDATE {TABLE} SET done", "mark"),
    (f"UPDATE {TABLE} SET ", "decide"),
)

# The drivers' errors for a lost server.
_LOST: Final = {
    "postgresql": psycopg.OperationalError("server closed the connection unexpectedly"),
    "mysql": pymysql.OperationalError(2013, "Lost connection to MySQL server during query"),
}

_disturbed: Final[set[tuple[int, int]]] = set()


def sinks(topic: str) -> tuple[Sink, ...]:
    return to_topic(topic, key="value", value="value"), to_table(TARGET, columns={"id": "value"})


def disturb(engine: Engine) -> None:
    """Let the statements of this process pass their points; repeated calls have no effect."""
    if (os.getpid(), id(engine)) in _disturbed:
        return
    _disturbed.add((os.getpid(), id(engine)))
    in_progress: dict[Any, str] = {}

    @event.listens_for(engine, "before_cursor_execute")
    def before(connection: Any, _cursor: Any, statement: str, *_: Any) -> None:
        if (name := _meaning(statement)) is not None:
            in_progress.setdefault(connection.connection.dbapi_connection, name)
            strike(f"{name}.before")

    @event.listens_for(engine, "after_cursor_execute")
    def after(_connection: Any, _cursor: Any, statement: str, *_: Any) -> None:
        if (name := _meaning(statement)) is not None:
            strike(f"{name}.after")

    class Cursor(psycopg.Cursor[Any]):
        """A cursor that notices COPY, which PostgreSQL stages rows with and SQLAlchemy does not report."""

        @contextmanager
        def copy(self, *given: Any, **options: Any) -> Iterator[psycopg.Copy]:
            in_progress.setdefault(self.connection, "stage")
            strike("stage.before")
            with super().copy(*given, **options) as copy:
                yield copy
            strike("stage.after")

    @event.listens_for(engine, "checkout")
    def taken(connection: Any, *_: Any) -> None:
        if isinstance(connection, psycopg.Connection):
            connection.cursor_factory = Cursor

    commit: Callable[[Any], None] = engine.dialect.do_commit

    def do_commit(connection: Any) -> None:
        name = in_progress.pop(connection.dbapi_connection, None)
        if name is None:
            commit(connection)
            return
        strike(f"commit-{name}.before")
        commit(connection)
        if strike(f"commit-{name}.after") in ("kill-database", "lose-database"):
            raise _LOST[engine.dialect.name]

    engine.dialect.do_commit = do_commit  # type: ignore[method-assign]

    @event.listens_for(engine, "begin")
    def begun(connection: Any) -> None:
        in_progress.pop(connection.connection.dbapi_connection, None)


def _meaning(statement: str) -> str | None:
    return next((name for start, name in _MEANT if statement.startswith(start)), None)


class TorturedTableStation(DatabaseSinkContext):
    """The driver's station."""

    def __init__(self, options: SinkOptions, where: DecisionDatabase, tables: tuple[ToTable, ...]) -> None:
        disturb(get_engine(where))
        super().__init__(options, where, tables)

    def create_ports(self, cluster: Cluster) -> tuple[ParticipantsPort, DecisionLogPort]:
        super().create_ports(cluster)
        one_by_one = EndedOneByOne(cluster, self.options, 20_000)
        participants: Any = Effects(DatabaseParticipants(one_by_one, self.decision_row))
        decisions: Any = Effects(self.decision_log)
        return participants, decisions


def connect_task(url: str) -> OpenContext:
    """Return how a task reaches the cluster, with its database disturbed; it writes the topic first."""
    return partial(_connect_task, url)


def _connect_task(url: str, options: SinkOptions) -> SinkContext:
    disturb(get_engine(resolve_database(url)))
    return get_sink_context(options, TorturedStation)
