"""SqlStore under the suite, on each database; and what only it does."""

import sqlite3
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Engine, create_engine, event, make_url, text
from sqlalchemy.exc import OperationalError
from sqlalchemy.orm import Session, scoped_session, sessionmaker
from sqlalchemy.pool import NullPool
from tests.support.servers import MariaDB, PostgreSQL

from tallystick.client.transactions.prepared import PreparedTxnState
from tallystick.dualwrite import (
    BadStore,
    CommitUnknown,
    CorruptRow,
    ManagedByWriter,
    SqlStore,
    UnsafeDurability,
)
from tallystick.dualwrite.rules.model import StoredState
from tallystick.dualwrite.stores.base import OffsetAdvance
from tallystick.dualwrite.stores.durability import DURABILITY_SETTINGS, DurabilitySetting, parse_allowed
from tallystick.dualwrite.stores.sql_table import check_durability_answers, durability_queries
from tallystick.kernel.ids import TopicPartition
from tallystick.kernel.value import replace
from tallystick.testing.store_suite import MakeStore, StoreSuite


class Suite(StoreSuite):
    """The suite over a table of the user's."""

    engine: Engine

    @pytest.fixture
    def stores(self, database: Engine) -> MakeStore:
        self.engine = database
        with database.begin() as connection:
            connection.execute(text("CREATE TABLE mine (value VARCHAR(50))"))
        return lambda: SqlStore(database)

    def write(self, handle: Session, value: str) -> None:
        handle.execute(text("INSERT INTO mine VALUES (:value)"), {"value": value})

    def read(self, _: SqlStore) -> set[str]:
        with self.engine.connect() as connection:
            return set(connection.execute(text("SELECT value FROM mine")).scalars())


def engine_of(url: str, driver: str) -> Engine:
    return create_engine(make_url(url).set(drivername=driver), poolclass=NullPool)


class TestSqlite(Suite):
    @pytest.fixture
    def database(self, tmp_path: Path) -> Engine:
        engine = create_engine(f"sqlite:///{tmp_path / 'rows.db'}", poolclass=NullPool)
        with engine.begin() as connection:
            connection.execute(text("PRAGMA journal_mode = WAL"))  # readers do not wait for the writer
        return engine


@pytest.mark.server
@pytest.mark.slow
class TestPostgresql(Suite):
    @pytest.fixture
    def database(self, postgresql: PostgreSQL) -> Engine:
        return engine_of(postgresql.url(postgresql.new_database()), "postgresql+psycopg")


@pytest.mark.server
@pytest.mark.slow
class TestMariadb(Suite):
    @pytest.fixture
    def database(self, mariadb: MariaDB) -> Engine:
        return engine_of(mariadb.url(mariadb.new_database()), "mysql+pymysql")


@pytest.fixture
def sqlite(tmp_path: Path) -> Engine:
    return create_engine(f"sqlite:///{tmp_path / 'rows.db'}", poolclass=NullPool)


