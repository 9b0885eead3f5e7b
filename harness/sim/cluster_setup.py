"""An operator who creates the topics of a fresh disk and finalizes a later transaction.version."""

import asyncio
from collections.abc import Mapping

from harness.sim.history import History
from harness.sim.machine import BrokerMachine
from harness.sim.network import NoReply, SimNetwork
from tallystick.kernel.codes import ErrorCode
from tallystick.protocol.messages.cluster.update_features import (
    FeatureUpdateKey,
    UpdateFeaturesRequest,
    UpdateFeaturesResponse,
)
from tallystick.protocol.messages.topics.create_topics import (
    CreatableTopic,
    CreateTopicsRequest,
    CreateTopicsResponse,
)


class ClusterSetup:
    """Repeats each request until it is carried out.

    `transaction_version` is the level known to be finalized: clients that start speak it.
    """

    def __init__(
        self, machine: BrokerMachine, network: SimNetwork, history: History, transaction_version: int
    ) -> None:
        self.transaction_version = transaction_version
        self._machine = machine
        self._network = network
        self._history = history

    async def create_topics(self, topics: Mapping[str, int]) -> None:
        """Create topics with these numbers of partitions."""
        new = [CreatableTopic(name=n, num_partitions=p, replication_factor=1) for n, p in topics.items()]
        request = CreateTopicsRequest(topics=tuple(new))
        missing = set(topics)
        while missing:
            try:
                answer = await self._network.call("admin", request, 5, CreateTopicsResponse)
            except NoReply:
                continue
            there = (ErrorCode.NONE, ErrorCode.TOPIC_ALREADY_EXISTS)
            missing -= {topic.name for topic in answer.topics if topic.error_code in there}
            await asyncio.sleep(0.02)

    async def upgrade(self, at_s: float) -> None:
        """Finalize transaction.version 2 under older clients; clients that start later speak it."""
        await asyncio.sleep(at_s)
        key = FeatureUpdateKey(feature="transaction.version", max_version_level=2)
        request = UpdateFeaturesRequest(feature_updates=(key,))
        while self.transaction_version < 2:
            try:
                answer = await self._network.call("admin", request, 1, UpdateFeaturesResponse)
            except NoReply:
                continue
            # The disk may have been exchanged meanwhile, so the answer tells, too.
            if answer.error_code == ErrorCode.KAFKA_STORAGE_ERROR or (
                answer.error_code and self._machine.is_broken
            ):
                continue
            if answer.error_code:
                self._history.report(f"UpdateFeatures: {answer.error_code} {answer.error_message}")
            self.transaction_version = 2
