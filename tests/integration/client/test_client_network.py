"""The client's network against what happens to brokers: ours killed and restarted, others that are none."""

import asyncio
import os
import random
from collections.abc import Iterator
from typing import Any

import pytest
from tests.support.scripted_broker import ScriptedBroker, Seen

from tallystick.client.errors import BadAnswer, ConnectionLost, TimedOut, Unreachable, build_broker_error
from tallystick.client.net.cluster import Cluster
from tallystick.client.settings.config import ClientConfig
from tallystick.kernel.errors import Effect
from tallystick.kernel.ids import TopicPartition
from tallystick.protocol.apis import ApiKey
from tallystick.protocol.messages.topics.metadata import MetadataResponse, MetadataResponseBroker
from tallystick.protocol.messages.txn.end_txn import EndTxnRequest, EndTxnResponse
from tallystick.protocol.messages.txn.init_producer_id import InitProducerIdRequest, InitProducerIdResponse
from tallystick.testing import EmbeddedBroker

pytestmark = pytest.mark.server

END = EndTxnRequest(transactional_id="t", producer_id=1, producer_epoch=0, committed=True)


@pytest.fixture
def broker() -> Iterator[EmbeddedBroker]:
    with EmbeddedBroker() as running:
        yield running


def config(*addresses: str, **more: Any) -> ClientConfig:
    return ClientConfig(
        bootstrap_servers=addresses, **({"retry_backoff_ms": 5, "request_timeout_ms": 5_000} | more)
    )


async def initialise(cluster: Cluster, key: str = "pay-7", limit_ms: int = 30_000) -> InitProducerIdResponse:
    request = InitProducerIdRequest(transactional_id=key, transaction_timeout_ms=60_000)

    async def attempt() -> InitProducerIdResponse:
        node = await cluster.find_coordinator("transaction", key)
        answer = await cluster.send(node, request, InitProducerIdResponse)
        if answer.error_code:
            raise build_broker_error("InitProducerId", key, answer.error_code)
        return answer

    return await cluster.run_with_retries(
        "InitProducerId", key, attempt, cluster.start_deadline("max.block.ms", limit_ms)
    )


def test_our_broker_tells_what_it_can_do(broker: EmbeddedBroker) -> None:
    async def main() -> None:
        cluster = Cluster(config(broker.bootstrap_servers), auto_create_topics=True)
        await cluster.start()
        (node,) = cluster.image.nodes
        assert (await cluster.wait_for_versions(node)).find_latest_usable(ApiKey.INIT_PRODUCER_ID) == 6
        assert cluster.get_feature_level("transaction.version") == 2
        at = TopicPartition("made-by-asking", 0)
        leader = await cluster.run_with_retries(
            "Produce", at, lambda: cluster.find_leader(at), cluster.start_deadline("max.block.ms", 30_000)
        )
        assert leader == node
        assert cluster.metrics()["connection-creation-total"] == 1, "what was bootstrapped from is the broker"
        await cluster.close()

    asyncio.run(main())


def test_a_broker_that_was_killed_and_comes_back_is_found_again(broker: EmbeddedBroker) -> None:
    """The first attempts after the kill cannot connect, and the coordinator was forgotten with it."""

    async def main() -> None:
        cluster = Cluster(config(broker.bootstrap_servers))
        first = await initialise(cluster)
        await asyncio.to_thread(broker.kill)
        back = asyncio.create_task(asyncio.to_thread(broker.start))
        second = await initialise(cluster, limit_ms=60_000)
        await back
        assert second.producer_id == first.producer_id
        assert second.producer_epoch > first.producer_epoch
        await cluster.close()

    asyncio.run(main())


