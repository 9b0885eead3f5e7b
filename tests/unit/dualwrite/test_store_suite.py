"""The suite passes for the store of the docs, and fails for stores that break one rule each."""

import sqlite3
import sys
from collections.abc import Iterable
from pathlib import Path

import pytest

from tallystick.dualwrite.rules.model import StoredState
from tallystick.testing import store_suite
from tallystick.testing.store_suite import CallRunner, StoreSuite

ROOT = Path(__file__).parents[3]
sys.path.insert(0, str(ROOT / "examples"))
from own_store import OwnStore, Transaction  # noqa: E402


class TestOwnStore(StoreSuite):
    """The fifty lines of docs/dualwrite/own-store.md."""

    @pytest.fixture
    def stores(self, tmp_path: Path) -> store_suite.MakeStore:
        path = tmp_path / "own.db"
        connection = sqlite3.connect(path)
        connection.execute("PRAGMA journal_mode = WAL")  # readers do not wait for the writer
        connection.execute("CREATE TABLE values_of_user (value TEXT)")
        connection.close()
        return lambda: OwnStore(path)

    def write(self, handle: sqlite3.Connection, value: str) -> None:
        handle.execute("INSERT INTO values_of_user VALUES (?)", (value,))

    def read(self, store: OwnStore) -> set[str]:
        connection = sqlite3.connect(store.path)
        found = {row[0] for row in connection.execute("SELECT value FROM values_of_user")}
        connection.close()
        return found


class NeverFences(OwnStore):
    """Its `record` does not look at the owner."""

    def begin(self) -> Transaction:
        txn = super().begin()
        txn.record = lambda row, _=None: txn.put(row)
        return txn


class LooksTooEarly(OwnStore):
    """Its `claim` reads before it waits, and puts back what it read."""

    def claim(self, transactional_id: str) -> StoredState:
        early = self.read_state(transactional_id)
        claimed = super().claim(transactional_id)
        return claimed if early is None else early.owned_by(claimed.owner)


class MergesIds(OwnStore):
    """Its key ignores case, as the default collation of MySQL does."""

    def claim(self, transactional_id: str) -> StoredState:
        return super().claim(transactional_id.lower())

    def read_state(self, transactional_id: str) -> StoredState | None:
        return super().read_state(transactional_id.lower())


class RecordsAtOnce(OwnStore):
    """Its `record` is not part of the user's transaction."""

    def begin(self) -> Transaction:
        txn = super().begin()
        record = txn.record

        def at_once(row: StoredState, before: StoredState | None = None) -> None:
            record(row, before)
            txn.handle.execute("COMMIT")
            txn.handle.execute("BEGIN IMMEDIATE")

        txn.record = at_once
        return txn


def failures(store: type[OwnStore], folder: Path) -> Iterable[str]:
    """The tests of the suite that a store fails, each on a database of its own."""
    suite = TestOwnStore()
    for name in (name for name in dir(StoreSuite) if name.startswith("test_")):
        for case in (False, True):
            method = getattr(suite, name)
            more = {key: case for key in ("recorded", "commits") if key in method.__code__.co_varnames}
            path = folder / f"{name}-{case}.db"
            with sqlite3.connect(path) as connection:
                connection.execute("PRAGMA journal_mode = WAL")
                connection.execute("CREATE TABLE values_of_user (value TEXT)")
            connection.close()
            runner = CallRunner()
            one, two = store(path), store(path)
            one.create()
            try:
                method((one, two), runner, **more)
            except (Exception, pytest.fail.Exception):
                yield name
            finally:
                runner.close()


@pytest.mark.gate(1)
@pytest.mark.parametrize(
    ("broken", "caught_by"),
    [
        (NeverFences, "test_who_was_claimed_from_cannot_commit"),
        (LooksTooEarly, "test_a_claim_sees_how_a_half_finished_commit_ends"),
        (MergesIds, "test_ids_are_equal_when_their_bytes_are"),
        (RecordsAtOnce, "test_a_rollback_takes_both_back"),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_a_broken_store_is_found_out(broken: type[OwnStore], caught_by: str, tmp_path: Path) -> None:
    """[DW-1, DW-2]"""
    assert caught_by in failures(broken, tmp_path)


def test_the_docs_have_the_store_that_passes() -> None:
    assert '--8<-- "examples/own_store.py"' in (ROOT / "docs/dualwrite/own-store.md").read_text()
    program = (ROOT / "examples/own_store.py").read_text()
    body = program.split("\n\n\n", 1)[1]
    assert len([line for line in body.splitlines() if line.strip()]) <= 52
