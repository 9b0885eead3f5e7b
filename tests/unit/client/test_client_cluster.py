"""A cluster seen through sockets that answer what the test says: order, refreshes, coordinators, retries."""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import suppress
from typing import TypeVar

import pytest
from tests.support.scripted_broker import HangUp, ScriptedBroker, Seen

from tallystick.client.errors import (
    BadAnswer,
    BrokerRefused,
    Closed,
    ConnectionLost,
    NotSupported,
    TimedOut,
    UnknownTopic,
    Unreachable,
    build_broker_error,
)
from tallystick.client.net.cluster import Cluster
from tallystick.client.settings.config import ClientConfig
from tallystick.kernel.errors import Effect
from tallystick.kernel.ids import TopicPartition
from tallystick.protocol.apis import ApiKey
from tallystick.protocol.messages.cluster.find_coordinator import (
    Coordinator,
    FindCoordinatorRequest,
    FindCoordinatorResponse,
)
from tallystick.protocol.messages.data.produce import ProduceRequest
from tallystick.protocol.messages.groups.membership import HeartbeatRequest, HeartbeatResponse
from tallystick.protocol.messages.topics.metadata import MetadataRequest, MetadataResponse
from tallystick.protocol.messages.txn.end_txn import EndTxnRequest, EndTxnResponse
from tallystick.protocol.messages.txn.init_producer_id import InitProducerIdRequest, InitProducerIdResponse

pytestmark = pytest.mark.server

T = TypeVar("T")
AT = TopicPartition("orders", 0)
END = EndTxnRequest(transactional_id="t", producer_id=1, producer_epoch=0, committed=True)


def config(*brokers: ScriptedBroker, **more: object) -> ClientConfig:
    quick: dict[str, object] = {
        "retry_backoff_ms": 1,
        "retry_backoff_max_ms": 5,
        "reconnect_backoff_ms": 1,
        "reconnect_backoff_max_ms": 5,
        "request_timeout_ms": 5_000,
    }
    return ClientConfig(bootstrap_servers=tuple(b.address for b in brokers), **{**quick, **more})  # type: ignore[arg-type]


def run(
    story: Callable[[ScriptedBroker, Cluster], Coroutine[object, object, None]],
    broker: ScriptedBroker | None = None,
    **settings: object,
) -> ScriptedBroker:
    """Play `story` with a broker and a cluster that knows it; nothing may be left behind."""
    scripted = broker or ScriptedBroker()

    async def main() -> None:
        async with scripted:
            cluster = Cluster(config(scripted, **settings))
            try:
                await asyncio.wait_for(story(scripted, cluster), 30)
            finally:
                await cluster.close()

    asyncio.run(main())
    return scripted


def of(key: ApiKey, broker: ScriptedBroker) -> list[Seen]:
    return [seen for seen in broker.seen if seen.key is key]


def answers(*codes: int) -> Callable[[Seen], EndTxnResponse]:
    """EndTxn answered with these, one after the other."""
    left = list(codes)
    return lambda _: EndTxnResponse(error_code=left.pop(0))


async def until(condition: Callable[[], object]) -> None:
    """Let the loop turn until something is true; the story's own limit ends the wait."""
    while not condition():  # noqa: ASYNC110
        await asyncio.sleep(0)


# ------------------------------------------------------------------------------ order, bounds


def test_requests_leave_in_the_order_of_the_calls_also_those_before_the_connection() -> None:
    """[CLI-5] More than fit in flight, some of them submitted while there is no connection yet."""

    async def story(broker: ScriptedBroker, cluster: Cluster) -> None:
        await cluster.start()
        wanted = [f"group-{n}" for n in range(40)]
        requests = [HeartbeatRequest(group_id=g, generation_id=1, member_id="m") for g in wanted]
        pending = [cluster.submit(1, request, connection_name="fresh") for request in requests[:20]]
        await pending[0]
        pending += [cluster.submit(1, request, connection_name="fresh") for request in requests[20:]]
        await asyncio.gather(*pending)
        assert [getattr(seen.request, "group_id", "") for seen in of(ApiKey.HEARTBEAT, broker)] == wanted

    broker = ScriptedBroker(scripts={ApiKey.HEARTBEAT: lambda _: HeartbeatResponse()})
    run(story, broker)


