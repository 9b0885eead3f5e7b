"""The dual write's recipe in the simulator: its real session, over simulated clients and a database.

A store for `AsyncDualWriteSession`, and its clients, on the simulated network and clock.
The database has both fencing and faults: it locks a row from its record to the end of the transaction, a
COMMIT goes on when its client is gone, and answers are lost.
"""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random

from harness.sim.actors import clients
from harness.sim.actors.dual_write import DatabaseRow
from harness.sim.actors.product_clients import ProductAdmin, ProductProducer
from harness.sim.disk_image import PARTITIONS
from harness.sim.simulation import Simulation
from tallystick.client.errors import ClientError
from tallystick.dualwrite.aio.session import AsyncDualWriteSession, AsyncSessionFactories
from tallystick.dualwrite.block.steps import AsyncStepRunner, RecipeStep, Wait
from tallystick.dualwrite.errors import CommitUnknown, DualWriteError
from tallystick.dualwrite.rules.model import StoredState
from tallystick.dualwrite.rules.recovery import Finding, Report
from tallystick.dualwrite.stores.base import check_record
from tallystick.errors import InDoubt

LOCK_S = 0.002
# They mean lost data or another cluster, which is never the case where nothing is lost.
IMPOSSIBLE = (Finding.UNSEEN, Finding.AHEAD, Finding.FOREIGN)


class Gone(BaseException):
    """The client's process has ended."""


@dataclass(eq=False)
class Server:
    """The database's process: its rows, the holders of their locks, and how often an answer is lost."""

    world: Simulation
    random: Random
    lose_answer: float
    rows: dict[str, StoredState] = field(default_factory=dict)
    holders: dict[str, "SimTransaction"] = field(default_factory=dict)
    owners: int = 0

    async def lock(self, transactional_id: str, holder: "SimTransaction | None") -> None:
        while self.holders.get(transactional_id, holder) is not holder:
            await self.world.pass_time(LOCK_S)
        if holder is not None:
            self.holders[transactional_id] = holder

    def release(self, holder: "SimTransaction") -> None:
        self.holders = {name: each for name, each in self.holders.items() if each is not holder}

    def apply(self, row: StoredState) -> None:
        """Commit a row, also in the simulated database that the checkers of the world read."""
        history, before = self.world.history, self.rows.get(row.transactional_id)
        self.rows[row.transactional_id] = row
        book = self.world.database.rows.setdefault(row.transactional_id, DatabaseRow())
        book.token = row.state.identity
        if book.token is not None and (before is None or before.state != row.state):
            book.committed_numbers.add(history.by_writer[book.token].number)


class SimStore:
    """Implements `AsyncStore` for one client. When that is gone, open transactions are rolled back."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self.open: list[SimTransaction] = []

    async def claim(self, transactional_id: str) -> StoredState:
        server = self._server
        await server.lock(transactional_id, None)
        server.owners += 1
        row = server.rows.get(transactional_id)
        row = row or StoredState(transactional_id=transactional_id, owner="")
        row = row.owned_by(f"{server.owners}")
        server.apply(row)
        return row

    async def begin(self) -> "SimTransaction":
        self.open.append(SimTransaction(self._server))
        return self.open[-1]

    async def read_state(self, transactional_id: str) -> StoredState | None:
        return self._server.rows.get(transactional_id)

    def disconnect(self) -> None:
        for txn in self.open:
            txn.disconnect()


class SimTransaction:
    """Implements `AsyncStoreTransaction`."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self._recorded: list[StoredState] = []
        self._committing = False

    async def record(self, row: StoredState, before: StoredState | None = None) -> None:
        await self._server.lock(row.transactional_id, self)
        check_record(self._server.rows.get(row.transactional_id), row, before)
        self._recorded.append(row)

    async def commit(self) -> None:
        self._committing = True
        random = self._server.random
        arrives = random.random() >= self._server.lose_answer / 2
        running = asyncio.get_running_loop().create_task(self._commit(arrives=arrives))
        if not arrives or random.random() < self._server.lose_answer / 2:
            raise CommitUnknown("the connection ended")
        await asyncio.shield(running)

    async def _commit(self, *, arrives: bool) -> None:
        """Commit in the server, which goes on even if the client no longer waits."""
        server = self._server
        await server.world.pass_time(server.random.choice((0.0, 0.001, 0.05)))
        for row in self._recorded if arrives else ():
            server.apply(row)
        server.release(self)

    async def rollback(self) -> None:
        if not self._committing:
            self._server.release(self)

    def disconnect(self) -> None:
        if not self._committing:
            self._server.release(self)


