"""A simulated database server for dual writes in batches, and the store that its clients use.

It has rows with locks, savepoints and transactions that another connection can end. It never fails itself,
but statements do, connections end, COMMIT is refused or its answer is lost. A COMMIT that has arrived goes on
when its client is gone.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from random import Random
from typing import Final, Protocol

from harness.sim.actors.dual_write import DatabaseRow, SimDatabase
from harness.sim.actors.units import BatchCounts, SimUnit
from harness.sim.batch_plan import CallerPlan
from harness.sim.history import History
from tallystick.dualwrite.errors import CommitUnknown, NotCommitted
from tallystick.dualwrite.model import StoredState
from tallystick.dualwrite.stores.base import check_record

LOCK_POLL_S: Final = 0.002
# As `lock_timeout`: statements on users' rows wait this long for another transaction.
LOCK_TIMEOUT_S: Final = 0.5


class StatementFailed(Exception):
    """The server refused a statement, or COMMIT; `sqlstate` is PostgreSQL's code."""

    def __init__(self, sqlstate: str) -> None:
        super().__init__(sqlstate)
        self.sqlstate = sqlstate


class ConnectionEnded(Exception):
    """The connection of a transaction has ended, and with it the transaction if it was not committing."""

    connection_invalidated = True  # as SQLAlchemy's DBAPIError tells


SERIALIZATION_FAILURE: Final = "40001"
DEADLOCK: Final = "40P01"
LOCK_NOT_AVAILABLE: Final = "55P03"
CHECK_VIOLATION: Final = "23514"
NO_SUCH_SAVEPOINT: Final = "3B001"


class EffectGate(Protocol):
    """The client's process, as far as its effects pass through it; a process that is dead lets none pass."""

    @property
    def is_dead(self) -> bool: ...
    async def pass_effect(self) -> None: ...


class BatchDatabase:
    """The server: committed rows, and the holders of locks.

    Args:
        pause: lets virtual time pass.
    """

    def __init__(
        self,
        plan: CallerPlan,
        random: Random,
        history: History,
        decisions: SimDatabase,
        pause: Callable[[float], Awaitable[None]],
    ) -> None:
        self.plan = plan
        self.random = random
        self.pause = pause
        self.counts = BatchCounts()
        self.is_calm = False  # nothing fails any more
        self.states: dict[str, StoredState] = {}
        self.unit_rows: list[tuple[int, int]] = []  # of each row, its unit's number and attempt
        self.keys: dict[str, int] = {}
        self.unanswered_units: set[int] = set()  # of a COMMIT without an answer
        self._history = history
        self._decisions = decisions
        self._holders: dict[str, BatchTransaction] = {}
        self._owner_count = 0

    def fails(self, chance: float) -> bool:
        """Draw whether something goes wrong."""
        return not self.is_calm and self.random.random() < chance

    async def answer(self) -> None:
        """Take the time of a statement."""
        await self.pause(self.random.uniform(0, self.plan.statement_max_s))

    async def lock(self, name: str, holder: "BatchTransaction | None", timeout_s: float | None) -> None:
        """Wait until no other has the lock, and take it for `holder`, if any. Raises: StatementFailed."""
        waited_s = 0.0
        while self._holders.get(name) not in (None, holder):
            await self.pause(LOCK_POLL_S)
            waited_s += LOCK_POLL_S
            if timeout_s is not None and waited_s > timeout_s:
                raise StatementFailed(LOCK_NOT_AVAILABLE)
        if holder is not None:
            holder.check_open()
            self._holders[name] = holder

    def release(self, holder: "BatchTransaction") -> None:
        """Release the locks of a transaction that has ended."""
        self._holders = {name: each for name, each in self._holders.items() if each is not holder}

    def claim(self, transactional_id: str) -> StoredState:
        """Commit a new owner of the row, whose lock is free."""
        self._owner_count += 1
        row = self.states.get(transactional_id) or StoredState(transactional_id=transactional_id, owner="")
        self.apply_state(row := row.owned_by(f"{self._owner_count}"))
        return row

    def apply_state(self, row: StoredState) -> None:
        """Commit a row, also in the simulated database that the checkers of the run read."""
        before = self.states.get(row.transactional_id)
        self.states[row.transactional_id] = row
        book = self._decisions.rows.setdefault(row.transactional_id, DatabaseRow())
        book.token = row.state.identity
        if book.token is not None and (before is None or before.state != row.state):
            book.committed_numbers.add(self._history.by_writer[book.token].number)


