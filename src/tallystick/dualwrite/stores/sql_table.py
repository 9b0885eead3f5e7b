"""Tables and statements of the SQL stores, and the durability checks for each database.

Shared by the blocking and asyncio stores: only `create` and `check_durable` execute statements. Needs
SQLAlchemy 2, the extra `sql`.
"""

import logging
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from sqlalchemy import (
    BigInteger,
    Column,
    Connection,
    Dialect,
    Executable,
    Insert,
    Integer,
    MetaData,
    PrimaryKeyConstraint,
    SmallInteger,
    String,
    Table,
    Text,
    Update,
    bindparam,
    false,
    func,
    insert,
    inspect,
    select,
    text,
    update,
)
from sqlalchemy.dialects import mysql, postgresql, sqlite
from sqlalchemy.exc import DatabaseError, DBAPIError, IntegrityError
from sqlalchemy.schema import CreateTable
from sqlalchemy.sql import ColumnElement
from sqlalchemy.types import TypeDecorator, TypeEngine

from tallystick.dualwrite.errors import BadStore, UnsafeDurability, WriterFenced
from tallystick.dualwrite.rules.model import TABLE, StoredState, from_columns, to_columns
from tallystick.dualwrite.rules.refusals import is_refusal
from tallystick.dualwrite.stores.base import OffsetAdvance, check_record
from tallystick.dualwrite.stores.durability import STRICT, AllowedRisks, check_postgresql, check_sqlite
from tallystick.dualwrite.stores.sql_places import TablePlaces
from tallystick.kernel.check import check
from tallystick.kernel.ids import TopicPartition

_log = logging.getLogger("tallystick.dualwrite")

OFFSETS_TABLE: Final = "kafka_consumed_offsets"
CHECKED_INFO_KEY: Final = "tallystick.durable"
"""The key in a connection's `info` that marks it as checked."""

_ID_PARAM: Final = "recorded_id"
_OWNER_PARAM: Final = "recorded_owner"
_BEFORE_STATE_PARAM: Final = "recorded_before"
_MARK_SETTING: Final = "tallystick.block"
_MARK_PARAM: Final = "recorded_mark"
_SAVEPOINT: Final = "tallystick_block"
_NAME_BYTES_MAX: Final = 750  # four such names fit into one InnoDB key
MYSQL: Final = ("mysql", "mariadb")


class ExactText(TypeDecorator[str]):
    """Text compared byte by byte.

    PostgreSQL and SQLite have a collation for that. The collations that MySQL and MariaDB share ignore
    trailing spaces or case, and would merge two ids, so the column holds bytes there.
    """

    impl = Text
    cache_ok = True

    def load_dialect_impl(self, dialect: Dialect) -> TypeEngine[Any]:
        if dialect.name in MYSQL:
            return dialect.type_descriptor(mysql.VARBINARY(_NAME_BYTES_MAX))
        return dialect.type_descriptor(Text(collation="C" if dialect.name == "postgresql" else "BINARY"))

    def process_bind_param(self, value: str | None, dialect: Dialect) -> object:
        return value.encode() if value is not None and dialect.name in MYSQL else value

    def process_result_value(self, value: object, dialect: Dialect) -> str | None:
        return value.decode() if isinstance(value, bytes | bytearray) else value  # type: ignore[return-value]


