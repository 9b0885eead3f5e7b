"""Store for RocksDB (rocksdict): rows in a column family, and one synced WriteBatch for each transaction.

Fencing: RocksDB's own lock lets one process open a database, and is released by kill -9; so a stalled process
keeps all others out, and a dead one commits nothing. Within the process, the owner of the row is compared and
the batch written under one lock for each database, which a claim also takes [DW-2]. A fork's child inherits
the lock and not RocksDB's threads: its rows would be lost, so it is refused [DW-11].

The family has the raw mode of its database. Source: KIP-939 "Normal processing recipe", which keeps the state
in the application's database; rocksdict `Rdict.write`, `WriteOptions.sync`.
"""

import logging
import secrets
import threading
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from rocksdict import ColumnFamily, DbClosedError, Options, Rdict, WriteBatch, WriteOptions

from tallystick.dualwrite.errors import (
    BadStore,
    CommitUnknown,
    DatabaseBehind,
    ManagedByWriter,
    NotCommitted,
    WriterFenced,
)
from tallystick.dualwrite.forks import OwningProcess, leak_reference, watch_forks
from tallystick.dualwrite.rules.model import TABLE, StoredState, from_bytes, to_bytes
from tallystick.dualwrite.stores.base import check_record

_log: Final = logging.getLogger("tallystick.dualwrite")

_OPEN_AFTER_FORK: Final = (
    "RocksDB allows one process: fork first, and open the database, with its store, in one child"
)

# Several stores may share a database, which a process can open only once: the path identifies it.
_LOCKS: Final[dict[Path, threading.Lock]] = {}
_LOCKS_GUARD: Final = threading.Lock()


def _synced_write_options() -> WriteOptions:
    """Build options that sync a commit to disk before it is acknowledged, whatever the database's options."""
    options = WriteOptions()
    options.sync = True
    return options


class RocksTransaction:
    """A WriteBatch written by the store. Reads do not see it, because RocksDB's batches are not indexed."""

    def __init__(self, store: "RocksStore") -> None:
        self._store = store
        self._rows: list[tuple[StoredState, StoredState | None]] = []
        self._ended = False
        self.batch = WriteBatch(raw_mode=store.raw_mode)
        """The batch for puts and deletes; pass the family's handle for other column families."""

    @property
    def handle(self) -> WriteBatch:
        return self.batch

    def record(self, row: StoredState, before: StoredState | None = None) -> None:
        """Add the row to the batch. Its owner is compared now, and again when the batch is written."""
        self._check_open()
        self._store.check(row, before)
        self._rows.append((row, before))

    def commit(self) -> None:
        """Write the batch, synced. Raises: NotCommitted, CommitUnknown."""
        try:
            self._check_open()
        except ManagedByWriter as exc:
            raise NotCommitted(exc) from exc
        self._ended = True
        self._store.write(self.batch, self._rows)

    def rollback(self) -> None:
        """Discard the batch."""
        self._ended = True

    def _check_open(self) -> None:
        if self._ended:
            raise ManagedByWriter("this transaction has ended")
        try:
            self.batch.len()
        except Exception as exc:  # rocksdict has no exception class for a batch that was already written
            raise ManagedByWriter("the batch was written already; leave that to the writer") from exc