def test_another_cluster_at_the_same_address_has_features_of_its_own(broker: EmbeddedBroker) -> None:
    """A client that lives on when a broker of tests is made anew; it may have connected before it notices."""
    port = broker.bootstrap_servers.rpartition(":")[2]

    async def main() -> None:
        cluster = Cluster(config(broker.bootstrap_servers))
        await cluster.start()
        before = cluster.image.cluster_id
        broker.stop()
        with EmbeddedBroker(config={"listeners": f"PLAINTEXT://127.0.0.1:{port}"}):
            await initialise(cluster)
            assert before != cluster.image.cluster_id
            assert cluster.get_feature_level("transaction.version") == 2
        await cluster.close()

    asyncio.run(main())


def test_nothing_happened_where_no_server_listens() -> None:
    """[CLI-6] The limit is named, and so is what every address said."""

    async def main() -> None:
        async with ScriptedBroker() as gone:
            pass
        cluster = Cluster(config(gone.address))
        with pytest.raises(Unreachable, match=gone.address):
            await cluster.start()
        with pytest.raises(TimedOut, match=r"max\.block\.ms = 1000 ms") as late:
            await initialise(cluster, limit_ms=1_000)
        assert late.value.effect is Effect.NONE
        assert gone.address in str(late.value)
        await cluster.close()

    asyncio.run(main())


@pytest.mark.parametrize(
    ("greeting", "said"),
    [
        (b"HTTP/1.1 400 Bad Request\r\n\r\n", "HTTP server"),
        (b"\x15\x03\x03\x00\x02\x02\x46", "speaks TLS"),
        (b"\xff\xff\xff\xff", "a frame of -1 bytes"),
        (b"\0\0\0\x02ab", "an answer of 2 bytes"),
        (b"\0\0\0\x04\0\0\0\x63", "request 99"),
        (b"\0\0\0\x06\0\0\0\x01\0\x2a", "INVALID_REQUEST"),
    ],
)
def test_what_is_no_broker_is_called_that(greeting: bytes, said: str) -> None:
    """[CLI-3]"""

    async def main() -> None:
        other = ScriptedBroker(greeting=greeting, scripts={ApiKey.API_VERSIONS: lambda _: None})
        async with other:
            cluster = Cluster(config(other.address))
            with pytest.raises((Unreachable, BadAnswer), match=said) as found:
                await cluster.start()
            assert found.value.effect is Effect.NONE
            await cluster.close()

    asyncio.run(main())


def test_silence_ends_with_the_request_timeout() -> None:
    async def main() -> None:
        async with ScriptedBroker(scripts={ApiKey.API_VERSIONS: lambda _: None}) as mute:
            cluster = Cluster(config(mute.address, request_timeout_ms=50))
            with pytest.raises((Unreachable, TimedOut), match=r"request\.timeout\.ms = 50 ms") as late:
                await cluster.start()
            assert mute.address in str(late.value)
            assert late.value.effect is Effect.NONE
            await cluster.close()

    asyncio.run(main())


@pytest.mark.parametrize(
    ("host", "port"), [("127.0.0.1", 99_999_999), ("", 1), ("a..b", 9092), ("a" * 300, 1)]
)
def test_an_address_that_is_none_is_a_broker_that_cannot_be_reached(host: str, port: int) -> None:
    """Metadata may say anything; the client goes on with whom it can reach."""

    async def main() -> None:
        async with ScriptedBroker() as broker:
            told = MetadataResponse(
                brokers=(MetadataResponseBroker(node_id=9, host=host, port=port),), cluster_id="c"
            )
            broker.scripts[ApiKey.METADATA] = lambda _: told
            cluster = Cluster(config(broker.address))
            await cluster.start()
            with pytest.raises(Unreachable):
                await cluster.send(9, END, EndTxnResponse)
            await cluster.refresh()
            await cluster.close()

    asyncio.run(main())