class DualWriteTables:
    """The two tables, in a MetaData that may be the user's own (for Alembic and similar tools)."""

    def __init__(self, metadata: MetaData | None = None, *, schema: str | None = None) -> None:
        """Declare the tables.

        Args:
            schema: database schema of the tables; None for the connection's default.
        """
        metadata = MetaData() if metadata is None else metadata
        self.states = Table(
            TABLE,
            metadata,
            Column("transactional_id", ExactText, primary_key=True),
            Column("owner", String(64), nullable=False),
            Column("prepared_transaction_state", String(64), nullable=False),
            Column("settled", SmallInteger, nullable=False),
            Column("former_producer_ids", Text, nullable=False),
            Column("cluster_id", Text),
            Column("transaction_version", Integer),
            Column("started_at", BigInteger),
            Column("timeout_ms", Integer),
            Column("schema_version", Integer, nullable=False),
            schema=schema,
            mysql_engine="InnoDB",
        )
        self.offsets = Table(
            OFFSETS_TABLE,
            metadata,
            Column("consumer_group", ExactText, nullable=False),
            Column("topic", ExactText, nullable=False),
            Column("partition_id", Integer, nullable=False, autoincrement=False),
            Column("next_offset", BigInteger, nullable=False),
            PrimaryKeyConstraint("consumer_group", "topic", "partition_id"),
            schema=schema,
            mysql_engine="InnoDB",
        )
        # Built once: that costs SQLAlchemy as much as the rest of a statement.
        states = self.states.c
        owned = update(self.states).where(
            states.transactional_id == bindparam(_ID_PARAM), states.owner == bindparam(_OWNER_PARAM)
        )
        same = owned.where(states.prepared_transaction_state == bindparam(_BEFORE_STATE_PARAM))
        self._replace_statements: Final = {False: owned, True: same}
        # A transaction can turn durability off for itself (SET LOCAL), so the same statement returns the
        # setting. And if the transaction was ended unnoticed, asyncpg begins no other: the UPDATE would
        # autocommit, hence the condition on the mark.
        self._replace_returning: Final = {
            compares: each.where(_mark_expression() == bindparam(_MARK_PARAM)).returning(
                func.current_setting("synchronous_commit")
            )
            for compares, each in self._replace_statements.items()
        }

    # ---- statements

    def claim(self, row: StoredState, dialect: str) -> Executable:
        """Build the claim: set `row.owner`, or insert the row. Execution waits for the row's lock."""
        values = to_columns(row)
        if dialect in MYSQL:
            return mysql.insert(self.states).values(values).on_duplicate_key_update(owner=row.owner)
        statement = postgresql.insert(self.states) if dialect == "postgresql" else sqlite.insert(self.states)
        return statement.values(values).on_conflict_do_update(
            index_elements=["transactional_id"], set_={"owner": row.owner}
        )

    def lock(self) -> Executable:
        """Change no row: SQLite takes its write lock for that."""
        return update(self.states).where(false()).values(owner=self.states.c.owner)

    def read(self, transactional_id: str) -> Executable:
        return select(self.states).where(self.states.c.transactional_id == transactional_id)

    def read_locked(self, transactional_id: str) -> Executable:
        """Select the current row, regardless of this transaction's snapshot."""
        return select(self.states).where(self.states.c.transactional_id == transactional_id).with_for_update()

    def ids(self) -> Executable:
        return select(self.states.c.transactional_id).order_by(self.states.c.transactional_id)

    def record(self, dialect: str, *, compares: bool) -> Update:
        """Replace a row if its owner, and optionally its state, is unchanged.

        Parameters from `record_parameters`.
        """
        return (self._replace_returning if dialect == "postgresql" else self._replace_statements)[compares]

    def read_offsets(self, group: str) -> Executable:
        offsets = self.offsets.c
        return select(offsets.topic, offsets.partition_id, offsets.next_offset).where(
            offsets.consumer_group == group
        )

    def move_offset(self, group: str, at: TopicPartition, moved: OffsetAdvance, dialect: str) -> Executable:
        """Insert or replace one offset if it is still `before`: one row if so. PostgreSQL returns marks."""
        statement = self._move_offset(group, at, moved)
        return statement.returning(_mark_expression()) if dialect == "postgresql" else statement

    def _move_offset(self, group: str, at: TopicPartition, moved: OffsetAdvance) -> Insert | Update:
        if moved.before is None:
            statement = insert(self.offsets).values(
                consumer_group=group, topic=at.topic, partition_id=at.partition, next_offset=moved.after
            )
            return statement.execution_options(preserve_rowcount=True)
        offsets = self.offsets.c
        same: Sequence[ColumnElement[bool]] = (
            offsets.consumer_group == group,
            offsets.topic == at.topic,
            offsets.partition_id == at.partition,
            offsets.next_offset == moved.before,
        )
        return update(self.offsets).where(*same).values(next_offset=moved.after)


def create_tables(connection: Connection, tables: Iterable[Table], places: TablePlaces) -> None:
    """Create missing tables and check existing ones. Raises: BadStore."""
    if connection.dialect.name == "postgresql":
        # Under concurrent creation, IF NOT EXISTS lets one of them fail.
        connection.execute(select(func.pg_advisory_xact_lock(func.hashtext(TABLE))))
    for table in tables:
        connection.execute(CreateTable(table, if_not_exists=True), execution_options=places.options(table))
        _check_table(connection, table, places.get_schema(table))