class BatchStore:
    """Implements `AsyncStore` for one process."""

    def __init__(self, server: BatchDatabase, gate: EffectGate) -> None:
        self._server = server
        self._gate = gate
        self.open_txns: list[BatchTransaction] = []

    async def create(self) -> None:
        """Do nothing: the server has its tables."""

    async def close(self) -> None:
        """Do nothing: nothing was opened."""

    async def claim(self, transactional_id: str) -> StoredState:
        await self._gate.pass_effect()
        await self._server.lock(transactional_id, None, None)
        row = self._server.claim(transactional_id)
        await self._gate.pass_effect()
        return row

    async def begin(self) -> "BatchTransaction":
        await self._gate.pass_effect()
        txn = BatchTransaction(self._server, self._gate)
        self.open_txns = [each for each in self.open_txns if not each.is_ended]
        self.open_txns.append(txn)
        return txn

    async def read_state(self, transactional_id: str) -> StoredState | None:
        await self._gate.pass_effect()
        return self._server.states.get(transactional_id)

    async def transactional_ids(self) -> Iterable[str]:
        await self._gate.pass_effect()
        return sorted(self._server.states)

    def disconnect(self) -> None:
        """Roll back what was not asked to commit: the client is gone."""
        for txn in self.open_txns:
            txn.end_in_server()


