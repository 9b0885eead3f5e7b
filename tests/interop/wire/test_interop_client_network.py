"""Our client's network on our broker and on Apache Kafka: the same calls, the same answers."""

import asyncio
from typing import Any

from tallystick.client.errors import BrokerRefused, NotSupported, TimedOut, build_broker_error
from tallystick.client.net.cluster import Cluster
from tallystick.client.settings.config import ClientConfig
from tallystick.kernel.codes import ErrorCode
from tallystick.kernel.errors import Effect, Remedy
from tallystick.kernel.ids import TopicPartition
from tallystick.protocol.apis import ApiKey
from tallystick.protocol.messages.txn.end_txn import EndTxnRequest, EndTxnResponse
from tallystick.protocol.messages.txn.init_producer_id import InitProducerIdRequest, InitProducerIdResponse


async def initialise(cluster: Cluster, key: str, **more: bool) -> InitProducerIdResponse:
    request = InitProducerIdRequest(transactional_id=key, transaction_timeout_ms=60_000, **more)

    async def attempt() -> InitProducerIdResponse:
        answer = await cluster.send(
            await cluster.find_coordinator("transaction", key), request, InitProducerIdResponse
        )
        if answer.error_code:
            raise build_broker_error("InitProducerId", key, answer.error_code)
        return answer

    return await cluster.run_with_retries(
        "InitProducerId", key, attempt, cluster.start_deadline("max.block.ms", 60_000)
    )


def test_a_client_finds_its_way(cluster: Any) -> None:
    """Versions, features, leaders, a coordinator that is being made, an id that is claimed twice."""
    topic = cluster.topic(partitions=3)
    key = cluster.fresh_name("pay")

    async def main() -> None:
        client = Cluster(ClientConfig(bootstrap_servers=(cluster.bootstrap,)))
        image = await client.refresh([topic])
        assert set(image.topics[topic].partitions) == {0, 1, 2}
        assert {await client.find_leader(TopicPartition(topic, n)) for n in range(3)} == set(image.nodes)
        assert client.get_feature_level("transaction.version") == 2
        first, second = await initialise(client, key), await initialise(client, key)
        assert (second.producer_id, second.producer_epoch) == (first.producer_id, first.producer_epoch + 1)
        assert client.metrics()["connection-count"] == 1
        await client.close()

    asyncio.run(main())


def test_errors_mean_the_same(cluster: Any) -> None:
    key = cluster.fresh_name("pay")

    async def main() -> None:
        client = Cluster(ClientConfig(bootstrap_servers=(cluster.bootstrap,)))
        missing = TopicPartition(cluster.fresh_name("missing"), 0)
        deadline = client.start_deadline("max.block.ms", 300)
        late = await outcome(
            client.run_with_retries("Metadata", missing, lambda: client.find_leader(missing), deadline)
        )
        assert isinstance(late, TimedOut)
        assert "UNKNOWN_TOPIC_OR_PARTITION" in str(late)
        assert late.effect is Effect.NONE

        claimed = await initialise(client, key)
        stale = EndTxnRequest(
            transactional_id=key,
            producer_id=claimed.producer_id,
            producer_epoch=claimed.producer_epoch + 7,
            committed=True,
        )
        node = await client.find_coordinator("transaction", key)
        answer = await client.send(node, stale, EndTxnResponse)
        fenced = build_broker_error("EndTxn", key, answer.error_code)
        assert fenced.code == ErrorCode.PRODUCER_FENCED
        assert (fenced.effect, fenced.remedy) == (Effect.UNKNOWN, Remedy.LOOK_UP)
        await client.close()

    asyncio.run(main())


def test_keep_is_there_or_said_to_be_missing(cluster: Any) -> None:
    """InitProducerId 6 (KIP-939) is hidden by Apache Kafka: nothing is sent, and the text names the field."""
    key = cluster.fresh_name("pay")

    async def main() -> None:
        client = Cluster(ClientConfig(bootstrap_servers=(cluster.bootstrap,)))
        await client.start()
        (node,) = client.image.nodes
        has_keep = (await client.wait_for_versions(node)).find_latest_usable(ApiKey.INIT_PRODUCER_ID) == 6
        assert has_keep == (cluster.name == "tallystick")
        found = await outcome(initialise(client, key, keep_prepared_txn=True))
        if has_keep:
            assert isinstance(found, InitProducerIdResponse)
        else:
            assert isinstance(found, NotSupported)
            assert "keep_prepared_txn" in str(found)
            assert found.effect is Effect.NONE
        await client.close()

    asyncio.run(main())


async def outcome(waited: Any) -> object:
    try:
        return await waited
    except (BrokerRefused, NotSupported, TimedOut) as exc:
        return exc