def _check_table(connection: Connection, table: Table, schema: str | None) -> None:
    column_names = {column["name"] for column in inspect(connection).get_columns(table.name, schema)}
    missing = [column.name for column in table.columns if column.name not in column_names]
    if missing:
        raise BadStore(f"table {table.fullname} is of another version: it has no {', '.join(missing)}")
    if connection.dialect.name in MYSQL:
        options = inspect(connection).get_table_options(table.name, schema)
        engine = options.get("mysql_engine") or options.get("mariadb_engine")
        if engine not in (None, "InnoDB"):
            raise BadStore(f"table {table.fullname} is kept by {engine}, which has no transactions")


def _mark_expression() -> ColumnElement[str]:
    return func.coalesce(func.current_setting(_MARK_SETTING, True), "")


def select_mark() -> Executable:
    """Select the mark of PostgreSQL's open transaction, for `check_mark`."""
    return select(_mark_expression())


def record_parameters(
    row: StoredState, before: StoredState | None, dialect: str, mark: str
) -> Mapping[str, object]:
    """Build the parameters of `DualWriteTables.record`."""
    values = dict(to_columns(row))
    compared = {} if before is None else {_BEFORE_STATE_PARAM: str(before.state)}
    if dialect == "postgresql":
        compared[_MARK_PARAM] = mark
    return {
        _ID_PARAM: values.pop("transactional_id"),
        _OWNER_PARAM: values.pop("owner"),
        **compared,
        **values,
    }


def count_recorded(answers: Sequence[Sequence[Any]], allowed: AllowedRisks) -> int:
    """Count the rows PostgreSQL replaced: none in another transaction [DW-11]. Raises: UnsafeDurability."""
    for (synchronous_commit,) in answers:
        check_postgresql(str(synchronous_commit), allowed)
    return len(answers)


def raise_not_recorded(
    stored_row: Mapping[str, object] | None, row: StoredState, before: StoredState | None
) -> None:
    """Raise the reason why `record` changed no row: WriterFenced or DatabaseBehind.

    MySQL counts unchanged rows only if the client has set CLIENT.FOUND_ROWS; a row already equal to `row`
    is correct.
    """
    now = None if stored_row is None else from_columns(stored_row)
    check_record(now, row, before)
    if now != row:
        raise WriterFenced(row.transactional_id, row.owner)


def offsets_from_rows(rows: Iterable[Mapping[str, Any]]) -> Mapping[TopicPartition, int]:
    """Convert the result mappings of `read_offsets`."""
    return {TopicPartition(row["topic"], row["partition_id"]): row["next_offset"] for row in rows}


# ---- durability of a database

CLAIM_LOCK_S: Final = 60
_CLAIM_STATEMENT: Final[Mapping[str, str]] = {
    # The server keeps the locks of a client whose host is gone until TCP keepalive notices: two hours.
    # InnoDB and SQLite limit the wait by default.
    "postgresql": f"SET LOCAL lock_timeout = '{CLAIM_LOCK_S}s'",
}


def first_statements(dialect: str, *, claiming: bool) -> tuple[Executable, ...]:
    """Return the statements at the beginning of every transaction, or of every claim."""
    marking = f"SAVEPOINT {_SAVEPOINT}" if dialect != "postgresql" else None
    limit = _CLAIM_STATEMENT.get(dialect) if claiming else marking
    return () if limit is None else (text(limit),)


def begin_on_sqlite(connection: Connection, locking: Executable, options: Mapping[str, Any]) -> None:
    """Acquire SQLite's write lock first: a transaction that reads first may be unable to write later.

    The driver may have begun already: with SQLAlchemy's recipe (`isolation_level=None`, and BEGIN by a
    listener), or `autocommit=False`. There a statement that writes nothing takes the lock.
    """
    driver: Any = connection.connection.driver_connection
    if driver.in_transaction:
        connection.execute(locking, execution_options=options)
    else:
        connection.execute(text("BEGIN IMMEDIATE"))


def lock_limit_statements(dialect: str) -> tuple[Executable, ...]:
    """Return the statements that limit the lock wait of a transaction on a state row alone."""
    limit = _CLAIM_STATEMENT.get(dialect)
    return () if limit is None else (text(limit),)