def test_no_more_than_five_await_an_answer() -> None:
    async def story(broker: ScriptedBroker, cluster: Cluster) -> None:
        gate = asyncio.Event()
        most = 0

        async def answer(seen: Seen) -> HeartbeatResponse:
            nonlocal most
            link = next(iter(cluster.connections._connections.values()))
            assert link._connection is not None
            most = max(most, link._connection.protocol_state.in_flight_count)
            await gate.wait()
            return HeartbeatResponse()

        broker.scripts[ApiKey.HEARTBEAT] = answer
        await cluster.start()
        request = HeartbeatRequest(group_id="g", generation_id=1, member_id="m")
        pending = [cluster.submit(1, request) for _ in range(12)]
        await until(lambda: most)
        gate.set()
        await asyncio.gather(*pending)
        assert most == 5

    run(story)


def test_what_waits_on_one_connection_does_not_hold_up_another() -> None:
    async def story(broker: ScriptedBroker, cluster: Cluster) -> None:
        broker.scripts[ApiKey.END_TXN] = lambda _: None
        await cluster.start()
        stuck = cluster.submit(1, END)
        beat = HeartbeatRequest(group_id="g", generation_id=1, member_id="m")
        assert await cluster.send(1, beat, HeartbeatResponse, connection_name="group") == HeartbeatResponse()
        assert not stuck.done()

    run(story, ScriptedBroker(scripts={ApiKey.HEARTBEAT: lambda _: HeartbeatResponse()}))


def test_produce_without_acks_awaits_no_answer() -> None:
    async def story(broker: ScriptedBroker, cluster: Cluster) -> None:
        broker.scripts[ApiKey.PRODUCE] = lambda _: None
        await cluster.start()
        sent = [
            cluster.submit(1, ProduceRequest(acks=0, timeout_ms=1, topic_data=()), max_version=12)
            for _ in range(7)
        ]
        assert await asyncio.gather(*sent) == [None] * 7
        await until(lambda: broker.count(ApiKey.PRODUCE) == 7)
        await cluster.refresh()

    run(story)


# -------------------------------------------------------------------------- versions, features


def test_a_field_that_the_brokers_version_lacks_is_not_dropped() -> None:
    """InitProducerId 5 has no keep: losing it would turn "keep" into "abort"."""

    async def story(broker: ScriptedBroker, cluster: Cluster) -> None:
        broker.scripts[ApiKey.API_VERSIONS] = lambda _: broker.versions(InitProducerId=(0, 5))
        await cluster.start()
        keep = InitProducerIdRequest(transactional_id="t", transaction_timeout_ms=1, keep_prepared_txn=True)
        with pytest.raises(NotSupported, match="keep_prepared_txn") as refusal:
            await cluster.send(1, keep, InitProducerIdResponse)
        assert refusal.value.effect is Effect.NONE
        assert broker.count(ApiKey.INIT_PRODUCER_ID) == 0
        assert (await cluster.wait_for_versions(1)).find_latest_usable(ApiKey.INIT_PRODUCER_ID) == 5

    run(story)


def test_the_highest_version_both_have_is_used_unless_capped_or_fixed() -> None:
    async def story(broker: ScriptedBroker, cluster: Cluster) -> None:
        broker.scripts[ApiKey.END_TXN] = lambda _: EndTxnResponse()
        broker.scripts[ApiKey.API_VERSIONS] = lambda _: broker.versions(EndTxn=(0, 4))
        await cluster.start()
        await cluster.send(1, END, EndTxnResponse)
        await cluster.send(1, END, EndTxnResponse, max_version=2)
        await cluster.send(1, END, EndTxnResponse, version=3)
        with pytest.raises(NotSupported):
            await cluster.send(1, END, EndTxnResponse, version=5)
        assert [seen.version for seen in of(ApiKey.END_TXN, broker)] == [4, 2, 3]

    run(story)


def test_an_old_broker_that_answers_35_is_asked_again() -> None:
    """KIP-511, over a socket: version 4 is refused, version 2 is what it has."""

    async def story(broker: ScriptedBroker, cluster: Cluster) -> None:
        def versions(seen: Seen) -> object:
            return broker.versions(ApiVersions=(0, 2)) if seen.version <= 2 else refusal

        refusal = type(broker.versions())(
            error_code=35,
            api_keys=tuple(k for k in broker.versions(ApiVersions=(0, 2)).api_keys if k.api_key == 18),
        )
        broker.scripts[ApiKey.API_VERSIONS] = versions
        await cluster.start()
        assert [seen.version for seen in of(ApiKey.API_VERSIONS, broker)] == [5, 2]

    run(story)


