"""What the console reads of each kind of database: everything, and nothing changes by it."""

import asyncio
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest
from rocksdict import Rdict
from sqlalchemy import create_engine, text
from tests.support import dual_write_stores as stores
from tests.support import servers
from tests.support.dual_write_stores import Place

from tallystick.client.transactions.prepared import PreparedTxnState
from tallystick.console.collect.rocksdb_rows import find_lock_holder
from tallystick.console.collect.sql_rows import open_sql_rows
from tallystick.console.collect.store_reader import NotRead, StoreAddress, StoreReader
from tallystick.console.model.snapshot import StoreFacts
from tallystick.dualwrite import RocksStore, SqlStore
from tallystick.dualwrite.errors import BadStore
from tallystick.dualwrite.rules.leases import LeaseRow, LeaseTaking
from tallystick.dualwrite.stores.by_url import open_store
from tallystick.kernel.clock import SystemClock
from tallystick.kernel.ids import ProducerEpoch, ProducerId, ProducerIdAndEpoch
from tallystick.kernel.value import replace
from tallystick.spark.decisions.decision_table import DECISIONS
from tallystick.spark.protocol.committable import Decision, Participant, encode_decision

pytestmark = pytest.mark.server

STATE = PreparedTxnState("7:1")


@pytest.fixture(
    params=["sqlite", "postgresql+psycopg", "mysql+pymysql", "django", "rocksdb", "zookeeper", "delta"]
)
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Place]:
    match request.param:
        case "sqlite":
            made = Place("sqlite", f"sqlite:///{tmp_path}/shop.db")
        case "rocksdb":
            made = Place("rocksdb", str(tmp_path / "rocks"))
        case "delta":
            made = Place("delta", str(tmp_path / "table"))
        case "zookeeper":
            server = request.getfixturevalue("zookeeper")
            made = Place("zookeeper", f"{server.hosts}{server.new_root()}")
        case "mysql+pymysql":
            server = request.getfixturevalue("mariadb")
            made = Place("mysql+pymysql", server.url(server.new_database()))
        case kind:
            server = request.getfixturevalue("postgresql")
            made = Place(kind, server.url(server.new_database()))
    stores.create(made)
    yield made
    stores.leave(made)


def url_of(place: Place) -> str:
    if place.kind in ("rocksdb", "zookeeper"):
        return f"{place.kind}://{place.where}"
    if place.kind == "delta":
        return f"delta:{place.where}"
    return place.url.render_as_string(hide_password=False)


def record(store: Any, name: str) -> None:
    row = store.claim(name)
    txn = store.begin()
    txn.record(replace(row, state=STATE, cluster_id="c"))
    txn.commit()


async def read_twice(url: str) -> list[StoreFacts]:
    reader = StoreReader(StoreAddress(url), 10_000, SystemClock())
    try:
        return [await reader.read(), await reader.read()]
    finally:
        await reader.close()


@pytest.mark.gate(1)
def test_every_row_is_read_and_none_is_changed(place: Place) -> None:
    with stores.opened(place) as store:
        for name in ("a", "pay/ü", "c" * 90):
            record(store, name)
        before = {name: store.read_state(name) for name in store.transactional_ids()}
    first, again = asyncio.run(read_twice(url_of(place)))
    assert first.rows == before
    assert again.rows == before
    assert first.status.failures == ()
    assert first.engine
    assert first.name == StoreAddress(url_of(place)).name
    with stores.opened(place) as store:
        assert {name: store.read_state(name) for name in store.transactional_ids()} == before


@pytest.mark.gate(3)
def test_a_row_that_cannot_be_read_hides_no_other(place: Place) -> None:
    if place.kind in ("rocksdb", "zookeeper", "delta"):
        pytest.skip("their rows are bytes or text; the SQL stores show the rule")
    with stores.opened(place) as store:
        record(store, "good")
        record(store, "bad")
    with stores.closing_engine(place) as engine, engine.begin() as connection:
        connection.execute(
            text("UPDATE kafka_transaction_state SET schema_version = 9 WHERE transactional_id = :name"),
            {"name": "bad"},
        )
    first, _ = asyncio.run(read_twice(url_of(place)))
    assert list(first.rows) == ["good"]
    (failure,) = first.status.failures
    assert "bad" in failure
    assert "schema version 9" in failure