def frames(seed: int) -> bytes:
    """Something that is nearly an answer: right in front and wrong behind, or the other way round."""
    chance = random.Random(seed)
    right = ScriptedBroker.frame(ApiKey.END_TXN, 5, chance.choice([2, 3, 3, 3, 4]), EndTxnResponse())
    broken = bytearray(right)
    match chance.randrange(4):
        case 0:
            broken[chance.randrange(4, len(broken))] ^= 1 << chance.randrange(8)
        case 1:
            del broken[chance.randrange(len(broken)) :]
            broken[:4] = (
                (len(broken) - 4).to_bytes(4, "big", signed=True) if len(broken) >= 4 else b"\0\0\0\0"
            )
        case 2:
            broken[:4] = chance.randbytes(4)
        case _:
            broken += chance.randbytes(chance.randrange(1, 100))
    return bytes(broken)


def test_garbage_for_an_answer_ends_the_connection_and_never_the_client() -> None:
    """[CLI-3] Whatever comes: an answer, or an error that says it may have happened; the next one works."""

    async def main() -> None:
        broker = ScriptedBroker()
        async with broker:
            cluster = Cluster(config(broker.address, request_timeout_ms=200, reconnect_backoff_ms=0))
            await cluster.start()
            kinds = set()
            for seed in range(150):
                broker.scripts[ApiKey.END_TXN] = lambda _, seed=seed: frames(seed)
                sent = cluster.submit(1, END)
                (found,) = await asyncio.gather(sent, return_exceptions=True)
                if not isinstance(found, EndTxnResponse):
                    assert isinstance(found, BadAnswer | ConnectionLost | TimedOut), found
                    assert found.effect is Effect.UNKNOWN
                    kinds.add(type(found))
                broker.scripts[ApiKey.END_TXN] = lambda _: EndTxnResponse(producer_id=7)
                answer = await cluster.run_with_retries(
                    "EndTxn", "t", again(cluster), cluster.start_deadline("limit", 20_000)
                )
                assert answer.producer_id == 7
            assert BadAnswer in kinds
            await cluster.close()

    def again(cluster: Cluster):  # type: ignore[no-untyped-def]
        return lambda: cluster.send(1, END, EndTxnResponse)

    asyncio.run(main())


def test_a_large_answer_arrives_whole_however_it_is_cut() -> None:
    """3 MB in pieces: the buffer grows as the bytes come, and what follows the frame is the next one."""

    async def main() -> None:
        broker = ScriptedBroker()
        async with broker:
            topics = {f"topic-{n}-{'x' * 200}": 1 for n in range(12_000)}
            broker.scripts[ApiKey.METADATA] = lambda _: broker.metadata(**topics)
            cluster = Cluster(config(broker.address))
            image = await cluster.refresh(None)
            assert len(image.topics) == 12_000
            assert cluster.metrics()["incoming-byte-total"] > 2 * 2**20
            await cluster.refresh(None)
            await cluster.close()

    asyncio.run(main())


def test_a_peer_that_does_not_read_is_given_up_and_close_does_not_wait_for_it() -> None:
    async def main() -> None:
        stop = asyncio.Event()

        async def never(seen: Seen) -> None:
            await stop.wait()

        broker = ScriptedBroker(scripts={ApiKey.INIT_PRODUCER_ID: never})
        async with broker:
            cluster = Cluster(config(broker.address), in_flight_max=100)
            await cluster.start()
            heavy = InitProducerIdRequest(transactional_id="x" * 30_000, transaction_timeout_ms=1)
            pending = [cluster.submit(1, heavy) for _ in range(800)]
            await asyncio.sleep(0)
            await cluster.close()  # a close that waited for an answer would wait for `stop`
            found = await asyncio.gather(*pending, return_exceptions=True)
            effects = {getattr(error, "effect", None) for error in found}
            assert effects == {Effect.UNKNOWN, Effect.NONE}
            stop.set()

    asyncio.run(main())


def test_the_network_is_not_used_before_it_is_needed() -> None:
    async def main() -> None:
        before = set(os.listdir("/proc/self/fd"))
        cluster = Cluster(config("nowhere.invalid:9092"))
        assert asyncio.all_tasks() == {asyncio.current_task()}
        assert set(os.listdir("/proc/self/fd")) == before
        await cluster.close()

    asyncio.run(main())