def test_the_newest_features_win_whichever_broker_is_met_last() -> None:
    async def main() -> None:
        new = ScriptedBroker(1, features={"transaction.version": 2}, features_epoch=9)
        old = ScriptedBroker(2, features={"transaction.version": 1}, features_epoch=8)
        async with new, old:
            cluster = Cluster(config(new))
            new.scripts[ApiKey.METADATA] = lambda _: new.metadata(old)
            assert cluster.get_feature_level("transaction.version") == 0
            await cluster.start()
            await cluster.wait_for_versions(2)
            assert cluster.get_feature_level("transaction.version") == 2
            await cluster.close()

    asyncio.run(main())


# -------------------------------------------------------------------------------- metadata


def test_refreshes_asked_for_together_are_one_request() -> None:
    """One is under way, and everybody who asks meanwhile shares the one after it."""

    async def story(broker: ScriptedBroker, cluster: Cluster) -> None:
        gate = asyncio.Event()

        async def answer(_: Seen) -> MetadataResponse:
            await gate.wait()
            return broker.metadata(orders=1)

        broker.scripts[ApiKey.METADATA] = answer
        begun = asyncio.ensure_future(cluster.refresh(["orders"]))
        await until(lambda: broker.count(ApiKey.METADATA))
        more = [asyncio.ensure_future(cluster.refresh(["orders", f"t{n}"])) for n in range(50)]
        await asyncio.sleep(0)
        gate.set()
        await asyncio.gather(begun, *more)
        asked = [seen.request for seen in of(ApiKey.METADATA, broker)]
        assert len(asked) == 2
        assert isinstance(asked[1], MetadataRequest)
        assert len(asked[1].topics or ()) == 51

    run(story)


def test_a_leader_is_looked_for_once_and_then_known() -> None:
    async def story(broker: ScriptedBroker, cluster: Cluster) -> None:
        broker.scripts[ApiKey.METADATA] = lambda _: broker.metadata(orders=1)
        assert await cluster.find_leader(AT) == 1
        asked = broker.count(ApiKey.METADATA)
        assert await cluster.find_leader(AT) == 1
        assert broker.count(ApiKey.METADATA) == asked
        with pytest.raises(UnknownTopic):
            await cluster.find_leader(TopicPartition("orders", 1))

    run(story)


def test_a_missing_topic_is_waited_for_until_the_limit_and_named() -> None:
    async def story(broker: ScriptedBroker, cluster: Cluster) -> None:
        with pytest.raises(TimedOut) as late:
            await cluster.run_with_retries(
                "Produce", AT, lambda: cluster.find_leader(AT), cluster.start_deadline("max.block.ms", 50)
            )
        assert late.value.limit == "max.block.ms"
        assert "UNKNOWN_TOPIC_OR_PARTITION" in str(late.value)
        assert late.value.effect is Effect.NONE
        broker.scripts[ApiKey.METADATA] = lambda _: broker.metadata(orders=1)
        found = await cluster.run_with_retries(
            "Produce", AT, lambda: cluster.find_leader(AT), cluster.start_deadline("max.block.ms", 20_000)
        )
        assert found == 1

    run(story)


@pytest.mark.parametrize("name", ["", ".", "..", "a b", "ü", "a/b", "x" * 250, "\ud800"])
def test_a_name_that_no_topic_can_have_is_refused_and_spoils_no_refresh(name: str) -> None:
    async def story(broker: ScriptedBroker, cluster: Cluster) -> None:
        with pytest.raises(BrokerRefused, match="INVALID_TOPIC"):
            await cluster.get_topic(name)
        await cluster.refresh()

    run(story)


def test_a_cluster_that_is_gone_gets_no_request_without_a_caller() -> None:
    async def main() -> None:
        async with ScriptedBroker() as broker:
            cluster = Cluster(config(broker))
            await cluster.start()
        with pytest.raises((Unreachable, ConnectionLost)):
            await cluster.send(1, END, EndTxnResponse)
        async with asyncio.timeout(20):
            await until(lambda: asyncio.all_tasks() == {asyncio.current_task()})
        await cluster.close()

    asyncio.run(main())


