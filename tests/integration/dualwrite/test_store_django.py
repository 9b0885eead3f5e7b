"""What only the store in Django does, on SQLite and PostgreSQL: the outermost block, on_commit, cuts."""

import contextlib
import linecache
import logging
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any

import django
import pytest
from django.conf import settings
from django.db import IntegrityError, connections, transaction
from sqlalchemy import Connection, create_engine, inspect, text
from sqlalchemy.pool import NullPool
from tests.support.cutting_proxy import CuttingProxy
from tests.support.servers import PostgreSQL

from tallystick import PreparedTxnState
from tallystick.dualwrite.errors import (
    BadStore,
    CommitUnknown,
    ManagedByWriter,
    NotCommitted,
    UnsafeDurability,
)
from tallystick.dualwrite.rules.idempotency import IdempotencyKey
from tallystick.dualwrite.rules.model import TABLE
from tallystick.dualwrite.stores import django as module
from tallystick.dualwrite.stores.django import DjangoStore
from tallystick.dualwrite.stores.sql_table import DualWriteTables
from tallystick.kernel.value import replace

pytestmark = [pytest.mark.server, pytest.mark.slow]

STATE = PreparedTxnState("7:0")
ALIAS = "rows"

if not settings.configured:
    settings.configure(LOGGING_CONFIG=None)
    django.setup()


def alias(name: str, **database: Any) -> str:
    """Make an alias of DATABASES, connected to nothing yet."""
    connections.settings[name] = connections.configure_settings({"default": {}, name: database})[name]
    if hasattr(connections._connections, name):
        del connections[name]
    return name


def served(postgresql: PostgreSQL, name: str, port: int, alias_name: str = ALIAS) -> str:
    engine = "django.db.backends.postgresql"
    return alias(alias_name, ENGINE=engine, NAME=name, USER="postgres", HOST="127.0.0.1", PORT=port)


