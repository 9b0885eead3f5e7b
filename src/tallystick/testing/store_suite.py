"""A test suite for dual-write stores: checks any store's contract against its real database.

    class TestMyStore(StoreSuite):
        @pytest.fixture
        def stores(self, tmp_path):
            return lambda: MyStore(tmp_path / "data")

        def write(self, handle, value): ...   # a row of the user's, in the transaction behind `handle`
        def read(self, store): ...            # the values of all rows that are committed

`stores` returns a function that makes a store on the same database each time it is called, as two processes
would have two. For a database that only one process can open, it returns the same store each time.
Synchronous and asynchronous stores both work: an awaitable result is awaited, on an event loop in a thread of
the suite.

Each test checks one sentence of the contract in `tallystick.dualwrite.stores.base`.
"""

import asyncio
import inspect
import threading
from collections.abc import Callable, Coroutine, Iterable, Iterator
from concurrent.futures import Future
from typing import Any

import pytest

from tallystick.client.transactions.prepared import PreparedTxnState
from tallystick.dualwrite.errors import DatabaseBehind, NotCommitted, WriterFenced
from tallystick.dualwrite.rules.model import StoredState
from tallystick.kernel.ids import INT16_MAX, INT32_MAX, INT64_MAX
from tallystick.kernel.value import replace

MakeStore = Callable[[], Any]

WAIT_S = 30.0
"""Seconds an operation may take once nothing blocks it."""
CLAIM_BLOCKED_S = 0.3
"""Seconds for which a claim is watched to see whether it waits."""

ID = "payments-1"
CONFUSABLE_IDS = ("pay", "PAY", "pay ", "p\u00e4y", "pa\u0308y", "pay/1", "pay%2F1", "\U0001f4b0", "x" * 249)
"""Ids that some collation, path or encoding would confuse with each other."""