@pytest.fixture(params=["sqlite", pytest.param("mariadb", marks=[pytest.mark.server, pytest.mark.slow])])
def autocommitting(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[Engine, tuple[str, ...]]:
    """A database, and statements after which each other one commits by itself."""
    if request.param == "sqlite":
        url = f"sqlite:///{tmp_path / 'rows.db'}"
        arguments = {"isolation_level": None}
        return create_engine(url, poolclass=NullPool, connect_args=arguments), ("ROLLBACK",)
    server: MariaDB = request.getfixturevalue("mariadb")
    engine = engine_of(server.url(server.new_database()), "mysql+pymysql")
    return engine, ("ROLLBACK", "SET autocommit = 1")


@pytest.mark.parametrize("what", ["the record", "the offsets"])
def test_nothing_is_written_where_it_would_commit_by_itself(
    autocommitting: tuple[Engine, tuple[str, ...]], what: str
) -> None:
    """[DW-2, DW-4, DW-11] The transaction was ended behind the store's back."""
    engine, endings = autocommitting
    store = SqlStore(engine)
    store.create()
    row = store.claim("t")
    txn = store.begin()
    for each in endings:  # by the driver: the store would not send them
        txn.connection.connection.driver_connection.cursor().execute(each)
    write = partial(txn.record, replace(row, state=PreparedTxnState("7:1")), row)
    if what == "the offsets":
        moved = {TopicPartition("a", 0): OffsetAdvance(before=None, after=5)}
        write = partial(txn.move_offsets, "g", moved)
    with pytest.raises(ManagedByWriter, match="ended inside"):
        write()
    txn.rollback()
    assert store.read_state("t") == row
    assert store.read_offsets("g") == {}


def test_a_missing_table_is_named(sqlite: Engine) -> None:
    with pytest.raises(BadStore, match="create"):
        SqlStore(sqlite).claim("t")


def test_a_session_that_a_thread_shares_is_refused(sqlite: Engine) -> None:
    with pytest.raises(BadStore, match="Pass the sessionmaker"):
        SqlStore(sqlite, session_factory=scoped_session(sessionmaker()))


def test_a_table_of_another_version_is_refused(sqlite: Engine) -> None:
    with sqlite.begin() as connection:
        connection.execute(text("CREATE TABLE kafka_transaction_state (transactional_id TEXT PRIMARY KEY)"))
    with pytest.raises(BadStore, match="it has no owner, prepared_transaction_state"):
        SqlStore(sqlite).create()


def test_a_row_of_another_version_is_refused(sqlite: Engine) -> None:
    store = SqlStore(sqlite)
    store.create()
    store.claim("t")
    with sqlite.begin() as connection:
        connection.execute(text("UPDATE kafka_transaction_state SET schema_version = 2"))
    with pytest.raises(CorruptRow, match="schema version 2"):
        store.claim("t")


def test_an_unsupported_database_is_refused() -> None:
    with pytest.raises(BadStore, match="a store of its own"):
        durability_queries("oracle")


def test_a_claim_ends_when_a_lock_does_not(tmp_path: Path) -> None:
    """A claim waits for whoever has the row, and not for ever."""
    url = f"sqlite:///{tmp_path / 'rows.db'}"
    store = SqlStore(create_engine(url, poolclass=NullPool))
    store.create()
    txn = store.begin()
    hasty = SqlStore(create_engine(url, poolclass=NullPool, connect_args={"timeout": 0.05}))
    with pytest.raises(OperationalError, match="locked"):
        hasty.claim("t")
    txn.rollback()
    assert hasty.claim("t").owner


class TimeIsUp(Exception):
    """What a signal's handler raises, in whatever is running: as Celery's SoftTimeLimitExceeded."""


class Interrupted(sqlite3.Connection):
    """A connection whose COMMIT is interrupted when it has been carried out."""

    def commit(self) -> None:
        super().commit()
        if Interrupted.armed:
            raise TimeIsUp

    armed = False


def test_a_commit_that_is_interrupted_by_any_exception_is_unknown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """[DW-3] Only the database's own answer says that it did not happen."""
    url = f"sqlite:///{tmp_path / 'rows.db'}"
    store = SqlStore(create_engine(url, poolclass=NullPool, connect_args={"factory": Interrupted}))
    store.create()
    row = replace(store.claim("t"), state=PreparedTxnState("7:1"))
    txn = store.begin()
    txn.record(row)
    monkeypatch.setattr(Interrupted, "armed", True)
    with pytest.raises(CommitUnknown, match="TimeIsUp"):
        txn.commit()
    txn.rollback()
    assert store.read_state("t") == row


def test_what_fails_after_the_commit_does_not_undo_it(sqlite: Engine) -> None:
    """[DW-3] A hook of the user's session raises when it is closed."""

    class Failing(Session):
        def close(self) -> None:
            super().close()
            raise ValueError("a hook")

    store = SqlStore(sqlite, session_factory=Failing)
    store.create()
    row = replace(store.claim("t"), state=PreparedTxnState("7:1"))
    txn = store.begin()
    assert txn.session.is_active
    txn.record(row)
    txn.commit()
    assert store.read_state("t") == row


@pytest.mark.parametrize(
    ("dialect", "answers", "named"),
    [
        ("postgresql", ["on", "on", "open", "open", False], None),
        ("postgresql", ["local", "on", "open", "open", False], None),
        ("postgresql", ["off", "on", "open", "open", False], "synchronous_commit"),
        ("postgresql", ["on", "off", "open", "open", False], "fsync"),
        ("postgresql", ["on", "on", "open", "", False], "autocommit"),
        ("mysql", [1, 1, 0], None),
        ("mariadb", [2, 1, 0], "innodb_flush_log_at_trx_commit"),
        ("mysql", [1, 0, 0], "sync_binlog"),
        ("mysql", [1, 1, 1], "autocommit"),
        ("sqlite", [2, "delete"], None),
        ("sqlite", [3, "wal"], None),
        ("sqlite", [1, "wal"], "PRAGMA synchronous"),
        ("sqlite", [2, "memory"], "PRAGMA journal_mode"),
    ],
)
def test_what_a_database_says_is_judged(dialect: str, answers: list[object], named: str | None) -> None:
    """[DW-8]"""
    if named is None:
        check_durability_answers(dialect, "READ COMMITTED", answers)
        return
    with pytest.raises(UnsafeDurability, match=named):
        check_durability_answers(dialect, "READ COMMITTED", answers)


UNSAFE: dict[DurabilitySetting, tuple[str, list[object]]] = {
    "fsync": ("postgresql", ["on", "off", "open", "open", False]),
    "synchronous_commit": ("postgresql", ["off", "on", "open", "open", False]),
    "innodb_flush_log_at_trx_commit": ("mysql", [2, 1, 0]),
    "sync_binlog": ("mariadb", [1, 0, 0]),
    "synchronous": ("sqlite", [1, "wal"]),
    "journal_mode": ("sqlite", [2, "memory"]),
}


@pytest.mark.parametrize("risk", UNSAFE)
def test_one_setting_is_allowed_by_its_name_and_no_other(risk: DurabilitySetting) -> None:
    """[DW-8] The refusal says by which name."""
    dialect, answers = UNSAFE[risk]
    others = parse_allowed(set(DURABILITY_SETTINGS) - {risk})
    with pytest.raises(UnsafeDurability, match=rf'allow_unsafe_durability=\{{"{risk}"\}}') as refused:
        check_durability_answers(dialect, "READ COMMITTED", answers, others)
    assert refused.value.risk == risk
    check_durability_answers(dialect, "READ COMMITTED", answers, parse_allowed({risk}))


def test_no_name_allows_a_connection_where_every_statement_commits() -> None:
    """[DW-8]"""
    with pytest.raises(UnsafeDurability, match="a transaction is needed") as refused:
        check_durability_answers(
            "postgresql",
            "READ COMMITTED",
            ["on", "on", "open", "", False],
            parse_allowed(DURABILITY_SETTINGS),
        )
    assert refused.value.risk == ""
    assert "allow_unsafe_durability" not in str(refused.value)


@pytest.mark.parametrize("named", [{"fsnyc"}, "fsync", ["fsync", "autocommit"]])
def test_a_setting_that_is_not_looked_at_is_a_mistake(sqlite: Engine, named: Any) -> None:
    """[DW-8] It would allow nothing, and seem to."""
    with pytest.raises(ValueError, match="a set of settings out of fsync, synchronous_commit"):
        SqlStore(sqlite, allow_unsafe_durability=named)


def test_what_one_store_allows_another_on_the_same_engine_does_not(tmp_path: Path) -> None:
    """[DW-8] A connection of the pool is asked again."""
    engine = create_engine(f"sqlite:///{tmp_path / 'rows.db'}")
    event.listen(engine, "connect", lambda connection, _: connection.execute("PRAGMA synchronous = NORMAL"))
    allowing = SqlStore(engine, allow_unsafe_durability={"synchronous"})
    allowing.create()
    for _ in range(2):
        allowing.claim("t")
        with pytest.raises(UnsafeDurability, match="PRAGMA synchronous is 1"):
            SqlStore(engine).claim("t")
    engine.dispose()


def test_standbys_that_may_be_behind_are_said(caplog: pytest.LogCaptureFixture) -> None:
    """[DW-12]"""
    answers: list[object] = ["on", "on", "open", "open", True]
    check_durability_answers(
        "postgresql", "READ COMMITTED", answers, parse_allowed({"synchronous_standby_names"})
    )
    assert caplog.text == ""
    check_durability_answers("postgresql", "READ COMMITTED", answers)
    assert "synchronous_standby_names is empty" in caplog.text


@pytest.mark.gate(0)
@pytest.mark.server
def test_processes_that_create_at_the_same_time_all_succeed(postgresql: PostgreSQL) -> None:
    """PostgreSQL's IF NOT EXISTS is no lock: of two that see no table one would fail."""
    url = postgresql.url(postgresql.new_database())
    stores = [SqlStore(engine_of(url, "postgresql+psycopg")) for _ in range(8)]
    for _ in range(5):
        with ThreadPoolExecutor(len(stores)) as threads:
            made = [threads.submit(store.create) for store in stores]
        assert [each.exception() for each in made] == [None] * len(stores)
        assert len({row.owner for row in first_claims(stores)}) == len(stores)
        with engine_of(url, "postgresql+psycopg").begin() as connection:
            connection.execute(text("DROP TABLE kafka_transaction_state, kafka_consumed_offsets"))


def first_claims(stores: list[SqlStore]) -> list[StoredState]:
    """The first claims of an id, all at the same time."""
    with ThreadPoolExecutor(len(stores)) as threads:
        return [each.result() for each in [threads.submit(store.claim, "t") for store in stores]]
