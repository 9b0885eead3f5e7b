"""The transactional ids of a prefix, on a cluster. Thin: what follows from the answers is `deciding`'s."""

import asyncio
from collections.abc import Collection, Iterable, Mapping
from typing import Final

from tallystick.admin.listing import gather
from tallystick.admin.model import TransactionDescription
from tallystick.admin.transactions import Transactions
from tallystick.client.aio.producer import Producer
from tallystick.client.cluster import Cluster
from tallystick.client.errors import BrokerRefused, ClientError, Fenced, IdExpired
from tallystick.client.modes import Wish
from tallystick.client.prepared import PreparedTxnState
from tallystick.client.txn_producer import End
from tallystick.client.txn_wire import TxnWire
from tallystick.kernel.codes import ErrorCode
from tallystick.kernel.ids import Identity
from tallystick.protocol.messages.init_producer_id import InitProducerIdRequest
from tallystick.spark.committable import Participant
from tallystick.spark.sink_options import SinkOptions
from tallystick.spark.transactional_ids import coordinator_id

# Each recovery is a client of its own, with connections of its own.
_RECOVERIES_MAX: Final = 8
# Every broker allows it, and whoever uses the id next sets its own.
_FENCED_TIMEOUT_MS: Final = 60_000


class ClusterParticipants:
    """One prefix on one cluster, on one loop; the cluster is the caller's, who closes it."""

    def __init__(self, cluster: Cluster, options: SinkOptions, limit_ms: int) -> None:
        """Args:
        limit_ms: how long each request may take, with all its repetitions.
        """
        self._cluster, self._options, self._limit_ms = cluster, options, limit_ms
        self._name = coordinator_id(options.prefix)
        self._transactions = Transactions(cluster, limit_ms)

    async def claim(self) -> tuple[Identity, int]:
        held = await self._initialise(self._name, self._options.coordinator_timeout_ms, None)
        return held, self._wire(self._name).transaction_version

    async def reclaim(self, held: Identity) -> Identity | None:
        # KIP-360: with the pair it believes to have, a producer is fenced if another was given the id since.
        try:
            return await self._initialise(self._name, self._options.coordinator_timeout_ms, held)
        except (Fenced, IdExpired):
            return None

    async def holds(self, held: Identity) -> bool:
        found = (await self.describe([self._name]))[self._name]
        return found is not None and found.writer == held

    async def describe(self, transactional_ids: Iterable[str]) -> Mapping[str, TransactionDescription | None]:
        names = tuple(transactional_ids)
        answers = await self._transactions.describe(names)
        for failure in answers.failures.values():
            code = failure.code if isinstance(failure, BrokerRefused) else None
            if code != ErrorCode.TRANSACTIONAL_ID_NOT_FOUND:
                raise failure
        return {name: answers.found.get(name) for name in names}

    async def end(
        self, participants: Collection[Participant], transaction_version: int, wish: Wish
    ) -> Mapping[str, ClientError]:
        named = {each.transactional_id: each for each in participants}

        async def one(name: str) -> None:
            end = End(client=named[name].identity, wish=wish, version=transaction_version)
            await self._wire(name).end(end)

        return (await gather(named, one)).failures

    async def recover(self, participants: Collection[Participant]) -> Mapping[str, ClientError]:
        named = {each.transactional_id: each for each in participants}
        places = asyncio.Semaphore(_RECOVERIES_MAX)

        async def one(name: str) -> None:
            async with places, Producer(self._options.of_worker(name)) as producer:
                await producer.init_transactions(keep_prepared_txn=True)
                await producer.complete_transaction(PreparedTxnState.of(named[name].identity))

        return (await gather(named, one)).failures

    async def open_ids(self) -> Collection[str]:
        answers = await self._transactions.list(states=("Ongoing",))
        # A coordinator that does not answer keeps its orphans until the next batch; they are in no decision.
        return {each.transactional_id for found in answers.found.values() for each in found}

    async def fence(self, transactional_ids: Collection[str]) -> None:
        async def one(name: str) -> Identity:
            return await self._initialise(name, _FENCED_TIMEOUT_MS, None)

        (await gather(transactional_ids, one)).all()

    async def _initialise(self, name: str, timeout_ms: int, held: Identity | None) -> Identity:
        request = InitProducerIdRequest(
            transactional_id=name,
            transaction_timeout_ms=timeout_ms,
            producer_id=-1 if held is None else held.producer_id,
            producer_epoch=-1 if held is None else held.epoch,
        )
        client, _ = await self._wire(name).init_producer_id(request)
        return client

    def _wire(self, name: str) -> TxnWire:
        return TxnWire(self._cluster, name, self._limit_ms)