def test_what_may_have_been_done_is_not_asked_of_the_next_broker() -> None:
    async def main() -> None:
        first, second = ScriptedBroker(1), ScriptedBroker(2)
        async with first, second:
            request = InitProducerIdRequest(transactional_id=None, transaction_timeout_ms=1)
            for broker in (first, second):
                broker.scripts[ApiKey.INIT_PRODUCER_ID] = hang_up
            cluster = Cluster(config(first, second))
            with pytest.raises(ConnectionLost) as lost:
                await cluster.send_to_any(request, InitProducerIdResponse)
            assert lost.value.effect is Effect.UNKNOWN
            assert first.count(ApiKey.INIT_PRODUCER_ID) + second.count(ApiKey.INIT_PRODUCER_ID) == 1
            await cluster.close()

    asyncio.run(main())


def test_nothing_is_sent_when_the_limit_has_passed() -> None:
    """[CLI-6] Else the last attempt would turn "nothing happened" into "it may have"."""

    async def story(broker: ScriptedBroker, cluster: Cluster) -> None:
        await cluster.start()
        with pytest.raises(TimedOut, match="not sent yet") as late:
            await cluster.send(1, END, EndTxnResponse, timeout_ms=0)
        assert late.value.effect is Effect.NONE
        assert broker.count(ApiKey.END_TXN) == 0

    run(story)


def test_metadata_grows_old_by_itself() -> None:
    async def story(broker: ScriptedBroker, cluster: Cluster) -> None:
        await cluster.start()
        await until(lambda: broker.count(ApiKey.METADATA) >= 4)

    run(story, metadata_max_age_ms=5)


def test_brokers_that_cannot_be_asked_are_passed_over() -> None:
    """Of four addresses one is no broker, one hangs up and one is dead."""

    async def main() -> None:
        garbage = ScriptedBroker(greeting=b"HTTP/1.1 400 Bad Request\r\n\r\n")
        rude = ScriptedBroker(scripts={ApiKey.API_VERSIONS: hang_up})
        async with ScriptedBroker() as dead:
            pass
        async with garbage, rude, ScriptedBroker() as good:
            for _ in range(4):
                cluster = Cluster(config(garbage, rude, dead, good))
                await cluster.start()
                assert set(cluster.image.nodes) == {1}
                await cluster.close()

    asyncio.run(main())


def test_bootstrap_addresses_are_asked_again_when_no_known_broker_answers() -> None:
    """metadata.recovery.strategy=rebootstrap, and what `none` means."""

    async def main() -> None:
        async with ScriptedBroker(1) as first, ScriptedBroker(2) as moved:
            async with ScriptedBroker(9) as gone:
                first.scripts[ApiKey.METADATA] = lambda _: gone.metadata()
                loyal = Cluster(config(first, metadata_recovery_strategy="none"))
                cluster = Cluster(config(first))
                await asyncio.gather(cluster.start(), loyal.start())
                assert set(cluster.image.nodes) == {9}
            first.scripts[ApiKey.METADATA] = lambda _: moved.metadata()
            await cluster.refresh()
            assert set(cluster.image.nodes) == {2}
            with pytest.raises((Unreachable, ConnectionLost)):
                await loyal.refresh()
            await asyncio.gather(cluster.close(), loyal.close())

    asyncio.run(main())


def hang_up(_: Seen) -> object:
    raise HangUp


# ----------------------------------------------------------------------------- coordinators


def here(broker: ScriptedBroker) -> Callable[[Seen], FindCoordinatorResponse]:
    def answer(seen: Seen) -> FindCoordinatorResponse:
        assert isinstance(seen.request, FindCoordinatorRequest)
        if seen.version < 4:
            return FindCoordinatorResponse(node_id=1, host="127.0.0.1", port=broker.port)
        (key,) = seen.request.coordinator_keys
        return FindCoordinatorResponse(
            coordinators=(Coordinator(key=key, node_id=1, host="127.0.0.1", port=broker.port),)
        )

    return answer