# A mark distinguishes a transaction from the next one on the same connection [DW-11]. On PostgreSQL it is a
# setting local to the transaction, which the record returns. Elsewhere it is a savepoint: COMMIT, ROLLBACK
# and an implicit COMMIT (DDL, LOCK TABLES, a stored procedure) end it, and then releasing it fails.
_MYSQL_NO_SAVEPOINT: Final = 1305


def mark_statement(mark: str) -> str:
    """Build PostgreSQL's statement that sets the mark. The characters of `mark` need no quoting.

    It is no query, after which a block could no longer choose its isolation level.
    """
    return f"SET LOCAL {_MARK_SETTING} = '{mark}'"


def unmark_statement(dialect: str) -> Executable | None:
    """Build the statement that fails in any other transaction; None where `record` detects that."""
    return None if dialect == "postgresql" else text(f"RELEASE SAVEPOINT {_SAVEPOINT}")


def is_mark_missing(exc: DBAPIError) -> bool:
    """Return whether `unmark_statement` failed because the savepoint is gone."""
    first = next(iter(getattr(exc.orig, "args", ())), None)
    return first == _MYSQL_NO_SAVEPOINT or str(first).startswith("no such savepoint")


_ASYNC_STANDBYS_QUERY: Final = (
    "SELECT current_setting('synchronous_standby_names') = '' AND EXISTS (SELECT FROM pg_stat_replication)"
)
_DURABILITY_QUERIES: Final[Mapping[str, tuple[str, ...]]] = {
    # A transaction-local setting is gone at the next statement if every statement commits. The isolation
    # level does not show it: with an AUTOCOMMIT engine the server answers READ COMMITTED.
    "postgresql": (
        "SHOW synchronous_commit",
        "SHOW fsync",
        "SELECT set_config('tallystick.block', 'open', true)",
        "SELECT coalesce(current_setting('tallystick.block', true), '')",
        # Roles without pg_monitor see only that standbys exist.
        _ASYNC_STANDBYS_QUERY,
    ),
    "mysql": (
        "SELECT @@innodb_flush_log_at_trx_commit",
        "SELECT CASE WHEN @@log_bin THEN @@sync_binlog ELSE 1 END",
        "SELECT @@autocommit",
    ),
    "sqlite": ("PRAGMA synchronous", "PRAGMA journal_mode"),
}


def durability_queries(dialect: str) -> tuple[Executable, ...]:
    """Return the queries for a new connection, each with one value, for `check_durability_answers`.

    Raises: BadStore for an unsupported database.
    """
    family = "mysql" if dialect in MYSQL else dialect
    if family not in _DURABILITY_QUERIES:
        raise BadStore(f"{dialect} is not PostgreSQL, MySQL, MariaDB or SQLite: it needs a store of its own")
    return tuple(text(each) for each in _DURABILITY_QUERIES[family])


PROVED_DRIVERS: Final[Mapping[str, tuple[str, ...]]] = {
    "postgresql": ("psycopg", "psycopg2", "asyncpg"),
    "mysql": ("pymysql", "mysqldb", "asyncmy"),
    "sqlite": ("pysqlite", "aiosqlite"),
}
"""SQLAlchemy's names of the drivers that the tests have proved, `mysqldb` for mysqlclient."""


def check_driver(dialect: Dialect) -> None:
    """Raise BadStore for a driver that may lack what the checks of a block ask of it."""
    proved = PROVED_DRIVERS.get("mysql" if dialect.name in MYSQL else dialect.name)
    if proved is not None and dialect.driver not in proved:
        raise BadStore(
            f"{dialect.name}+{dialect.driver}: it is not proved that with this driver a transaction which a "
            f"block has ended would be noticed. Use {', '.join(proved[:-1])} or {proved[-1]}"
        )


def check_session_factory(session_factory: object) -> None:
    """Raise BadStore for a scoped_session: a block's session is its own, and is made with its connection."""
    if hasattr(session_factory, "registry"):
        raise BadStore(
            "session_factory is a scoped_session, which has one session for all code of a thread or task; "
            "a block has one of its own. Pass the sessionmaker that the scoped_session was made of"
        )


