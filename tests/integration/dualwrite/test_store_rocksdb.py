"""What only the store in RocksDB does: the lock of the process, the synced batch, both modes of rocksdict."""

import contextlib
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from rocksdict import AccessType, DbClosedError, Options, Rdict

from tallystick import PreparedTxnState
from tallystick.dualwrite.errors import BadStore, CommitUnknown, CorruptRow, ManagedByWriter, NotCommitted
from tallystick.dualwrite.rules.model import TABLE
from tallystick.dualwrite.stores.rocksdb import RocksStore
from tallystick.kernel.value import replace

STATE = PreparedTxnState("7:0")


@pytest.fixture(params=[False, True], ids=["dict", "raw"])
def database(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Rdict]:
    opened = Rdict(str(tmp_path / "db"), Options(raw_mode=request.param))
    yield opened
    with contextlib.suppress(DbClosedError):
        opened.close()


@pytest.fixture
def store(database: Rdict) -> Iterator[RocksStore]:
    made = RocksStore(database)
    made.create()
    yield made
    made.close()


def test_the_row_is_there_when_the_database_is_opened_again(database: Rdict, store: RocksStore) -> None:
    path, row = database.path(), store.claim("a/b")
    transaction = store.begin()
    transaction.batch.put(b"key" if store.raw_mode else "key", b"value")
    transaction.record(replace(row, state=STATE))
    transaction.commit()
    store.close()
    database.close()

    again = Rdict(path)
    reopened = RocksStore(again)
    assert reopened.read_state("a/b") == replace(row, state=STATE)
    assert reopened.transactional_ids() == ["a/b"]
    assert again[b"key" if store.raw_mode else "key"] == b"value"
    reopened.close()
    again.close()


def test_a_batch_that_the_user_has_written_is_refused(database: Rdict, store: RocksStore) -> None:
    row = store.claim("id")
    transaction = store.begin()
    database.write(transaction.batch)
    with pytest.raises(ManagedByWriter):
        transaction.record(replace(row, state=STATE))
    transaction.rollback()
    with pytest.raises(NotCommitted) as refused:
        transaction.commit()
    assert isinstance(refused.value.cause, ManagedByWriter)
    assert store.read_state("id") == row


def test_without_the_family_and_with_a_foreign_value(database: Rdict) -> None:
    store = RocksStore(database)
    with pytest.raises(BadStore):
        store.claim("id")
    store.create()
    store.create()
    with database.get_column_family(TABLE) as family:
        family[b"id" if store.raw_mode else "id"] = b"not ours"
    with pytest.raises(CorruptRow):
        store.claim("id")
    with pytest.raises(CorruptRow):
        store.create()
    store.close()


CHILD = """
import os, signal, sys
from rocksdict import Rdict, WriteOptions
from tallystick import PreparedTxnState
from tallystick.dualwrite.stores.rocksdb import RocksStore
from tallystick.kernel.value import replace

database = Rdict(sys.argv[1])
careless = WriteOptions()
careless.disable_wal = True
database.set_write_options(careless)
store = RocksStore(database)
store.create()
row = store.claim("id")
transaction = store.begin()
transaction.batch.put("key", "value")
transaction.record(replace(row, state=PreparedTxnState("7:0")))
transaction.commit()
print("committed", flush=True)
sys.stdin.read()
os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.slow
def test_one_process_at_a_time_and_a_killed_one_leaves_its_commit(tmp_path: Path) -> None:
    """[DW-1] While it lives nobody else opens the database; its write options do not weaken a commit."""
    path = str(tmp_path / "db")
    with subprocess.Popen(
        [sys.executable, "-c", CHILD, path], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == "committed\n"
        with pytest.raises(Exception, match="lock"):
            Rdict(path)
        child.communicate()
    assert child.returncode == -9

    database = Rdict(path)
    store = RocksStore(database)
    assert store.claim("id").state == STATE
    assert database["key"] == "value"
    store.close()
    database.close()


def test_a_database_that_forgets_its_rows_is_refused(tmp_path: Path) -> None:
    """Also when it is opened without the time: its options are kept, and its values differ."""
    path = str(tmp_path / "db")
    for access in (AccessType.with_ttl(3600), AccessType.read_write()):
        with contextlib.closing(Rdict(path, access_type=access)) as database:
            with pytest.raises(BadStore, match="with_ttl"):
                RocksStore(database)
            database["a"] = 1


def test_after_a_failed_write_the_text_says_what_to_do(tmp_path: Path) -> None:
    """RocksDB stays in its error state: every later write fails, and so does closing."""
    database = Rdict(str(tmp_path / "db"))
    store = RocksStore(database)
    store.create()
    row = store.claim("id")
    database.create_column_family("gone", Options()).close()
    handle = database.get_column_family_handle("gone")
    database.drop_column_family("gone")
    transaction = store.begin()
    transaction.batch.put("key", "value", handle)
    transaction.record(replace(row, state=STATE))
    with pytest.raises(CommitUnknown, match="start this process again"):
        transaction.commit()
    with pytest.raises(CommitUnknown, match="start this process again"):
        store.claim("id")
    store.close()
    with contextlib.suppress(Exception):  # what it raises has no class
        database.close()
