"""Rows of an SQL store, Django's among them, and decisions of Spark's queries.

Read on one connection that may change nothing, with a limit to each statement.
"""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Final

from sqlalchemy import URL, Connection, Engine, create_engine, event, inspect, make_url, select, text
from sqlalchemy.exc import DBAPIError
from sqlalchemy.pool import NullPool, QueuePool

from tallystick import _lazy
from tallystick.console.collect.failures import limit_sentences
from tallystick.console.model.snapshot import (
    PartStatus,
    PrefixFacts,
    ServerPreparedTransaction,
    StoreFacts,
    StoreKind,
)
from tallystick.dualwrite.errors import BadStore, CorruptRow
from tallystick.dualwrite.rules.leases import LeaseList
from tallystick.dualwrite.rules.model import LEASE_TABLE, TABLE, StoredState, from_columns
from tallystick.dualwrite.stores.by_url import refuse_replicas
from tallystick.dualwrite.stores.lease_table import LeaseTable, leases_from_rows
from tallystick.dualwrite.stores.sql_table import MYSQL, DualWriteTables
from tallystick.spark.decisions import decision_table

PREPARED_MAX: Final = 1000
_DRIVERS: Final = {"postgresql": "postgresql+psycopg", "mysql": "mysql+pymysql", "mariadb": "mariadb+pymysql"}
_ENGINE_NAMES: Final = {
    "postgresql": "PostgreSQL",
    "mysql": "MySQL",
    "mariadb": "MariaDB",
    "sqlite": "SQLite",
}
_PREPARED: Final = (
    "SELECT gid, owner, database, CAST(EXTRACT(EPOCH FROM prepared) * 1000 AS BIGINT) "
    f"FROM pg_prepared_xacts ORDER BY prepared LIMIT {PREPARED_MAX}"
)

_READ_ONLY: Final = """
SELECT (SELECT reset_val FROM pg_settings WHERE name = 'default_transaction_read_only') = 'on'
    AND NOT EXISTS (
        SELECT 1 FROM pg_db_role_setting JOIN pg_roles ON pg_roles.oid = setrole
        WHERE rolname = session_user AND 'default_transaction_read_only=on' = ANY (setconfig)
    )
"""


def open_sql_rows(url: str, name: str, limit_ms: int) -> "SqlRows":
    """Prepare to read the store of an SQLAlchemy URL, without connecting."""
    address = make_url(url)
    file: Path | None = None
    # A connection to SQLite stays with the file that it opened, even when a backup replaces that.
    pool: dict[str, Any] = {"poolclass": NullPool}
    if address.get_backend_name() == "sqlite":
        file = Path(address.database or ":memory:")
    else:
        pool = {"poolclass": QueuePool, "pool_size": 1, "max_overflow": 0, "pool_pre_ping": True}
        if address.drivername == address.get_backend_name():
            address = address.set(drivername=_DRIVERS.get(address.drivername, address.drivername))
    with _lazy.naming_drivers():
        engine = create_engine(address, connect_args=_connect_arguments(address, limit_ms), **pool)
    event.listen(engine, "connect", lambda driver, _: _restrict(driver, address.get_backend_name(), limit_ms))
    refuse_replicas(engine)
    return SqlRows(engine, name, file)


