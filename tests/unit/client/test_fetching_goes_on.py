"""What a fetch meets that nobody thought of reaches the user, and the partition is asked for again."""

import asyncio
from typing import Any

import pytest
from tests.support.scripted_broker import ScriptedBroker
from tests.support.scripted_group import ScriptedGroup

from tallystick.client.consumer.fetch_state import Position, SubscriptionState
from tallystick.client.consumer.fetcher import Fetcher
from tallystick.client.net.cluster import Cluster
from tallystick.client.settings.config import ConsumerConfig
from tallystick.kernel.ids import TopicPartition
from tallystick.protocol.apis import ApiKey
from tallystick.protocol.messages.data.fetch import FetchRequest
from tallystick.protocol.messages.topics.metadata import MetadataRequest

T0 = TopicPartition("t", 0)


class Unforeseen(Exception):
    """No error of this package: a mistake somewhere in it."""


class FailingCluster(Cluster):
    """Fails the next request of some kind, before it is sent."""

    fails: type | None = None

    async def send(self, node_id: int, request: object, answer: type[Any], **how: Any) -> Any:
        self._fail(type(request))
        return await super().send(node_id, request, answer, **how)

    async def refresh(self, topics: Any = ()) -> Any:
        self._fail(MetadataRequest)
        return await super().refresh(topics)

    def _fail(self, kind: type) -> None:
        if kind is self.fails:
            self.fails = None
            raise Unforeseen(kind.__name__)


async def taken(fetcher: Fetcher, news: asyncio.Event) -> None:
    """`take_records` until it raises."""
    async with asyncio.timeout(20):
        while True:
            news.clear()
            fetcher.take_records(10)
            await news.wait()


@pytest.mark.parametrize("kind", [FetchRequest, MetadataRequest])
def test_an_unforeseen_error_is_raised_and_the_partition_is_asked_for_again(kind: type) -> None:
    """In the fetch itself, and in the look for a leader that is not known."""

    async def main() -> None:
        async with ScriptedBroker() as broker:
            ScriptedGroup(broker)
            config = ConsumerConfig.parse({"bootstrap.servers": broker.address, "fetch.max.wait.ms": 1})
            cluster, news = FailingCluster(config.client), asyncio.Event()
            tracks = SubscriptionState(None)
            fetcher = Fetcher(config, cluster, tracks, news.set)
            if kind is FetchRequest:
                await cluster.refresh(["t"])
            tracks.assign({T0}, committed=False)
            tracks.seek(T0, Position(0))
            cluster.fails = kind
            with pytest.raises(Unforeseen):
                await taken(fetcher, news)
            async with asyncio.timeout(20):
                while not broker.count(ApiKey.FETCH):
                    fetcher.take_records(10)
                    await asyncio.sleep(0)
            fetcher.close()
            await cluster.close()

    asyncio.run(main())
