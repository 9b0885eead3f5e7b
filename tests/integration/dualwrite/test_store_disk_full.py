"""The database's disk is full: a transaction is refused, or its outcome unknown, and never taken for done."""

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from deltalake import DeltaTable
from sqlalchemy import Engine, create_engine, make_url, text
from sqlalchemy.exc import DBAPIError
from tests.support.servers import PostgreSQL, running

from tallystick import PreparedTxnState
from tallystick.dualwrite import CommitUnknown, DeltaStore, NotCommitted, SqlStore
from tallystick.kernel.value import replace

pytestmark = [pytest.mark.server, pytest.mark.slow]

STATE = PreparedTxnState("7:0")


@pytest.fixture
def small_disk() -> Iterator[Path]:
    """A tmpfs of 200 MiB, which every account can reach: PostgreSQL's own files, its log, and little more."""
    yield from mount_disk(200)


@pytest.fixture
def tiny_disk() -> Iterator[Path]:
    yield from mount_disk(2)


def mount_disk(size_mib: int) -> Iterator[Path]:
    if os.geteuid() != 0:
        pytest.skip("mounting a small file system needs root")
    with TemporaryDirectory() as folder:
        mount = ["mount", "-t", "tmpfs", "-o", f"size={size_mib}m,mode=755", "tmpfs", folder]
        mounted = subprocess.run(mount, capture_output=True, text=True, check=False)
        if mounted.returncode:
            pytest.skip(f"a small file system cannot be mounted here: {mounted.stderr.strip()}")
        try:
            yield Path(folder)
        finally:
            subprocess.run(["umount", folder], check=True)


def engine_of(server: PostgreSQL) -> Engine:
    return create_engine(make_url(server.url("postgres")).set(drivername="postgresql+psycopg"))


def until_it_fails(store: SqlStore) -> Exception:
    """Transaction after transaction with 4 MB of rows, each recorded, until one does not commit."""
    row = store.claim("id")
    for epoch in range(1, 1_000):
        transaction = store.begin()
        try:
            fill = "INSERT INTO mine SELECT :e, repeat(md5(random()::text), 32) FROM generate_series(1, 4000)"
            transaction.connection.execute(text(fill), {"e": epoch})
            transaction.record(replace(row, state=PreparedTxnState(f"7:{epoch}")))
            transaction.commit()
        except (DBAPIError, CommitUnknown) as exc:
            transaction.rollback()
            return exc
    raise AssertionError("the disk took it all")


@pytest.mark.mount
def test_postgresql_on_a_full_disk(small_disk: Path) -> None:
    """[DW-1] [DW-3] PostgreSQL refuses, or goes down: afterwards a claim returns what the rows show."""
    with contextmanager(running)(lambda: PostgreSQL(small_disk)) as server:
        ballast = small_disk / "ballast"
        ballast.write_bytes(bytes(48 << 20))
        engine = engine_of(server)
        store = SqlStore(engine)
        store.create()
        with engine.begin() as connection:
            connection.execute(text("CREATE TABLE mine (epoch INTEGER, filler TEXT)"))
        failure = until_it_fails(store)
        ballast.unlink()
        engine.dispose()
        server.kill()
        server.start()

        row = store.claim("id")
        with engine.connect() as connection:
            last = connection.execute(text("SELECT max(epoch) FROM mine")).scalar_one()
        assert str(row.state) == (f"7:{last}" if last else ""), failure
        engine.dispose()


@pytest.mark.mount
def test_a_delta_table_on_a_full_disk(tiny_disk: Path) -> None:
    """[DW-3] A data file or a log entry finds no room: refused or unknown; the claim says which rows are."""
    table = tiny_disk / "table"
    DeltaTable.create(table, schema=pa.schema([("epoch", pa.int64()), ("filler", pa.binary())]))
    store = DeltaStore(table)
    failures = 0
    row = store.claim("id")
    for epoch in range(1, 1_000):
        transaction = store.begin()
        # Smaller and smaller, so that at last it is the log entry that finds no room.
        transaction.handle.append([{"epoch": epoch, "filler": os.urandom(60_000 >> failures)}])
        try:
            transaction.record(replace(row, state=PreparedTxnState(f"7:{epoch}")))
            transaction.commit()
        except (OSError, NotCommitted, CommitUnknown):
            failures += 1
            transaction.rollback()
            if failures == 20:
                break
    assert failures == 20
    subprocess.run(["mount", "-o", "remount,size=8m", str(tiny_disk)], check=True)

    claimed = DeltaStore(table).claim("id")
    last = pc.max(pa.table(DeltaTable(table).scan().read_all())["epoch"]).as_py()
    assert last
    assert str(claimed.state) == f"7:{last}"


def test_sqlite_at_its_last_page(tmp_path: Path) -> None:
    """A statement is refused, and after the rollback the row is as it was."""
    engine = create_engine(f"sqlite:///{tmp_path / 'rows.db'}")
    store = SqlStore(engine)
    store.create()
    row = store.claim("id")
    transaction = store.begin()
    transaction.connection.execute(text("CREATE TABLE mine (b BLOB)"))
    pages = transaction.connection.execute(text("PRAGMA page_count")).scalar_one()
    transaction.connection.execute(text(f"PRAGMA max_page_count = {pages}"))
    transaction.record(replace(row, state=STATE))
    with pytest.raises(DBAPIError, match="full"):
        transaction.connection.execute(text("INSERT INTO mine VALUES (zeroblob(100000))"))
    transaction.rollback()
    assert store.claim("id").state == PreparedTxnState()
    engine.dispose()