@pytest.mark.parametrize("newest", [2, 6])
def test_a_coordinator_is_looked_up_once_by_all_who_want_it(newest: int) -> None:
    async def story(broker: ScriptedBroker, cluster: Cluster) -> None:
        broker.scripts[ApiKey.FIND_COORDINATOR] = here(broker)
        broker.scripts[ApiKey.API_VERSIONS] = lambda _: broker.versions(FindCoordinator=(0, newest))
        found = await asyncio.gather(*(cluster.find_coordinator("transaction", "t") for _ in range(9)))
        assert found == [1] * 9
        assert await cluster.find_coordinator("transaction", "t") == 1
        assert broker.count(ApiKey.FIND_COORDINATOR) == 1
        cluster.forget_coordinator("transaction", "t")
        assert await cluster.find_coordinator("transaction", "t") == 1
        assert [seen.version for seen in of(ApiKey.FIND_COORDINATOR, broker)] == [newest, newest]

    run(story)


def test_an_answer_about_another_key_is_no_answer() -> None:
    """A coordinator for the wrong id would be asked to end the wrong transaction."""

    async def story(broker: ScriptedBroker, cluster: Cluster) -> None:
        other = Coordinator(key="other", node_id=1, host="127.0.0.1", port=broker.port)
        for told in ((other,), (other, other)):
            broker.scripts[ApiKey.FIND_COORDINATOR] = lambda _, told=told: FindCoordinatorResponse(
                coordinators=told
            )
            with pytest.raises(BadAnswer, match="other"):
                await cluster.find_coordinator("transaction", "t")

    run(story)


def test_a_coordinator_that_does_not_answer_is_looked_up_again() -> None:
    async def story(broker: ScriptedBroker, cluster: Cluster) -> None:
        broker.scripts[ApiKey.FIND_COORDINATOR] = here(broker)
        broker.scripts[ApiKey.END_TXN] = hang_up
        node = await cluster.find_coordinator("transaction", "t")
        with pytest.raises(ConnectionLost) as lost:
            await cluster.send(node, END, EndTxnResponse)
        assert lost.value.effect is Effect.UNKNOWN
        await cluster.find_coordinator("transaction", "t")
        assert broker.count(ApiKey.FIND_COORDINATOR) == 2

    run(story)


def test_a_coordinator_that_is_gone_is_looked_up_again_after_its_versions_were_asked_for() -> None:
    """Nothing was sent to it, and what was found before would lead there for ever."""

    async def main() -> None:
        async with ScriptedBroker(1) as first:
            async with ScriptedBroker(2) as gone:
                first.scripts[ApiKey.METADATA] = lambda _: first.metadata(gone)
                first.scripts[ApiKey.FIND_COORDINATOR] = lambda seen: FindCoordinatorResponse(
                    coordinators=(Coordinator(key="t", node_id=2, host="127.0.0.1", port=gone.port),)
                )
                cluster = Cluster(config(first))
                assert await cluster.find_coordinator("transaction", "t") == 2
            with pytest.raises((Unreachable, ConnectionLost)):
                await cluster.wait_for_versions(2)
            first.scripts[ApiKey.FIND_COORDINATOR] = here(first)
            assert await cluster.find_coordinator("transaction", "t") == 1
            await cluster.close()

    asyncio.run(main())


def ending(cluster: Cluster) -> Callable[[], Awaitable[EndTxnResponse]]:
    async def attempt() -> EndTxnResponse:
        answer = await cluster.send(await cluster.find_coordinator("transaction", "t"), END, EndTxnResponse)
        if answer.error_code:
            raise build_broker_error("EndTxn", "t", answer.error_code)
        return answer

    return attempt


# --------------------------------------------------------------------------------- retrying


def test_attempts_go_on_until_one_succeeds() -> None:
    async def story(broker: ScriptedBroker, cluster: Cluster) -> None:
        broker.scripts[ApiKey.FIND_COORDINATOR] = here(broker)
        broker.scripts[ApiKey.END_TXN] = answers(51, 14, 16, 15, 0)
        await cluster.run_with_retries(
            "EndTxn", "t", ending(cluster), cluster.start_deadline("max.block.ms", 20_000)
        )
        assert broker.count(ApiKey.END_TXN) == 5
        assert broker.count(ApiKey.FIND_COORDINATOR) == 3

    run(story)