class RocksStore:
    """A store in an open RocksDB database. The caller closes the database, after this store."""

    database_system: Final = "rocksdb"

    def __init__(self, database: Rdict) -> None:
        """Use `database`, opened read-write with all its column families, as rocksdict does by default.

        Raises: BadStore for a database that forgets its rows after a time (`AccessType.with_ttl`).
        """
        self._owning_process = OwningProcess()
        self._owning_process.claim_process(f"{database.path()}")
        watch_forks(self)
        _check_keeps_rows(Path(database.path()))
        self.database = database
        self.raw_mode = _detect_raw_mode(database)
        self._family: tuple[Rdict, ColumnFamily] | None = None
        with _LOCKS_GUARD:
            self._lock = _LOCKS.setdefault(Path(database.path()).resolve(), threading.Lock())

    def leave_to_parent(self) -> None:
        """Never close the database here: to do so would write to the parent's files."""
        leak_reference(self.database)
        leak_reference(self._family)

    def check_process(self) -> None:
        """Raise ManagedByWriter in a fork of the process that opened the database [DW-11]."""
        self._owning_process.check_process(f"the RocksDB database {self.database.path()}", _OPEN_AFTER_FORK)

    def create(self) -> None:
        """Create the column family `kafka_transaction_state` if missing, and validate its rows."""
        self.check_process()
        with self._lock:
            if TABLE not in Rdict.list_cf(self.database.path()):
                self.database.create_column_family(TABLE, Options(raw_mode=self.raw_mode)).close()
        for transactional_id in self.transactional_ids():
            self.read_state(transactional_id)

    def claim(self, transactional_id: str) -> StoredState:
        """Take over the row, after any batch that is being written."""
        self.check_process()
        owner = secrets.token_hex(16)
        with self._lock:
            row = self.read_state(transactional_id)
            row = row.owned_by(owner) if row else StoredState(transactional_id=transactional_id, owner=owner)
            batch = WriteBatch(raw_mode=self.raw_mode)
            self._put_row(batch, row)
            self._write_batch(batch)
        return row

    def begin(self) -> RocksTransaction:
        """Begin a transaction with a new batch."""
        self.check_process()
        return RocksTransaction(self)

    def read_state(self, transactional_id: str) -> StoredState | None:
        """Return the row as written."""
        rows, _ = self._open_family()
        data = rows.get(self._key(transactional_id))
        if data is None:
            return None
        return from_bytes(transactional_id, data)

    def transactional_ids(self) -> Iterable[str]:
        """Return every id that has a row, in order."""
        rows, _ = self._open_family()
        return sorted(key.decode() if isinstance(key, bytes) else str(key) for key in rows.keys())  # noqa: SIM118

    def close(self) -> None:
        """Release the column family, so that the database can be closed. Does nothing in a forked child."""
        if self._family is None or self._owning_process.is_forked_child:
            return
        (rows, _), self._family = self._family, None
        try:
            rows.close()
        except Exception as exc:  # an error here would hide the one that made RocksDB stop writing
            _log.warning("%s: the column family could not be closed: %s", self.database.path(), exc)

    def check(self, row: StoredState, before: StoredState | None) -> None:
        """Raise WriterFenced if the row has another owner or is gone, DatabaseBehind if its state differs."""
        check_record(self.read_state(row.transactional_id), row, before)

    def write(self, batch: WriteBatch, rows: Iterable[tuple[StoredState, StoredState | None]]) -> None:
        """Write a batch and the rows if the owner of every row is unchanged [DW-2]."""
        self.check_process()  # first: a thread that does not exist here may hold the lock
        with self._lock:
            try:
                for row, before in rows:
                    self.check(row, before)
                    self._put_row(batch, row)
            except (WriterFenced, DatabaseBehind) as exc:
                raise NotCommitted(exc) from exc
            self._write_batch(batch)

    def _put_row(self, batch: WriteBatch, row: StoredState) -> None:
        _, family = self._open_family()
        batch.put(self._key(row.transactional_id), to_bytes(row), family)

    def _write_batch(self, batch: WriteBatch) -> None:
        try:
            self.database.write(batch, _synced_write_options())
        except DbClosedError:
            raise
        except Exception as exc:
            # A log that failed to sync may still contain the batch when the database is reopened.
            raise CommitUnknown(
                f"RocksDB could not write the batch: {exc}. After a failed write it refuses every other one, "
                "even when the cause is gone: remove that (a full disk, a column family that was dropped), "
                "then start this process again. recover() finds out there"
            ) from exc

    def _key(self, transactional_id: str) -> str | bytes:
        return transactional_id.encode() if self.raw_mode else transactional_id

    def _open_family(self) -> tuple[Rdict, ColumnFamily]:
        self.check_process()
        if self._family is None:
            try:
                handle = self.database.get_column_family_handle(TABLE)
                self._family = self.database.get_column_family(TABLE), handle
            except DbClosedError:
                raise
            except Exception as exc:  # rocksdict has no exception class for a missing column family
                raise BadStore(
                    f"{self.database.path()}: no column family {TABLE}; create() makes it"
                ) from exc
        return self._family


def _check_keeps_rows(folder: Path) -> None:
    """Raise BadStore if the options that RocksDB has written at the last opening drop rows after a time."""
    written = sorted(folder.glob("OPTIONS-[0-9]*"), key=lambda path: int(path.name.partition("-")[2]))
    if written and "TtlCompactionFilterFactory" in written[-1].read_text(errors="replace"):
        raise BadStore(
            f"{folder} was opened with_ttl: RocksDB would drop the row of a transactional id after that "
            "time, and with it what was decided. Nothing was written. Use a database without it"
        )


def _detect_raw_mode(database: Rdict) -> bool:
    """Detect the raw mode by writing an empty batch, because rocksdict has no way to query it."""
    try:
        database.write(WriteBatch(raw_mode=False))
    except DbClosedError:
        raise
    except Exception:
        database.write(WriteBatch(raw_mode=True))
        return True
    return False