def test_leases_and_decisions_beside_the_rows(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/shop.db"
    engine = create_engine(url)
    store = SqlStore(engine)
    store.create()
    lease = LeaseRow(transactional_id="pay-0", base="pay", number=0, holder="h", holder_info="host 1")
    assert store.take_lease(LeaseTaking(row=lease, former=None, duration_ms=60_000))
    identity = ProducerIdAndEpoch(ProducerId(4), ProducerEpoch(2))
    participant = Participant(transactional_id="q/w/1", identity=identity)
    decision = Decision(nonce="n", participants=(participant,), transaction_version=2, decided_ms=5)
    common = {"owner": "4/2", "done": 0, "schema_version": 1}
    with engine.begin() as connection:
        DECISIONS.create(connection)
        for values in (
            {"prefix": "#place", "owner": "name", "done": 0, "schema_version": 1},
            {**common, "prefix": "bad", "decision": "{}", "nonce": "n"},
            {**common, "prefix": "q", "decision": encode_decision(decision).decode(), "nonce": "n"},
        ):
            connection.execute(DECISIONS.insert().values(values))
    engine.dispose()
    facts, _ = asyncio.run(read_twice(url))
    (read,) = facts.leases
    assert (read.transactional_id, read.holder_info) == ("pay-0", "host 1")
    assert 0 < read.expires_at_ms - facts.lease_now_ms <= 60_000
    (prefix,) = facts.prefixes
    assert (prefix.prefix, prefix.decision, prefix.is_complete) == ("q", decision, False)
    assert prefix.source == url
    assert [failure.partition(":")[0] for failure in facts.status.failures] == ["bad"]


def test_a_database_that_is_read_cannot_be_written(postgresql: Any) -> None:
    url = postgresql.url(postgresql.new_database())
    source = open_sql_rows(url, "shop", 10_000)
    facts = source.read()
    assert [failure for failure in facts.status.failures if "neither" in failure]
    assert facts.engine.startswith("PostgreSQL 1")
    with source._engine.connect() as connection, pytest.raises(Exception, match="read-only transaction"):
        connection.execute(text("CREATE TABLE made (n INTEGER)"))
    source.close()


@contextmanager
def standby_of_postgresql() -> Iterator[str]:
    """A server that replays and takes no writes: what a replica is until it is promoted."""
    for server in servers.running(servers.PostgreSQL):
        url = server.url(server.new_database()).replace("postgresql:", "postgresql+psycopg:")
        make_tables(url)
        server.stop()
        (server.folder / "data" / "standby.signal").touch()
        server.start()
        yield url


@contextmanager
def read_only_mariadb(mariadb: servers.MariaDB) -> Iterator[str]:
    url = mariadb.url(mariadb.new_database()).replace("mysql:", "mysql+pymysql:")
    make_tables(url)
    engine = create_engine(url)
    with engine.connect() as connection:
        connection.execute(text("SET GLOBAL read_only = 1"))
        try:
            yield url
        finally:
            connection.execute(text("SET GLOBAL read_only = 0"))
    engine.dispose()


def make_tables(url: str) -> None:
    engine = create_engine(url)
    SqlStore(engine).create()
    engine.dispose()


@pytest.mark.gate(1)
@pytest.mark.parametrize("kind", ["postgresql", "mariadb"])
def test_there_is_no_verdict_from_a_replica(kind: str, request: pytest.FixtureRequest) -> None:
    """It may lack a decision: the operator would end what the primary has committed."""
    replica = (
        read_only_mariadb(request.getfixturevalue("mariadb"))
        if kind == "mariadb"
        else standby_of_postgresql()
    )
    with replica as url:
        with open_store(url) as store, pytest.raises(BadStore, match="is a replica"):
            store.transactional_ids()
        source = open_sql_rows(url, "shop", 10_000)
        with pytest.raises(BadStore, match="address of the primary"):
            source.read()
        source.close()


def test_a_table_that_is_made_later_is_found(postgresql: Any) -> None:
    url = postgresql.url(postgresql.new_database()).replace("postgresql:", "postgresql+psycopg:")

    async def run() -> None:
        reader = StoreReader(StoreAddress(url), 10_000, SystemClock())
        assert (await reader.read()).status.failures != ()
        engine = create_engine(url)
        SqlStore(engine).create()
        engine.dispose()
        assert (await reader.read()).status.failures == ()
        await reader.close()

    asyncio.run(run())


@pytest.fixture
def own_postgresql() -> Iterator[servers.PostgreSQL]:
    yield from servers.running(servers.PostgreSQL)


def test_a_server_that_comes_back_is_read_again(own_postgresql: servers.PostgreSQL) -> None:
    postgresql = own_postgresql
    name = postgresql.new_database()
    url = postgresql.url(name).replace("postgresql:", "postgresql+psycopg:")

    async def run() -> None:
        reader = StoreReader(StoreAddress(url), 10_000, SystemClock())
        engine = create_engine(url)
        store = SqlStore(engine)
        store.create()
        record(store, "a")
        engine.dispose()
        assert list((await reader.read()).rows) == ["a"]
        await asyncio.to_thread(postgresql.kill)
        with pytest.raises(NotRead, match=r"refused|closed|terminat"):
            await reader.read()
        await asyncio.to_thread(postgresql.start)
        assert list((await reader.read()).rows) == ["a"]
        await reader.close()

    asyncio.run(run())


@pytest.mark.parametrize("url", ["sqlite:///{folder}/none.db", "sqlite://", "rocksdb:///{folder}/none"])
def test_nothing_is_made_where_there_was_nothing(tmp_path: Path, url: str) -> None:
    with pytest.raises(NotRead, match="is not a"):
        asyncio.run(read_twice(url.format(folder=tmp_path)))
    assert not list(tmp_path.iterdir())


def test_a_rocksdb_is_read_while_its_process_writes(tmp_path: Path) -> None:
    """Read-only it takes no lock: the console disturbs neither a live process nor one that starts."""
    folder = tmp_path / "rocks"
    with closing(Rdict(str(folder))) as database, closing(RocksStore(database)) as store:
        store.create()
        record(store, "a")
    hold = (
        "import sys, rocksdict; from tallystick.dualwrite import RocksStore; "
        "held = rocksdict.Rdict(sys.argv[1]); RocksStore(held).claim('b'); print(flush=True); "
        "sys.stdin.read()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", hold, str(folder)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as holder:
        assert holder.stdout is not None
        holder.stdout.readline()
        first, _ = asyncio.run(read_twice(f"rocksdb://{folder}"))
        assert list(first.rows) == ["a", "b"]
        if Path("/proc/locks").exists():
            assert first.opened_by == f"process {holder.pid}"
        holder.communicate()
    first, _ = asyncio.run(read_twice(f"rocksdb://{folder}"))
    assert first.opened_by == ""


def test_who_holds_a_lock_is_told_by_its_inode(tmp_path: Path) -> None:
    lock, table = tmp_path / "LOCK", tmp_path / "locks"
    lock.touch()
    inode = lock.stat().st_ino
    table.write_text(
        "1: POSIX  ADVISORY  WRITE 11 08:01:1 0 EOF\n"
        f"2: -> POSIX  ADVISORY  WRITE 12 08:01:{inode} 0 EOF\n"
        f"2: POSIX  ADVISORY  WRITE 13 08:01:{inode} 0 EOF\n"
    )
    assert find_lock_holder(lock, table) == "process 13"
    assert find_lock_holder(tmp_path / "none", table) == ""