@pytest.mark.parametrize(("before", "effect"), [([14], Effect.NONE), ([51], Effect.UNKNOWN)])
def test_what_is_refused_after_an_unknown_attempt_stays_unknown(before: list[int], effect: Effect) -> None:
    """[CLI-1] 53 alone means that nothing happened; behind a 51 it does not."""

    async def story(broker: ScriptedBroker, cluster: Cluster) -> None:
        broker.scripts[ApiKey.FIND_COORDINATOR] = here(broker)
        broker.scripts[ApiKey.END_TXN] = answers(*before, 53)
        with pytest.raises(BrokerRefused) as refusal:
            await cluster.run_with_retries(
                "EndTxn", "t", ending(cluster), cluster.start_deadline("max.block.ms", 20_000)
            )
        assert refusal.value.code == 53
        assert refusal.value.effect is effect

    run(story)


def test_a_limit_names_itself_and_the_last_attempt() -> None:
    """[CLI-2] The coordinator never answers: the limit is shorter than request.timeout.ms."""

    async def story(broker: ScriptedBroker, cluster: Cluster) -> None:
        broker.scripts[ApiKey.FIND_COORDINATOR] = here(broker)
        broker.scripts[ApiKey.END_TXN] = lambda _: None
        with pytest.raises(TimedOut) as late:
            await cluster.run_with_retries(
                "EndTxn", "t", ending(cluster), cluster.start_deadline("max.block.ms", 400)
            )
        assert (late.value.limit, late.value.length_ms) == ("max.block.ms", 400)
        assert late.value.effect is Effect.UNKNOWN

    run(story)


def test_a_limit_inside_another_is_the_earlier_of_the_two() -> None:
    async def story(broker: ScriptedBroker, cluster: Cluster) -> None:
        async def inner() -> int:
            return await cluster.run_with_retries(
                "Produce", AT, lambda: cluster.find_leader(AT), cluster.start_deadline("inner", 60_000)
            )

        with pytest.raises(TimedOut) as late:
            await cluster.run_with_retries("Produce", AT, inner, cluster.start_deadline("outer", 40))
        assert late.value.limit == "outer"

    run(story)


def test_what_was_begun_inside_a_limit_outlives_it() -> None:
    """A background task begun by an attempt is not bound by that attempt's limit for the rest of its life."""

    async def story(broker: ScriptedBroker, cluster: Cluster) -> None:
        broker.scripts[ApiKey.HEARTBEAT] = lambda _: HeartbeatResponse()
        over = asyncio.Event()

        async def beat() -> HeartbeatResponse:
            await over.wait()
            request = HeartbeatRequest(group_id="g", generation_id=1, member_id="m")
            return await cluster.send(1, request, HeartbeatResponse)

        async def attempt() -> "asyncio.Task[HeartbeatResponse]":
            await cluster.refresh()
            return asyncio.create_task(beat())

        begun = await cluster.run_with_retries(
            "JoinGroup", "g", attempt, cluster.start_deadline("timeout_ms", 200)
        )
        passed = cluster.start_deadline("passed", 201)
        await until(lambda: not passed.remaining_ms(cluster.now_ms()))
        over.set()
        assert await begun == HeartbeatResponse()

    run(story)


# ------------------------------------------------------------------------- effects and the end


def test_a_request_that_never_left_had_no_effect() -> None:
    """[CLI-6] Five wait for their answers; the sixth waits for them and is told that nothing happened."""

    async def story(broker: ScriptedBroker, cluster: Cluster) -> None:
        broker.scripts[ApiKey.END_TXN] = lambda _: None
        await cluster.start()
        pending = [cluster.submit(1, END) for _ in range(6)]
        await until(lambda: broker.count(ApiKey.END_TXN))
        broker.hang_up()
        found = await asyncio.gather(*pending, return_exceptions=True)
        assert [type(error) for error in found] == [ConnectionLost] * 5 + [Unreachable]
        assert [getattr(error, "effect", None) for error in found] == [Effect.UNKNOWN] * 5 + [Effect.NONE]

    run(story)