SimSession = AsyncDualWriteSession[SimTransaction]
MakeSession = Callable[..., SimSession]


@dataclass(eq=False)
class Writers:
    """One transactional id and its clients, one after the other; some live on beside the next."""

    world: Simulation
    server: Server
    owner: str
    dies: float
    lives_on: float
    session: MakeSession = AsyncDualWriteSession
    wait: Wait = "committed"
    left: int = 6
    found: list[Finding] = field(default_factory=list)

    async def run(self) -> None:
        running: set[asyncio.Task[None]] = set()
        for _ in range(100):
            if self.left <= 0:
                break
            task = asyncio.get_running_loop().create_task(self._life())
            running.add(task)
            if self.world.random.random() < self.lives_on:
                await self.world.pass_time(self.world.random.uniform(0, 0.3))
            else:
                await task
        for task in running:
            await task

    async def _life(self) -> None:
        world, store = self.world, SimStore(self.server)
        dead = False

        def watch(_: int, step: RecipeStep, done: bool) -> None:
            nonlocal dead
            dead = dead or world.random.random() < self.dies
            if dead:
                raise Gone(step.name, done)

        producers: list[ProductProducer] = []

        def create_producer(_: object) -> ProductProducer:
            producers.append(ProductProducer(world.producer(self.owner), world.history))
            return producers[-1]

        factories = AsyncSessionFactories(
            create_producer=create_producer,
            create_admin=lambda _: ProductAdmin(world.network, world.pass_time),
            pause=world.pass_time,
            clock=world.time,
        )
        config: dict[str, object] = {"bootstrap.servers": "simulated:1", "transactional.id": self.owner}
        session = self.session(store, {"kafka": config}, factories, AsyncStepRunner(watch), wait=self.wait)
        try:
            self._note(await session.recover())
            while self.left > 0:
                self.left -= 1
                await self._transaction(session)
            await session.wait_committed()
        except (Gone, DualWriteError, InDoubt, ClientError):
            pass
        finally:
            store.disconnect()
            for each in producers:
                each.die()

    async def _transaction(self, session: SimSession) -> None:
        """Run a transaction; some fail on the way, and are rolled back."""
        random = self.world.random
        database = await session.begin()
        inner = session.branches["kafka"].producer.inner
        try:
            for _ in range(random.randint(0, 2)):
                await inner.send(clients.pick_partitions(random, PARTITIONS), random.randint(1, 2))
            await self.world.pass_time(random.choice((0.0, 0.0, 0.01, 0.3)))
        except clients.AbortableError as exc:
            await session.rollback(database, exc)
            return
        await session.commit(database)

    @property
    def _is_disturbed(self) -> bool:
        """Whether a stray InitProducerId may arrive, which erases how a transaction ended."""
        faults = self.world.faults
        return bool(self.lives_on or faults.late_request or faults.repeat_request or faults.lose_reply)

    def _note(self, report: Report) -> None:
        for each in report.ids:
            self.found.append(each.finding)
            wiped = each.finding is Finding.UNPROVEN and not self._is_disturbed
            if wiped or each.finding in IMPOSSIBLE:
                self.world.history.report(f"recovery finds {each.finding.name}: {each}")
