"""A producer that connects to a topic's leaders before it has a record for them."""

import asyncio
from collections.abc import Iterator

import pytest

from tallystick import Admin, Producer, aio
from tallystick.admin.topics import NewTopic
from tallystick.client.aio.producer import connect as connect_async
from tallystick.client.blocking.producer import connect
from tallystick.client.errors import ClientError
from tallystick.testing import EmbeddedBroker

pytestmark = [pytest.mark.server]

WAITED = "metadata-wait-time-ns-total"


@pytest.fixture(scope="module")
def settings() -> Iterator[dict[str, object]]:
    with EmbeddedBroker(in_process=True) as broker:
        cluster: dict[str, object] = {"bootstrap.servers": broker.bootstrap_servers}
        with Admin(cluster) as admin:
            admin.create_topics([NewTopic(name="t", partitions=2)]).all()
        yield {**cluster, "max.block.ms": 1_000}


def test_the_first_record_does_not_wait_for_metadata(settings: dict[str, object]) -> None:
    with Producer(settings) as producer:
        connect(producer, "t")
        waited = producer.metrics()[WAITED]
        assert waited > 0
        assert producer.metrics()["connection-count"] == 1
        producer.send("t", value=b"v")
        producer.flush()
        assert producer.metrics()[WAITED] == waited
        connect(producer, "t")
        assert producer.metrics()[WAITED] == waited


def test_the_asynchronous_producer_does_the_same(settings: dict[str, object]) -> None:
    async def run() -> None:
        async with aio.Producer(settings) as producer:
            await connect_async(producer, "t")
            waited = producer.metrics()[WAITED]
            await (await producer.send("t", value=b"v"))
            assert producer.metrics()[WAITED] == waited

    asyncio.run(run())


def test_a_topic_that_cannot_be_is_an_error(settings: dict[str, object]) -> None:
    with Producer(settings) as producer, pytest.raises(ClientError, match="no topic!"):
        connect(producer, "no topic!")