class CallRunner:
    """Calls synchronous and asynchronous functions in the same way."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()

    def call(self, function: Callable[..., Any], *args: object) -> Any:
        """Call a function and return its result, awaited if it is awaitable."""
        if inspect.iscoroutinefunction(function):
            return asyncio.run_coroutine_threadsafe(function(*args), self._loop).result(WAIT_S)
        result = function(*args)
        return self.call(_await_result, result) if inspect.isawaitable(result) else result

    def call_in_thread(self, function: Callable[..., Any], *args: object) -> "Future[Any]":
        """Call a function in a thread of its own and return a future of its result."""
        future: Future[Any] = Future()

        def run() -> None:
            try:
                future.set_result(self.call(function, *args))
            except BaseException as exc:
                future.set_exception(exc)

        threading.Thread(target=run, daemon=True).start()
        return future

    def close(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(WAIT_S)
        self._loop.close()


async def _await_result(result: Coroutine[Any, Any, Any]) -> Any:
    return await result


class StoreSuite:
    """Base class of the tests of a store.

    Subclasses override `stores`, `write` and `read`: how to make the store, and how to write and read the
    user's rows.
    """

    @pytest.fixture
    def stores(self) -> MakeStore:
        """Return a function that makes a store on the same database, empty at first."""
        raise NotImplementedError("override the fixture `stores`")

    def write(self, handle: Any, value: str) -> Any:
        """Write a row of the user's in the transaction behind `handle`."""
        raise NotImplementedError

    def read(self, store: Any) -> Any:
        """Return the values of all committed rows."""
        raise NotImplementedError

    @pytest.fixture
    def runner(self) -> Iterator[CallRunner]:
        runner = CallRunner()
        yield runner
        runner.close()

    @pytest.fixture
    def pair(self, stores: MakeStore, runner: CallRunner) -> Iterator[tuple[Any, Any]]:
        """Two stores on one database."""
        one, two = stores(), stores()
        runner.call(one.create)
        yield one, two
        runner.call(one.close)
        if two is not one:
            runner.call(two.close)

    # ---- the row

    def test_creating_again_is_harmless(self, pair: tuple[Any, Any], runner: CallRunner) -> None:
        one, two = pair
        row = runner.call(one.claim, ID)
        runner.call(two.create)
        assert runner.call(two.read_state, ID) == row

    def test_a_first_claim_makes_an_empty_row(self, pair: tuple[Any, Any], runner: CallRunner) -> None:
        """[DW-1] The row is committed when `claim` returns, so another process sees it."""
        one, two = pair
        assert runner.call(one.read_state, ID) is None
        row = runner.call(one.claim, ID)
        assert row == StoredState(transactional_id=ID, owner=row.owner)
        assert runner.call(two.read_state, ID) == row

    def test_a_claim_changes_the_owner_and_nothing_else(
        self, pair: tuple[Any, Any], runner: CallRunner
    ) -> None:
        """[DW-1] A claim replaces the owner and keeps every other column."""
        one, two = pair
        row = _fill_columns(runner.call(one.claim, ID))
        self.commit(runner, one, row)
        claimed = runner.call(two.claim, ID)
        assert claimed == replace(row, owner=claimed.owner)
        assert claimed.owner != row.owner

    def test_every_column_comes_back(self, pair: tuple[Any, Any], runner: CallRunner) -> None:
        one, two = pair
        row = _fill_columns(runner.call(one.claim, ID))
        self.commit(runner, one, row)
        assert runner.call(two.read_state, ID) == row
        bare = StoredState(transactional_id=ID, owner=row.owner)
        self.commit(runner, one, bare)
        assert runner.call(two.read_state, ID) == bare

    def test_ids_are_equal_when_their_bytes_are(self, pair: tuple[Any, Any], runner: CallRunner) -> None:
        """A collation that equates two ids would commit one writer's transaction for another's."""
        one, two = pair
        owners = {each: runner.call(one.claim, each).owner for each in CONFUSABLE_IDS}
        assert len(set(owners.values())) == len(CONFUSABLE_IDS)
        for each in CONFUSABLE_IDS:
            row = runner.call(two.read_state, each)
            assert (row.transactional_id, row.owner) == (each, owners[each])
        assert set(_to_list(runner.call(one.transactional_ids))) == set(CONFUSABLE_IDS)

    # ---- the transaction

    def test_rows_and_record_are_committed_together(self, pair: tuple[Any, Any], runner: CallRunner) -> None:
        one, two = pair
        row = replace(runner.call(one.claim, ID), state=PreparedTxnState("7:1"))
        txn = runner.call(one.begin)
        runner.call(self.write, txn.handle, "a")
        runner.call(txn.record, row)
        runner.call(txn.commit)
        assert runner.call(self.read, two) == {"a"}
        assert runner.call(two.read_state, ID) == row

    @pytest.mark.parametrize("recorded", [False, True])
    def test_a_rollback_takes_both_back(
        self, pair: tuple[Any, Any], runner: CallRunner, recorded: bool
    ) -> None:
        """A rollback also works before anything is recorded, and repeating it is harmless."""
        one, two = pair
        row = runner.call(one.claim, ID)
        txn = runner.call(one.begin)
        runner.call(self.write, txn.handle, "a")
        if recorded:
            runner.call(txn.record, replace(row, state=PreparedTxnState("7:1")))
        runner.call(txn.rollback)
        runner.call(txn.rollback)
        assert runner.call(self.read, two) == set()
        assert runner.call(two.read_state, ID) == row
        self.commit(runner, one, row)  # the store still works

    def test_nothing_is_shown_before_the_commit(self, pair: tuple[Any, Any], runner: CallRunner) -> None:
        one, two = pair
        row = runner.call(one.claim, ID)
        txn = runner.call(one.begin)
        runner.call(self.write, txn.handle, "a")
        runner.call(txn.record, replace(row, state=PreparedTxnState("7:1")))
        visible_rows, state = runner.call(self.read, two), runner.call(two.read_state, ID)
        runner.call(txn.rollback)
        assert visible_rows == set()
        assert state == row

    def test_several_ids_are_recorded_or_none(self, pair: tuple[Any, Any], runner: CallRunner) -> None:
        """[DW-2] A writer of two clusters records two rows, or neither if one is fenced."""
        one, two = pair
        rows = [runner.call(one.claim, each) for each in ("east", "west")]
        new = [replace(row, state=PreparedTxnState("7:1")) for row in rows]
        txn = runner.call(one.begin)
        for row in new:
            runner.call(txn.record, row)
        runner.call(txn.commit)
        assert [runner.call(two.read_state, row.transactional_id) for row in new] == new

        claimed = runner.call(two.claim, "west")
        later = [replace(row, state=PreparedTxnState("7:2")) for row in new]
        assert self.is_fenced(runner, one, later)
        assert [runner.call(two.read_state, row.transactional_id) for row in new] == [new[0], claimed]

    def test_a_row_that_went_back_is_not_recorded_over(
        self, pair: tuple[Any, Any], runner: CallRunner
    ) -> None:
        """[DW-12] The database lost this writer's last commit, and the next `record` reports it."""
        one, two = pair
        row = runner.call(one.claim, ID)
        first, lost = (replace(row, state=PreparedTxnState(f"7:{epoch}")) for epoch in (1, 2))
        self.commit(runner, one, first, row)
        txn = runner.call(one.begin)
        with pytest.raises(DatabaseBehind, match="7:2"):
            runner.call(txn.record, replace(row, state=PreparedTxnState("7:3")), lost)
        runner.call(txn.rollback)
        assert runner.call(two.read_state, ID) == first
        self.commit(runner, one, lost, first)
        self.commit(runner, one, lost, lost)  # nothing was sent to Kafka: the row stays as it is

    # ---- the fences

    def test_who_was_claimed_from_cannot_commit(self, pair: tuple[Any, Any], runner: CallRunner) -> None:
        """[DW-2] A writer that stalls after `prepare` is fenced once another one has claimed its id."""
        one, two = pair
        row = runner.call(one.claim, ID)
        claimed = runner.call(two.claim, ID)
        assert self.is_fenced(runner, one, [replace(row, state=PreparedTxnState("7:1"))])
        assert runner.call(two.read_state, ID) == claimed
        assert runner.call(self.read, two) == set()
        self.commit(runner, two, replace(claimed, state=PreparedTxnState("7:2")))

    def test_an_id_without_a_row_cannot_be_recorded(self, pair: tuple[Any, Any], runner: CallRunner) -> None:
        """[DW-2] The row was removed; creating it again would drop the fence that it holds."""
        one, two = pair
        row = StoredState(transactional_id=ID, owner="0" * 32, state=PreparedTxnState("7:1"))
        assert self.is_fenced(runner, one, [row])
        assert runner.call(two.read_state, ID) is None

    @pytest.mark.parametrize("commits", [False, True])
    def test_a_claim_sees_how_a_half_finished_commit_ends(
        self, pair: tuple[Any, Any], runner: CallRunner, commits: bool
    ) -> None:
        """[DW-1] The claim waits for the commit and sees its state, or the commit fails."""
        one, two = pair
        row = runner.call(one.claim, ID)
        new = replace(row, state=PreparedTxnState("7:1"))
        txn = runner.call(one.begin)
        runner.call(self.write, txn.handle, "a")
        runner.call(txn.record, new)
        claim = runner.call_in_thread(two.claim, ID)
        _wait_for_claim(claim)
        committed = False
        if commits:
            try:
                runner.call(txn.commit)
                committed = True
            except NotCommitted:
                runner.call(txn.rollback)
        else:
            runner.call(txn.rollback)
        claimed = claim.result(WAIT_S)
        assert claimed.state == (new.state if committed else row.state), "the claim looked too early"
        assert claimed.owner != row.owner
        assert runner.call(self.read, two) == ({"a"} if committed else set())
        assert runner.call(two.read_state, ID) == claimed

    def test_of_many_claims_one_is_the_last(self, pair: tuple[Any, Any], runner: CallRunner) -> None:
        """[DW-1, DW-2] Each claim gets a different owner, and only the last owner can record."""
        one, two = pair
        claims = [runner.call_in_thread(store.claim, ID) for store in (one, two) * 4]
        rows = [claim.result(WAIT_S) for claim in claims]
        assert len({row.owner for row in rows}) == len(rows)
        last = runner.call(one.read_state, ID)
        assert last in rows
        others = [row for row in rows if row != last]
        assert all(self.is_fenced(runner, two, [row]) for row in others)
        self.commit(runner, one, replace(last, state=PreparedTxnState("7:1")))

    # ---- helpers

    def commit(
        self, runner: CallRunner, store: Any, row: StoredState, before: StoredState | None = None
    ) -> None:
        """Commit a transaction that records one row."""
        txn = runner.call(store.begin)
        runner.call(txn.record, row, before)
        runner.call(txn.commit)

    def is_fenced(self, runner: CallRunner, store: Any, rows: Iterable[StoredState]) -> bool:
        """Return whether a transaction that writes a row and records `rows` is refused as fenced.

        The refusal comes at the commit at the latest. [DW-3] The commit then raises NotCommitted: after any
        other error its outcome would be unknown.
        """
        txn = runner.call(store.begin)
        try:
            runner.call(self.write, txn.handle, "fenced")
            for row in rows:
                runner.call(txn.record, row)
            runner.call(txn.commit)
        except WriterFenced:
            runner.call(txn.rollback)
            return True
        except NotCommitted as exc:
            runner.call(txn.rollback)
            return isinstance(exc.cause, WriterFenced)
        return False


def _fill_columns(row: StoredState) -> StoredState:
    """Return the row with every column filled, at its largest."""
    return replace(
        row,
        state=PreparedTxnState(f"{INT64_MAX}:{INT16_MAX}"),
        settled=True,
        known=True,
        former_producer_ids=tuple(INT64_MAX - each for each in range(32, 0, -1)),
        cluster_id="f1J-8vVYTsGCTSTy0PVvAg",
        transaction_version=2,
        started_at_ms=1_763_700_000_000,
        timeout_ms=INT32_MAX,
    )


def _to_list(ids: Iterable[str]) -> list[str]:
    return list(ids)


def _wait_for_claim(claim: "Future[Any]") -> None:
    """Wait long enough for a claim that does not wait to finish."""
    finished = threading.Event()
    claim.add_done_callback(lambda _: finished.set())
    finished.wait(CLAIM_BLOCKED_S)