def _connect_arguments(address: URL, limit_ms: int) -> dict[str, object]:
    limit_s = max(1, limit_ms // 1000)
    wanted: dict[str, object] = {}
    match address.get_driver_name():
        case "psycopg" | "psycopg2":
            wanted = {"connect_timeout": limit_s, "application_name": "tallystick console"}
        case "pymysql":
            wanted = {"connect_timeout": limit_s, "read_timeout": limit_s}
        case "pysqlite":
            wanted = {"timeout": limit_s}
    return {name: value for name, value in wanted.items() if name not in address.query}


def _restrict(driver: Any, backend: str, limit_ms: int) -> None:
    """Let a new connection change nothing, and limit its statements as far as the server can."""
    statements: Mapping[str, tuple[str, ...]] = {
        "postgresql": ("SET default_transaction_read_only = on", f"SET statement_timeout = {limit_ms}"),
        "mysql": ("SET SESSION TRANSACTION READ ONLY",),
        "mariadb": ("SET SESSION TRANSACTION READ ONLY",),
        "sqlite": ("PRAGMA query_only = ON",),
    }
    cursor = driver.cursor()
    for statement in statements.get(backend, ()):
        cursor.execute(statement)
    cursor.close()
    driver.commit()  # PostgreSQL forgets a SET of a transaction that is rolled back


class SqlRows:
    """`RowSource` of an SQL database."""

    def __init__(self, engine: Engine, name: str, file: Path | None) -> None:
        """Read over an engine.

        Args:
            file: of an SQLite database, which is not created by reading it.
        """
        self._engine, self._name, self._file = engine, name, file
        self.folder = None if file is None else file.absolute().parent
        self._tables = DualWriteTables()
        self._leases = LeaseTable(self._tables)
        self._known_tables: set[str] = set()
        self._decoded: dict[str, tuple[tuple[object, ...], StoredState]] = {}

    def read(self) -> StoreFacts:
        if self._file is not None and not self._file.is_file():
            raise BadStore(f"{self._file} is not a file on this host")
        with self._engine.connect() as connection:
            self._find_tables(connection)
            failures: list[str] = []
            rows = self._read_states(connection, failures) if TABLE in self._known_tables else {}
            leases = self._read_leases(connection) if LEASE_TABLE in self._known_tables else LeaseList(0, ())
            prefixes: tuple[PrefixFacts, ...] = ()
            if decision_table.TABLE in self._known_tables:
                prefixes = self._read_decisions(connection, failures)
            if not self._known_tables & {TABLE, decision_table.TABLE}:
                failures.append(f"neither {TABLE} nor {decision_table.TABLE} is there, or may be read")
            return StoreFacts(
                status=PartStatus(failures=limit_sentences(failures)),
                name=self._name,
                kind=StoreKind.SQL,
                engine=_describe_engine(connection),
                rows=rows,
                leases=leases.rows,
                lease_now_ms=leases.now_ms,
                server_prepared=_read_server_prepared(connection),
                prefixes=prefixes,
                refusal=_read_refusal(connection),
            )

    def close(self) -> None:
        self._engine.dispose()

    def _find_tables(self, connection: Connection) -> None:
        """Find which tables are there; one that was missing may have been made since."""
        missing = {TABLE, LEASE_TABLE, decision_table.TABLE} - self._known_tables
        if missing:
            inspector = inspect(connection)
            self._known_tables |= {each for each in missing if inspector.has_table(each)}

    def _read_states(self, connection: Connection, failures: list[str]) -> dict[str, StoredState]:
        """Read all rows; a row that has not changed is not decoded again."""
        decoded: dict[str, tuple[tuple[object, ...], StoredState]] = {}
        result = connection.execute(select(self._tables.states))
        columns = tuple(result.keys())
        for row in result:
            values = tuple(row)
            name = str(values[0])
            known = self._decoded.get(name)
            if known is not None and known[0] == values:
                decoded[name] = known
                continue
            try:
                decoded[name] = values, from_columns(dict(zip(columns, values, strict=True)))
            except CorruptRow as exc:
                failures.append(str(exc))
        self._decoded = decoded
        return {name: state for name, (_, state) in decoded.items()}

    def _read_leases(self, connection: Connection) -> LeaseList:
        now_ms = connection.execute(self._leases.read_now(connection.dialect.name)).scalar_one()
        rows: Iterable[Mapping[str, Any]] = connection.execute(self._leases.read(None)).mappings().all()  # type: ignore[assignment]
        return leases_from_rows(now_ms, rows)

    def _read_decisions(self, connection: Connection, failures: list[str]) -> tuple[PrefixFacts, ...]:
        decision_rows = decision_table.read_all(connection)
        failures += [f"{prefix}: {failure}" for prefix, failure in decision_rows.failures.items()]
        return tuple(
            PrefixFacts(
                prefix=prefix, source=self._name, decision=state.decision, is_complete=state.is_complete
            )
            for prefix, state in decision_rows.states.items()
        )


def _describe_engine(connection: Connection) -> str:
    dialect: Any = connection.dialect
    name = "mariadb" if getattr(dialect, "is_mariadb", False) else dialect.name
    if name == "sqlite":
        return f"SQLite {dialect.dbapi.sqlite_version}"
    version = ".".join(str(each) for each in dialect.server_version_info or ())
    return f"{_ENGINE_NAMES.get(name, name)} {version}".strip()


def _read_refusal(connection: Connection) -> str:
    """Read why a PostgreSQL server refuses all writers; "" for any other one.

    A setting of this user's own role is none that they share.
    """
    if connection.dialect.name != "postgresql":
        return ""
    is_refusing = bool(connection.execute(text(_READ_ONLY)).scalar_one())
    return "default_transaction_read_only is on for all of its users" if is_refusing else ""


def _read_server_prepared(connection: Connection) -> tuple[ServerPreparedTransaction, ...]:
    """Read the prepared transactions of the server, if it has any and this user may see them."""
    try:
        if connection.dialect.name == "postgresql":
            rows = connection.execute(text(_PREPARED)).all()
            return tuple(
                ServerPreparedTransaction(gid=gid, owner=owner, database=database, prepared_ms=int(at_ms))
                for gid, owner, database, at_ms in rows
            )
        if connection.dialect.name in MYSQL:
            recovered = connection.execute(text("XA RECOVER")).all()
            return tuple(
                ServerPreparedTransaction(gid=_to_text(row[3]), owner="", database="", prepared_ms=None)
                for row in recovered[:PREPARED_MAX]
            )
    except DBAPIError:  # MySQL has a privilege for it, which a user who reads need not have
        return ()
    return ()


def _to_text(value: object) -> str:
    return value.decode(errors="replace") if isinstance(value, bytes) else str(value)
