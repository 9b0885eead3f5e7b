"""Workers: clients that run transactions, die, are replaced, and sometimes live on all the same.

A `Worker` owns one transactional id and starts one incarnation of its client after another.
"""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import replace
from random import Random
from typing import Final

from tallystick.kernel.ids import TopicPartition
from tallystick.testing.sim.clients import Fenced, Kind, Producer, Stuck, Trouble, pick, together
from tallystick.testing.sim.dual_write import Database, Superseded, recover
from tallystick.testing.sim.faults import FaultPlan
from tallystick.testing.sim.history import History, Txn
from tallystick.testing.sim.network import Network

_PAUSES_S: Final = (0.0, 0.0, 0.0, 0.001, 0.001, 0.05, 0.4)


class Died(Exception):
    """The client's process ended, at any point between two requests."""


class Worker:
    """One transactional id and its clients. `left` counts the transactions still to be begun."""

    def __init__(
        self,
        owner: str,
        kind: Kind,
        transactions: int,
        partitions: Sequence[TopicPartition],
        around: "Around",
    ) -> None:
        self.owner = owner
        self.kind = kind
        self.left = transactions
        self.calm = False  # clients no longer die
        self._partitions = partitions
        self._around = around
        self._random = around.random
        self._offset = 0

    @property
    def group(self) -> str:
        return f"group-{self.owner}"

    async def run(self) -> None:
        """Run one incarnation after another until all is done; some live on beside their successor."""
        running: set[asyncio.Task[None]] = set()
        while self.left > 0:
            task = asyncio.get_running_loop().create_task(self._incarnation())
            running.add(task)
            if self._random.random() < self._around.faults.client_lives_on:
                await asyncio.sleep(self._random.uniform(0, 0.3))
            else:
                await task
        for task in running:
            await task

    async def finish(self) -> None:
        """Run a last incarnation, which finds out how everything ended and leaves nothing open."""
        self.calm = True
        producer = self._producer()
        if self.kind.keeps:
            await recover(producer, self._around.database, self._around.history)
        else:
            await producer.init()

    def _producer(self) -> Producer:
        around = self._around
        reuses = around.faults.reuses_numbers and not self.kind.keeps
        version = min(self.kind.version, around.level(), 1 if reuses else 2)
        kind = replace(self.kind, version=version, reuses_numbers=reuses)
        return Producer(self.owner, kind, around.network, around.history, self._step, gives_up=self._gives_up)

    def _gives_up(self) -> bool:
        return not self.calm and self._random.random() < self._around.faults.client_gives_up

    def _step(self) -> None:
        if not self.calm and self._random.random() < self._around.faults.client_dies:
            raise Died

    async def _incarnation(self) -> None:
        try:
            producer = self._producer()
            generation = 0
            if self.kind.keeps:
                generation = await recover(producer, self._around.database, self._around.history)
            else:
                await producer.init()
            while self.left > 0:
                self.left -= 1
                await self._transaction(producer, generation)
                await asyncio.sleep(self._random.choice(_PAUSES_S))
        except (Fenced, Died, Superseded):
            return
        except Stuck as exc:
            self._around.history.report(str(exc))
            self.left = 0

    async def _transaction(self, producer: Producer, generation: int) -> None:
        txn = producer.begin()
        try:
            await self._write(producer)
            commit = self._random.random() < 0.8
        except Trouble:
            commit = False
        if not txn.records and txn.offset is None:
            return
        if commit and self.kind.keeps:
            self._decide(txn, generation)
        await producer.end(commit=commit)

    async def _write(self, producer: Producer) -> None:
        random = self._random
        for _ in range(random.randint(1, 3)):
            count, partitions = random.randint(1, 3), pick(random, self._partitions)
            if producer.kind.reuses_numbers:
                count = 1  # otherwise two batches could have the same numbers
            await producer.send(partitions, count, apart=random.random() < 0.5)
            await asyncio.sleep(random.choice(_PAUSES_S))
        if self.kind.offsets:
            self._offset += 1
            offset = producer.send_offset(self.group, self._partitions[0], self._offset)
            if random.random() < 0.5:
                await offset
            else:
                await together(producer.send(pick(random, self._partitions), 1), offset)

    def _decide(self, txn: Txn, generation: int) -> None:
        """Commit in the database; if its answer is lost, only recovery knows the outcome."""
        around = self._around
        if self.calm or self._random.random() >= around.faults.database_unknown:
            around.database.commit(self.owner, generation, txn)
            self._step()
            return
        if self._random.random() < 0.5:
            around.database.commit(self.owner, generation, txn)
        raise Died


class Around:
    """The state that all workers of a world share."""

    def __init__(
        self,
        *,
        network: Network,
        history: History,
        database: Database,
        faults: FaultPlan,
        random: Random,
        level: Callable[[], int],
    ) -> None:
        """Keep what the workers share.

        Args:
            network: carries the requests.
            history: receives what clients did and were told.
            database: the other half of the dual writes.
            faults: the faults of the run.
            random: decides what workers do.
            level: returns the finalized transaction.version, as a client learns it when it starts.
        """
        self.network = network
        self.history = history
        self.database = database
        self.faults = faults
        self.random = random
        self.level = level