def test_a_request_that_times_out_takes_its_connection_with_it() -> None:
    """[CLI-6] The one that timed out and the one behind it; the next request has a new connection."""

    async def story(broker: ScriptedBroker, cluster: Cluster) -> None:
        broker.scripts[ApiKey.END_TXN] = lambda _: None
        await cluster.start()
        first = cluster.submit(1, END, timeout_ms=300)
        second = cluster.submit(1, END)
        found = await asyncio.gather(first, second, return_exceptions=True)
        assert [type(error) for error in found] == [TimedOut, ConnectionLost]
        assert all(getattr(error, "effect", None) is Effect.UNKNOWN for error in found)
        await cluster.refresh()
        assert broker.connections == 2

    run(story)


def test_a_broker_that_throttles_is_left_alone_for_as_long_as_it_says() -> None:
    """KIP-219; what a longer pause holds back was not sent, and says so [CLI-6]."""

    async def story(broker: ScriptedBroker, cluster: Cluster) -> None:
        pauses = [40, 2**31 - 1]
        broker.scripts[ApiKey.HEARTBEAT] = lambda _: HeartbeatResponse(throttle_time_ms=pauses.pop(0))
        await cluster.start()
        beat = HeartbeatRequest(group_id="g", generation_id=1, member_id="m")
        await cluster.send(1, beat, HeartbeatResponse)
        began = cluster.now_ms()
        await cluster.send(1, beat, HeartbeatResponse)
        assert cluster.now_ms() - began >= 38
        with pytest.raises(TimedOut) as late:
            await cluster.send(1, beat, HeartbeatResponse, timeout_ms=20)
        assert late.value.effect is Effect.NONE

    run(story)


def test_an_answer_without_a_waiter_is_dropped_and_the_connection_stays() -> None:
    async def story(broker: ScriptedBroker, cluster: Cluster) -> None:
        gate = asyncio.Event()

        async def answer(_: Seen) -> EndTxnResponse:
            await gate.wait()
            return EndTxnResponse(producer_id=7)

        broker.scripts[ApiKey.END_TXN] = answer
        await cluster.start()
        cancelled = asyncio.ensure_future(cluster.send(1, END, EndTxnResponse))
        await until(lambda: broker.count(ApiKey.END_TXN))
        cancelled.cancel()
        with suppress(asyncio.CancelledError):
            await cancelled
        next_one = asyncio.ensure_future(cluster.send(1, END, EndTxnResponse))
        gate.set()
        assert (await next_one).producer_id == 7
        assert broker.connections == 1

    run(story)


def test_an_unused_connection_is_closed_and_made_again() -> None:
    async def story(broker: ScriptedBroker, cluster: Cluster) -> None:
        await cluster.start()
        await until(lambda: cluster.metrics()["connection-count"] == 0)
        await cluster.refresh()
        assert broker.connections == 2

    run(story, connections_max_idle_ms=20)


def test_close_ends_every_wait_at_once() -> None:
    """Nobody answers: an open request, a lookup, a refresh and a connection attempt are under way."""

    async def story(broker: ScriptedBroker, cluster: Cluster) -> None:
        await cluster.start()
        for key in (ApiKey.END_TXN, ApiKey.FIND_COORDINATOR, ApiKey.METADATA):
            broker.scripts[key] = lambda _: None
        broker.scripts[ApiKey.API_VERSIONS] = lambda _: None
        waiting = [
            asyncio.ensure_future(coroutine)
            for coroutine in (
                cluster.send(1, END, EndTxnResponse),
                cluster.find_coordinator("group", "g"),
                cluster.refresh(["x"]),
                cluster.send(1, END, EndTxnResponse, connection_name="second"),
                cluster.run_with_retries(
                    "EndTxn", "t", ending(cluster), cluster.start_deadline("max.block.ms", 60_000)
                ),
                cluster.wait_for_versions(1),
            )
        ]
        await until(lambda: broker.count(ApiKey.END_TXN))
        await cluster.close()
        found = await asyncio.gather(*waiting, return_exceptions=True)
        assert {type(error) for error in found if isinstance(error, Exception)} == {Closed}
        assert getattr(found[0], "effect", None) is Effect.UNKNOWN
        assert getattr(found[3], "effect", None) is Effect.NONE
        await cluster.close()
        with pytest.raises(Closed):
            await cluster.send(1, END, EndTxnResponse)
        with pytest.raises(Closed):
            await cluster.refresh()

    run(story)