def check_durable(connection: Connection, allowed: AllowedRisks) -> None:
    """Check a connection not checked before, or checked with more allowed. Raises: UnsafeDurability."""
    if connection.dialect.name in MYSQL:
        _check_autocommit(connection)
    if allowed.allows_all:
        return
    if connection.get_execution_options().get("isolation_level") == "AUTOCOMMIT":
        raise UnsafeDurability("isolation level", "AUTOCOMMIT", "a transaction")
    if CHECKED_INFO_KEY in connection.info and connection.info[CHECKED_INFO_KEY] <= allowed.risks:
        return
    dialect = connection.dialect.name
    level = connection.get_isolation_level()
    answers = [connection.execute(each).scalar_one() for each in durability_queries(dialect)]
    connection.rollback()
    check_durability_answers(dialect, level, answers, allowed)
    connection.info[CHECKED_INFO_KEY] = allowed.risks


def _check_autocommit(connection: Connection) -> None:
    """Raise UnsafeDurability if each statement would commit by itself. Costs no round trip.

    A pooled connection may be like that since its last use; it is not used again.
    """
    driver: Any = connection.connection.driver_connection
    if driver.get_autocommit():
        connection.invalidate()
        raise UnsafeDurability("autocommit", "1", "a transaction")


def check_durability_answers(
    dialect: str, isolation_level: str | None, answers: Sequence[object], allowed: AllowedRisks = STRICT
) -> None:
    """Check that a commit on this connection would survive a crash of the database [DW-8].

    Args:
        answers: results of `durability_queries`, in order.
    Raises: UnsafeDurability if it would not, or if every statement commits by itself.
    """
    if isolation_level is not None and isolation_level.upper() == "AUTOCOMMIT":
        raise UnsafeDurability("isolation level", "AUTOCOMMIT", "a transaction")
    values = [str(each).lower() for each in answers]
    match dialect, values:
        case "postgresql", [synchronous, fsync, _, block, async_standbys]:
            _require_transaction("on", open_=block == "open")
            check_postgresql(synchronous, allowed)
            allowed.require("fsync", fsync, safe=fsync == "on", required="on")
            if async_standbys == "true" and not allowed.covers("synchronous_standby_names"):
                _log.warning(ASYNC_STANDBYS_WARNING)
        case (("mysql" | "mariadb"), [flush, binlog, autocommit]):
            _require_transaction(autocommit, open_=autocommit == "0")
            allowed.require("innodb_flush_log_at_trx_commit", flush, safe=flush == "1", required="1")
            required = "1 (with log_bin, recovery takes the binary log's word)"
            allowed.require("sync_binlog", binlog, safe=binlog == "1", required=required)
        case "sqlite", [synchronous, journal]:
            check_sqlite(synchronous, journal, allowed)
        case _:
            check(False, f"{dialect} gave {len(values)} answers")


ASYNC_STANDBYS_WARNING: Final = (
    "PostgreSQL has standbys, and synchronous_standby_names is empty: after a failover commits that it has "
    "acknowledged are gone, and Kafka has their records. A writer finds out afterwards (DatabaseBehind); "
    "name a synchronous standby, and it cannot happen"
)


def _require_transaction(autocommit: str, *, open_: bool) -> None:
    if not open_:
        raise UnsafeDurability("autocommit", autocommit, "a transaction")


def is_missing_table(exc: DBAPIError) -> bool:
    """Return whether a statement failed because the table is missing."""
    state = getattr(exc.orig, "sqlstate", None) or getattr(exc.orig, "pgcode", None)
    first = next(iter(getattr(exc.orig, "args", ())), None)
    return state == "42P01" or first == _MYSQL_NO_TABLE or str(first).startswith("no such table")


# ---- outcome of a commit

_MYSQL_NO_TABLE: Final = 1146


def is_certainly_not_committed(exc: BaseException) -> bool:
    """Return whether this answer to COMMIT proves that it failed; if not, the outcome is unknown [DW-3]."""
    if not isinstance(exc, DBAPIError) or exc.connection_invalidated:
        return False
    if isinstance(exc, IntegrityError):
        return True
    if not isinstance(exc, DatabaseError):
        return False
    return is_refusal(exc.orig)


def describe_driver_error(exc: Exception) -> str:
    """Describe an error without the SQL statement."""
    cause = getattr(exc, "orig", None) or exc
    return f"{type(cause).__name__}: {cause}"