class BatchTransaction:
    """Implements `AsyncStoreTransaction` with units: one transaction, and its connection.

    Attributes: `unit_count`, the units that are in it with their rows.
    """

    def __init__(self, server: BatchDatabase, gate: EffectGate) -> None:
        self.is_ended = False
        self.unit_count = 0
        self._server = server
        self._gate = gate
        self._is_committing = False
        self._states: list[StoredState] = []
        self._rows: list[tuple[int, int]] = []
        self._keys: dict[str, int] = {}
        self._late_units: set[int] = set()  # their rows violate a constraint that COMMIT checks
        self._savepoint: tuple[int, dict[str, int]] | None = None

    @property
    def handle(self) -> "BatchTransaction":
        return self

    @property
    def can_be_terminated(self) -> bool:
        return self._server.plan.can_be_terminated

    # -- what the user's work does --------------------------------------------------------------------------

    async def insert(self, unit: SimUnit, attempt: int, *, is_late_error: bool) -> None:
        """Insert a row of a unit. Raises: StatementFailed, ConnectionEnded."""
        await self._run_statement()
        self._rows.append((unit.number, attempt))
        if is_late_error:
            self._late_units.add(unit.number)

    async def count_up(self, key: str) -> int:
        """Lock the row of a key, count it up and return the count. Raises: as `insert`."""
        await self._run_statement()
        await self._server.lock(f"key {key}", self, LOCK_TIMEOUT_S)
        self._keys[key] = self._keys.get(key, self._server.keys.get(key, 0)) + 1
        return self._keys[key]

    async def _run_statement(self) -> None:
        await self._gate.pass_effect()
        server, plan = self._server, self._server.plan
        await server.answer()
        self.check_open()
        if server.fails(plan.connection_ends):
            self.end_in_server()
            self.check_open()
        if server.fails(plan.deadlock):
            self._forget_rows()
            raise StatementFailed(DEADLOCK)
        if server.fails(plan.conflict):
            raise StatementFailed(SERIALIZATION_FAILURE)
        await self._gate.pass_effect()

    def _forget_rows(self) -> None:
        """Roll everything back, as MariaDB does at a deadlock; the connection goes on, without savepoints."""
        self._rows, self._states, self._keys, self._savepoint = [], [], {}, None
        self._server.release(self)

    # -- units ----------------------------------------------------------------------------------------------

    async def begin_unit(self, has_savepoint: bool) -> None:
        await self._gate.pass_effect()
        self.check_open()
        self._savepoint = (len(self._rows), dict(self._keys)) if has_savepoint else None
        await self._gate.pass_effect()

    async def end_unit(self) -> None:
        self.unit_count += 1

    async def roll_back_unit(self) -> None:
        await self._gate.pass_effect()
        self.check_open()
        if self._savepoint is None:
            raise StatementFailed(NO_SUCH_SAVEPOINT)
        row_count, self._keys = self._savepoint
        del self._rows[row_count:]
        await self._gate.pass_effect()

    async def terminate(self) -> None:
        """End the transaction from another connection."""
        await self._gate.pass_effect()
        await self._server.answer()
        self._server.counts["overtaken"] += 1
        if self._is_committing:
            raise AssertionError("a transaction was terminated while it committed")
        self.end_in_server()
        await self._gate.pass_effect()

    # -- the writer's statements ----------------------------------------------------------------------------

    async def record(self, row: StoredState, before: StoredState | None = None) -> None:
        await self._gate.pass_effect()
        await self._server.lock(row.transactional_id, self, None)
        check_record(self._server.states.get(row.transactional_id), row, before)
        self._states.append(row)
        await self._gate.pass_effect()

    async def commit(self) -> None:
        await self._gate.pass_effect()
        server = self._server
        if self.is_ended:
            raise CommitUnknown("the connection had ended")
        self._is_committing = True
        if self.unit_count > 1:
            server.counts["formed"] += 1
        if server.fails(server.plan.answer_lost / 2):  # COMMIT never arrives
            self._end()
            raise self._lose_answer()
        running = asyncio.get_running_loop().create_task(self._commit_in_server())
        if server.fails(server.plan.answer_lost / 2):
            raise self._lose_answer()
        refusal = await asyncio.shield(running)
        await self._gate.pass_effect()
        if refusal is not None:
            raise NotCommitted(StatementFailed(refusal))

    def _lose_answer(self) -> CommitUnknown:
        self._server.unanswered_units.update(number for number, _ in self._rows)
        return CommitUnknown("the connection ended")

    async def _commit_in_server(self) -> str | None:
        """Commit, even if the client no longer waits; return the code of a refusal."""
        server = self._server
        await server.pause(server.random.choice((0.0, 0.001, 0.05)))
        refusal = None
        if any(number in self._late_units for number, _ in self._rows):
            refusal = CHECK_VIOLATION
        elif server.fails(server.plan.commit_refused):
            refusal = SERIALIZATION_FAILURE
        else:
            for row in self._states:
                server.apply_state(row)
            server.unit_rows += self._rows
            server.keys.update(self._keys)
        self._end(is_committed=refusal is None)
        return refusal

    async def rollback(self) -> None:
        await self._gate.pass_effect()
        if not self._is_committing:
            self._end()
        await self._gate.pass_effect()

    # -- in the server --------------------------------------------------------------------------------------

    def check_open(self) -> None:
        """Raise ConnectionEnded if the transaction has ended."""
        if self.is_ended:
            raise ConnectionEnded

    def end_in_server(self) -> None:
        """End the transaction because of its connection; a COMMIT goes on."""
        if not self._is_committing:
            self._end()

    def _end(self, *, is_committed: bool = False) -> None:
        if self.unit_count > 1 and not is_committed and not self.is_ended:
            self._server.counts["split"] += 1
        self.is_ended = True
        self._server.release(self)