@pytest.fixture(params=["sqlite", "postgresql"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[DjangoStore]:
    if request.param == "sqlite":
        alias(ALIAS, ENGINE="django.db.backends.sqlite3", NAME=tmp_path / "rows.db", OPTIONS={"timeout": 20})
    else:
        server = request.getfixturevalue("postgresql")
        served(server, server.new_database(), server.port)
    made = DjangoStore(ALIAS)
    made.create()
    made.create()
    execute("CREATE TABLE mine (n INTEGER)")
    yield made
    connections[ALIAS].close()


@pytest.fixture
def on_postgresql(postgresql: PostgreSQL) -> Iterator[DjangoStore]:
    served(postgresql, postgresql.new_database(), postgresql.port)
    made = DjangoStore(ALIAS)
    made.create()
    yield made
    connections[ALIAS].close()


def execute(statement: str, using: str = ALIAS) -> list[Any]:
    with connections[using].cursor() as cursor:
        cursor.execute(statement)
        return cursor.fetchall() if cursor.description else []


def test_the_table_is_the_one_of_the_sql_store(store: DjangoStore, tmp_path: Path) -> None:
    """So an SQL URL serves an operator, and a row may change from one store to the other."""
    if connections[ALIAS].vendor == "postgresql":
        url = f"postgresql+psycopg://postgres@127.0.0.1:{connections[ALIAS].settings_dict['PORT']}/"
        url += str(connections[ALIAS].settings_dict["NAME"])
    else:
        url = f"sqlite:///{tmp_path / 'rows.db'}"
    engine = create_engine(url, poolclass=NullPool)
    with engine.begin() as connection:
        of_django = _layout(connection)
        connection.execute(text(f"DROP TABLE {TABLE}"))
        DualWriteTables().states.create(connection)
        assert _layout(connection) == of_django


def test_keys_are_found_whatever_the_connections_search_path(on_postgresql: DjangoStore) -> None:
    """As a router of tenants sets it, for a request or for good."""
    row = replace(on_postgresql.claim("t"), state=STATE)
    execute("SET search_path TO elsewhere")
    assert on_postgresql.find_idempotency_keys(row) == []


def _layout(connection: Connection) -> object:
    found = inspect(connection)
    columns = {
        # PostgreSQL's manual, 8.3: without a length, character varying and text are the same.
        each["name"]: (str(each["type"]).replace("VARCHAR COLLATE", "TEXT COLLATE"), each["nullable"])
        for each in found.get_columns(TABLE)
    }
    return columns, found.get_pk_constraint(TABLE)["constrained_columns"]


@pytest.mark.parametrize("has_tables", [False, True])
def test_a_search_path_of_a_block_is_the_blocks_alone(on_postgresql: DjangoStore, has_tables: bool) -> None:
    """The row is recorded, and the key kept, in the tables of the claim."""
    execute("CREATE SCHEMA tenant")
    execute("CREATE TABLE tenant.mine (n INTEGER)")
    if has_tables:
        execute("SET search_path TO tenant")
        DjangoStore(ALIAS).create()
        execute("SET search_path TO public")
    row = on_postgresql.claim("id")
    key = IdempotencyKey(scope="s", key="k")
    for is_new in (True, False):
        transaction_ = on_postgresql.begin()
        assert transaction_.claim_key(key) == (None if is_new else "1")
        execute("SET LOCAL search_path TO tenant")
        execute("INSERT INTO mine VALUES (1)")
        if is_new:
            transaction_.store_result(key, "1")
        transaction_.record(replace(row, state=STATE))
        transaction_.commit()
    assert execute("SELECT count(*) FROM tenant.mine") == [(2,)]
    assert on_postgresql.read_state("id") == replace(row, state=STATE)


def test_the_block_has_to_be_the_outermost(store: DjangoStore) -> None:
    """ATOMIC_REQUESTS and TestCase open one around everything."""
    with transaction.atomic(using=ALIAS):
        with pytest.raises(ManagedByWriter, match="non_atomic_requests"):
            store.begin()
        with pytest.raises(ManagedByWriter):
            store.claim("id")
    transaction.set_autocommit(False, using=ALIAS)
    with pytest.raises(ManagedByWriter):
        store.begin()
    transaction.rollback(using=ALIAS)
    transaction.set_autocommit(True, using=ALIAS)
    store.begin().rollback()


def test_savepoints_inside_are_the_users(store: DjangoStore) -> None:
    row = store.claim("id")
    transaction_ = store.begin()
    with contextlib.suppress(ZeroDivisionError), transaction.atomic(using=ALIAS):
        execute("INSERT INTO mine VALUES (1)")
        raise ZeroDivisionError
    with transaction.atomic(using=ALIAS):
        execute("INSERT INTO mine VALUES (2)")
        with pytest.raises(ManagedByWriter):
            transaction_.record(replace(row, state=STATE))
    transaction_.record(replace(row, state=STATE))
    transaction_.commit()
    assert execute("SELECT n FROM mine") == [(2,)]


def test_a_block_marked_for_rollback_is_never_taken_for_committed(store: DjangoStore) -> None:
    """[DW-3] Django leaves such a block without an error, and commits nothing."""
    row = store.claim("id")
    transaction_ = store.begin()
    transaction_.record(replace(row, state=STATE))
    transaction.set_rollback(True, using=ALIAS)
    with pytest.raises(NotCommitted) as refused:
        transaction_.commit()
    assert isinstance(refused.value.cause, ManagedByWriter)
    assert store.read_state("id") == row

    transaction_ = store.begin()
    transaction_.record(replace(row, state=STATE))
    connections[ALIAS].close()
    with pytest.raises(NotCommitted) as refused:
        transaction_.commit()
    assert isinstance(refused.value.cause, ManagedByWriter)
    assert store.read_state("id") == row


def test_a_callback_that_fails_does_not_undo_the_commit(
    store: DjangoStore, caplog: pytest.LogCaptureFixture
) -> None:
    """[DW-3] What raises after the commit is logged: to the writer this is a commit."""
    row = store.claim("id")
    transaction_ = store.begin()
    transaction_.record(replace(row, state=STATE))
    called: list[str] = []
    transaction.on_commit(partial(int, "not a number"), using=ALIAS)
    transaction.on_commit(lambda: called.append("later"), using=ALIAS)
    with caplog.at_level(logging.ERROR):
        transaction_.commit()
    assert "ValueError" in caplog.text
    assert called == ["later"], "it is not the fault of those that come after"
    assert store.read_state("id") == replace(row, state=STATE)


def test_a_constraint_checked_at_the_commit_is_a_refusal(store: DjangoStore) -> None:
    """[DW-3] Certainly not committed, so the error is the database's own."""
    execute("CREATE TABLE parent (id INTEGER PRIMARY KEY)")
    execute("CREATE TABLE child (parent INTEGER REFERENCES parent (id) DEFERRABLE INITIALLY DEFERRED)")
    row = store.claim("id")
    transaction_ = store.begin()
    transaction_.record(replace(row, state=STATE))
    execute("INSERT INTO child VALUES (1)")
    with pytest.raises(NotCommitted) as refused:
        transaction_.commit()
    assert isinstance(refused.value.cause, IntegrityError)
    assert store.read_state("id") == row


@pytest.mark.parametrize("arrives", [True, False], ids=["answer lost", "request lost"])
def test_a_cut_in_the_commit_is_unknown_and_a_claim_learns_it(
    postgresql: PostgreSQL, on_postgresql: DjangoStore, arrives: bool
) -> None:
    """[DW-1] [DW-3]"""
    row = on_postgresql.claim("id")
    with CuttingProxy(postgresql.port) as proxy:
        name = connections[ALIAS].settings_dict["NAME"]
        behind_proxy = DjangoStore(served(postgresql, name, proxy.port, "proxied"))
        transaction_ = behind_proxy.begin()
        transaction_.record(replace(row, state=STATE))
        (proxy.lose_answer if arrives else proxy.lose_request)(b"COMMIT")
        with pytest.raises(CommitUnknown):
            transaction_.commit()
        transaction_.rollback()
        connections["proxied"].close()
    assert on_postgresql.claim("id").state == (STATE if arrives else PreparedTxnState())


class Interrupt:
    """Raises at the n-th line of the store that this thread runs, as a signal's handler may."""

    def __init__(self, at: int) -> None:
        self._left = at
        self.struck = False

    def trace(self, frame: FrameType, event: str, _: object) -> object:
        if self.struck or frame.f_code.co_filename != module.__file__:
            return None
        line = linecache.getline(frame.f_code.co_filename, frame.f_lineno).strip()
        if event == "line" and line != "try:":  # nothing is interrupted there
            self._left -= 1
            if self._left < 0:
                self.struck = True
                raise KeyboardInterrupt
        return self.trace


@pytest.mark.gate(1)
@pytest.mark.parametrize("how", ["begin", "begin_briefly"])
def test_an_interrupt_while_the_block_is_opened_leaves_none(store: DjangoStore, how: str) -> None:
    """[DW-11] Django keeps a thread's connection: a block that stays open would refuse every claim."""
    for n in range(200):
        interrupt = Interrupt(n)
        sys.settrace(interrupt.trace)
        try:
            opened = getattr(store, how)()
        except KeyboardInterrupt:
            store.claim("id")
        else:
            sys.settrace(None)
            opened.rollback()
        finally:
            sys.settrace(None)
        if not interrupt.struck:
            break
    assert 10 < n < 200


def test_waits_for_a_lock_of_our_row_have_a_limit(on_postgresql: DjangoStore) -> None:
    """[DW-1] The server keeps the lock of a client whose host is gone."""
    opened = on_postgresql.begin_briefly()
    assert execute("SHOW lock_timeout") == [("1min",)]
    opened.rollback()


def test_an_unsynced_commit_is_refused(store: DjangoStore) -> None:
    """[DW-8] Asked at the beginning, and of PostgreSQL once more when the row is recorded."""
    row = store.claim("id")
    if connections[ALIAS].vendor == "sqlite":
        execute("PRAGMA synchronous = OFF")
    else:
        transaction_ = store.begin()
        execute("SET LOCAL synchronous_commit = off")
        with pytest.raises(UnsafeDurability):
            transaction_.record(replace(row, state=STATE))
        transaction_.rollback()
        execute("SET synchronous_commit = off")
    with pytest.raises(UnsafeDurability):
        store.begin()
    with pytest.raises(UnsafeDurability):
        DjangoStore(ALIAS, allow_unsafe_durability={"fsync", "journal_mode"}).begin()
    allowing = DjangoStore(ALIAS, allow_unsafe_durability={"synchronous", "synchronous_commit"})
    opened = allowing.begin()
    opened.record(replace(row, state=STATE))
    opened.rollback()
    DjangoStore(ALIAS, allow_unsafe_durability=True).begin().rollback()


def test_a_full_database_commits_nothing(tmp_path: Path) -> None:
    """SQLite at its last page: the error is the database's own, and the row is as it was."""
    alias(ALIAS, ENGINE="django.db.backends.sqlite3", NAME=tmp_path / "rows.db")
    store = DjangoStore(ALIAS)
    store.create()
    execute("CREATE TABLE mine (b BLOB)")
    row = store.claim("id")
    ((pages,),) = execute("PRAGMA page_count")
    execute(f"PRAGMA max_page_count = {pages + 1}")
    transaction_ = store.begin()
    transaction_.record(replace(row, state=STATE))
    with pytest.raises(Exception, match="full"):
        execute("INSERT INTO mine VALUES (zeroblob(100000))")
    transaction_.rollback()
    assert store.claim("id").state == PreparedTxnState()
    connections[ALIAS].close()


def test_without_the_table_and_with_another(tmp_path: Path) -> None:
    alias(ALIAS, ENGINE="django.db.backends.sqlite3", NAME=tmp_path / "rows.db")
    with pytest.raises(BadStore):
        DjangoStore(ALIAS).claim("id")
    execute("CREATE TABLE kafka_transaction_state (transactional_id TEXT)")
    with pytest.raises(BadStore, match="owner"):
        DjangoStore(ALIAS).create()
    connections[ALIAS].close()
