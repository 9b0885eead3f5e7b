"""A store of one's own: dual writes over the standard library's sqlite3, in fifty lines."""

import secrets
import sqlite3
from collections.abc import Iterable
from pathlib import Path

from tallystick.dualwrite import CommitUnknown
from tallystick.dualwrite.rules.model import TABLE, StoredState, from_bytes, to_bytes
from tallystick.dualwrite.stores.base import check_record


class Transaction:
    def __init__(self, path: Path) -> None:
        self.handle = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
        self.handle.execute("PRAGMA synchronous = FULL")
        self.handle.execute("BEGIN IMMEDIATE")  # waits for another writer

    def row_of(self, transactional_id: str) -> StoredState | None:
        found = self.handle.execute(f"SELECT row FROM {TABLE} WHERE id = ?", (transactional_id,)).fetchone()
        return from_bytes(transactional_id, found[0]) if found else None

    def put(self, row: StoredState) -> None:
        self.handle.execute(f"REPLACE INTO {TABLE} VALUES (?, ?)", (row.transactional_id, to_bytes(row)))

    def record(self, row: StoredState, before: StoredState | None = None) -> None:
        check_record(self.row_of(row.transactional_id), row, before)  # raises WriterFenced, DatabaseBehind
        self.put(row)

    def commit(self) -> None:
        try:
            self.handle.execute("COMMIT")
        except sqlite3.Error as exc:
            raise CommitUnknown(str(exc)) from exc  # NotCommitted(exc), where it certainly did not
        self.handle.close()

    def rollback(self) -> None:
        self.handle.close()  # what was not committed is gone


class OwnStore:
    def __init__(self, path: Path) -> None:
        self.path = path

    def create(self) -> None:
        with sqlite3.connect(self.path) as connection:
            connection.execute(f"CREATE TABLE IF NOT EXISTS {TABLE} (id TEXT PRIMARY KEY, row BLOB)")
        connection.close()

    def claim(self, transactional_id: str) -> StoredState:
        txn, owner = self.begin(), secrets.token_hex(16)
        found = txn.row_of(transactional_id)
        row = found.owned_by(owner) if found else StoredState(transactional_id=transactional_id, owner=owner)
        txn.put(row)
        txn.commit()
        return row

    def begin(self) -> Transaction:
        return Transaction(self.path)

    def read_state(self, transactional_id: str) -> StoredState | None:
        connection = sqlite3.connect(self.path)
        found = connection.execute(f"SELECT row FROM {TABLE} WHERE id = ?", (transactional_id,)).fetchone()
        connection.close()
        return from_bytes(transactional_id, found[0]) if found else None

    def transactional_ids(self) -> Iterable[str]:
        connection = sqlite3.connect(self.path)
        ids = [row[0] for row in connection.execute(f"SELECT id FROM {TABLE} ORDER BY id")]
        connection.close()
        return ids

    def close(self) -> None:
        """Each transaction has a connection of its own."""
