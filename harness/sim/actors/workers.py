"""Workers: clients that run transactions, die, are replaced, and sometimes live on all the same.

A `TransactionWorker` owns one transactional id and starts one incarnation of its client after another.
"""

import asyncio
from collections.abc import Callable, Sequence
from random import Random
from typing import Final

from harness.sim.actors.clients import (
    AbortableError,
    ClientProfile,
    NoFinalAnswer,
    SimClientFenced,
    SimProducer,
    gather_all,
    pick_partitions,
)
from harness.sim.actors.dual_write import GenerationFenced, SimDatabase, recover_dual_write
from harness.sim.faults import FaultPlan
from harness.sim.history import History, SimTxn
from harness.sim.network import SimNetwork
from tallystick.kernel.ids import TopicPartition
from tallystick.kernel.value import replace

_PAUSES_S: Final = (0.0, 0.0, 0.0, 0.001, 0.001, 0.05, 0.4)


class ClientDied(Exception):
    """The client's process ended, at any point between two requests."""


class TransactionWorker:
    """One transactional id and its clients.

    `transactions_remaining` counts the transactions still to be begun.
    """

    def __init__(
        self,
        owner: str,
        kind: ClientProfile,
        transactions: int,
        partitions: Sequence[TopicPartition],
        shared_state: "SharedState",
    ) -> None:
        self.owner = owner
        self.profile = kind
        self.transactions_remaining = transactions
        self.is_calm = False  # clients no longer die
        self._partitions = partitions
        self._shared_state = shared_state
        self._random = shared_state.random
        self._offset = 0

    @property
    def group(self) -> str:
        return f"group-{self.owner}"

    async def run(self) -> None:
        """Run one incarnation after another until all is done; some live on beside their successor."""
        running: set[asyncio.Task[None]] = set()
        while self.transactions_remaining > 0:
            task = asyncio.get_running_loop().create_task(self._run_incarnation())
            running.add(task)
            if self._random.random() < self._shared_state.faults.client_lives_on:
                await asyncio.sleep(self._random.uniform(0, 0.3))
            else:
                await task
        for task in running:
            await task

    async def finish(self) -> None:
        """Run a last incarnation, which finds out how everything ended and leaves nothing open."""
        self.is_calm = True
        producer = self._create_producer()
        if self.profile.keeps_prepared:
            await recover_dual_write(producer, self._shared_state.database, self._shared_state.history)
        else:
            await producer.init()

    def _create_producer(self) -> SimProducer:
        shared_state = self._shared_state
        reuses = shared_state.faults.reuses_numbers and not self.profile.keeps_prepared
        version = min(self.profile.version, shared_state.transaction_version(), 1 if reuses else 2)
        kind = replace(self.profile, version=version, reuses_sequences=reuses)
        return SimProducer(
            self.owner,
            kind,
            shared_state.network,
            shared_state.history,
            self._maybe_die,
            gives_up=self._should_give_up,
        )

    def _should_give_up(self) -> bool:
        return not self.is_calm and self._random.random() < self._shared_state.faults.client_gives_up

    def _maybe_die(self) -> None:
        if not self.is_calm and self._random.random() < self._shared_state.faults.client_dies:
            raise ClientDied

    async def _run_incarnation(self) -> None:
        try:
            producer = self._create_producer()
            generation = 0
            if self.profile.keeps_prepared:
                generation = await recover_dual_write(
                    producer, self._shared_state.database, self._shared_state.history
                )
            else:
                await producer.init()
            while self.transactions_remaining > 0:
                self.transactions_remaining -= 1
                await self._run_transaction(producer, generation)
                await asyncio.sleep(self._random.choice(_PAUSES_S))
        except (SimClientFenced, ClientDied, GenerationFenced):
            return
        except NoFinalAnswer as exc:
            self._shared_state.history.report(str(exc))
            self.transactions_remaining = 0

    async def _run_transaction(self, producer: SimProducer, generation: int) -> None:
        txn = producer.begin()
        try:
            await self._write(producer)
            commit = self._random.random() < 0.8
        except AbortableError:
            commit = False
        if not txn.records and txn.offset is None:
            return
        if commit and self.profile.keeps_prepared:
            self._commit_in_database(txn, generation)
        await producer.end(commit=commit)

    async def _write(self, producer: SimProducer) -> None:
        random = self._random
        for _ in range(random.randint(1, 3)):
            count, partitions = random.randint(1, 3), pick_partitions(random, self._partitions)
            if producer.profile.reuses_sequences:
                count = 1  # otherwise two batches could have the same numbers
            await producer.send(partitions, count, apart=random.random() < 0.5)
            await asyncio.sleep(random.choice(_PAUSES_S))
        if self.profile.sends_offsets:
            self._offset += 1
            offset = producer.send_offset(self.group, self._partitions[0], self._offset)
            if random.random() < 0.5:
                await offset
            else:
                await gather_all(producer.send(pick_partitions(random, self._partitions), 1), offset)

    def _commit_in_database(self, txn: SimTxn, generation: int) -> None:
        """Commit in the database; if its answer is lost, only recovery knows the outcome."""
        shared_state = self._shared_state
        if self.is_calm or self._random.random() >= shared_state.faults.database_unknown:
            shared_state.database.commit(self.owner, generation, txn)
            self._maybe_die()
            return
        if self._random.random() < 0.5:
            shared_state.database.commit(self.owner, generation, txn)
        raise ClientDied


class SharedState:
    """The state that all workers of a world share."""

    def __init__(
        self,
        *,
        network: SimNetwork,
        history: History,
        database: SimDatabase,
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
        self.transaction_version = level
