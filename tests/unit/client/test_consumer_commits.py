"""What a consumer commits, and under which generation, against a coordinator that answers as a test says."""

import asyncio

import pytest
from tests.support.scripted_broker import ScriptedBroker, Seen
from tests.support.scripted_group import ScriptedGroup

from tallystick.client.consumer.engine import ConsumerEngine
from tallystick.client.errors import CommitRefused
from tallystick.client.settings.config import ConsumerConfig
from tallystick.kernel.codes import ErrorCode
from tallystick.kernel.ids import TopicPartition
from tallystick.protocol.apis import ApiKey
from tallystick.protocol.messages.groups.membership import LeaveGroupResponse
from tallystick.protocol.messages.groups.offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchResponse,
    OffsetFetchResponsePartition,
    OffsetFetchResponseTopic,
)

T0 = TopicPartition("t", 0)
HOUR_MS = 3_600_000


def consumer_of(broker: ScriptedBroker, **settings: object) -> ConsumerEngine:
    named = {name.replace("_", "."): value for name, value in settings.items()}
    base = {
        "bootstrap.servers": broker.address,
        "group.id": "g",
        "auto.offset.reset": "earliest",
        "fetch.max.wait.ms": 1,
        "retry.backoff.ms": 1,
        "heartbeat.interval.ms": 1000,
    }
    return ConsumerEngine(ConsumerConfig.parse(base | named))


async def read_in_generation(consumer: ConsumerEngine, group: ScriptedGroup, generation: int) -> None:
    """Poll until the member has its partition in this generation."""
    async with asyncio.timeout(30):
        while group.generation < generation or T0 not in consumer.assignment:
            await consumer.poll(1)
        assert await consumer.positions.position(T0) == 0


def watch_leave(broker: ScriptedBroker) -> asyncio.Event:
    """Return an event that is set when the broker is told that the group is left."""
    left = asyncio.Event()

    def answer(_: Seen) -> LeaveGroupResponse:
        left.set()
        return LeaveGroupResponse()

    broker.scripts[ApiKey.LEAVE_GROUP] = answer
    return left


def test_positions_are_committed_under_the_generation_that_read_them() -> None:
    """One commit is tried until the member joined anew, and refused then (22); another waits behind it."""

    async def main() -> None:
        async with ScriptedBroker() as broker:
            group = ScriptedGroup(broker)

            async def loading_then_refused() -> int:
                return 14 if group.generation == 1 else 22

            group.answers = [loading_then_refused] * 1000
            consumer = consumer_of(broker, enable_auto_commit=False)
            consumer.subscribe(["t"])
            await read_in_generation(consumer, group, 1)
            tasks = consumer.commit_soon({T0: 5}), consumer.commit_soon({T0: 7})
            consumer.subscribe(["t", "u"])
            await read_in_generation(consumer, group, 2)
            refusals = await asyncio.gather(*tasks, return_exceptions=True)
            assert [type(refusal) for refusal in refusals] == [CommitRefused, CommitRefused]
            await consumer.close()
            assert {commit.generation_id_or_member_epoch for commit in group.commits} == {1}

    asyncio.run(main())


@pytest.mark.parametrize("silent", [False, True])
def test_close_leaves_the_group_though_the_last_commit_does_not_succeed(silent: bool) -> None:
    """The commit of a topic that is gone (3), or one without an answer: the group hears that it is left."""

    async def main() -> None:
        async with ScriptedBroker() as broker:
            group = ScriptedGroup(broker)

            async def answer() -> int | None:
                return None if silent else 3

            group.answers = [answer] * 100_000
            consumer = consumer_of(
                broker, auto_commit_interval_ms=HOUR_MS, session_timeout_ms=600, heartbeat_interval_ms=100
            )
            consumer.subscribe(["t"])
            await read_in_generation(consumer, group, 1)
            await consumer.close(timeout_ms=20_000)
            assert group.commits
            assert broker.count(ApiKey.LEAVE_GROUP) == 1

    asyncio.run(main())


def park(broker: ScriptedBroker, key: ApiKey) -> tuple[asyncio.Event, asyncio.Event]:
    """Hold back the answers to such requests. Return events: one was received; they may be answered."""
    received, release, answer = asyncio.Event(), asyncio.Event(), broker.scripts[key]

    async def hold_back(seen: Seen) -> object:
        received.set()
        await release.wait()
        return answer(seen)

    broker.scripts[key] = hold_back
    return received, release


def test_a_commit_does_not_wait_for_the_rebalance_that_its_member_has_joined() -> None:
    """Until all have joined, the coordinator accepts it; behind JoinGroup its time limit would end both."""

    async def main() -> None:
        async with ScriptedBroker() as broker, asyncio.timeout(60):
            group = ScriptedGroup(broker)
            cooperative = {"partition_assignment_strategy": "cooperative-sticky"}
            consumer = consumer_of(broker, enable_auto_commit=False, **cooperative)
            consumer.subscribe(["t"])
            await read_in_generation(consumer, group, 1)
            received, release = park(broker, ApiKey.JOIN_GROUP)
            consumer.subscribe(["t", "u"])
            while not received.is_set():
                await consumer.poll(1)
            assert consumer.assignment == {T0}
            joins, connections = broker.count(ApiKey.JOIN_GROUP), broker.connections
            async with asyncio.timeout(20):
                await consumer.commit({T0: 5})
            assert group.commits[0].generation_id_or_member_epoch == 1
            assert broker.connections <= connections + 1
            release.set()
            await read_in_generation(consumer, group, 2)
            assert broker.count(ApiKey.JOIN_GROUP) == joins
            await consumer.close()

    asyncio.run(main())


def test_a_commit_waits_for_the_assignment_of_the_generation_that_it_is_made_in() -> None:
    """Before, the coordinator would refuse it: REBALANCE_IN_PROGRESS."""

    async def main() -> None:
        async with ScriptedBroker() as broker, asyncio.timeout(60):
            group = ScriptedGroup(broker)
            cooperative = {"partition_assignment_strategy": "cooperative-sticky"}
            consumer = consumer_of(broker, enable_auto_commit=False, **cooperative)
            consumer.subscribe(["t"])
            await read_in_generation(consumer, group, 1)
            received, release = park(broker, ApiKey.SYNC_GROUP)

            async def answer() -> int:
                return 0 if release.is_set() else ErrorCode.REBALANCE_IN_PROGRESS

            group.answers = [answer]
            consumer.subscribe(["t", "u"])
            while not received.is_set():
                await consumer.poll(1)
            task = consumer.commit_soon({T0: 5})
            for _ in range(10):
                await consumer.poll(1)
            release.set()
            await task
            assert group.commits[0].generation_id_or_member_epoch == 2
            await consumer.close()

    asyncio.run(main())


@pytest.mark.parametrize("timeout_ms", [30_000, 0])
@pytest.mark.parametrize("starts", [0, 2], ids=["at once", "under way"])
def test_close_finishes_the_commits_that_were_begun(timeout_ms: int, starts: int) -> None:
    """Before the group is left; and with no time they are sent, without waiting for an answer."""

    async def main() -> None:
        async with ScriptedBroker() as broker:
            group = ScriptedGroup(broker)

            async def answer() -> int:
                await asyncio.sleep(0)
                return 0

            group.answers = [answer] * 10
            left = watch_leave(broker)
            consumer = consumer_of(broker, enable_auto_commit=False)
            consumer.subscribe(["t"])
            await read_in_generation(consumer, group, 1)
            tasks = consumer.commit_soon({T0: 5}), consumer.commit_soon({T0: 7})
            for _ in range(starts):
                await asyncio.sleep(0)
            await consumer.close(timeout_ms)
            if timeout_ms:
                assert await asyncio.gather(*tasks) == [None, None]
            async with asyncio.timeout(30):
                await left.wait()
            order = [
                seen.key for seen in broker.seen if seen.key in (ApiKey.OFFSET_COMMIT, ApiKey.LEAVE_GROUP)
            ]
            assert order == [*order[:-1], ApiKey.LEAVE_GROUP]
            assert group.commits[-1].topics[0].partitions[0].committed_offset == 7

    asyncio.run(main())


def test_close_leaves_the_group_though_a_commit_that_was_begun_has_no_answer() -> None:
    """Half of the time is for the commits."""

    async def main() -> None:
        async with ScriptedBroker() as broker:
            group = ScriptedGroup(broker)

            received = asyncio.Event()

            async def answer() -> None:
                received.set()

            group.answers = [answer] * 100_000
            left = watch_leave(broker)
            consumer = consumer_of(broker, enable_auto_commit=False)
            consumer.subscribe(["t"])
            await read_in_generation(consumer, group, 1)
            task = consumer.commit_soon({T0: 5})
            async with asyncio.timeout(30):
                await received.wait()
                await consumer.close(timeout_ms=400)
                await left.wait()
            assert (await asyncio.gather(task, return_exceptions=True))[0] is not None

    asyncio.run(main())


@pytest.mark.parametrize("isolation", ["read_committed", "read_uncommitted"])
def test_a_reader_of_committed_records_waits_for_an_offset_that_is_stable(
    isolation: str,
) -> None:
    """[CLI-36] KIP-447, `RequireStable`: on UNSTABLE_OFFSET_COMMIT the request is repeated."""
    requests: list[bool] = []

    def answer(seen: Seen) -> OffsetFetchResponse:
        assert isinstance(seen.request, OffsetFetchRequest)
        requests.append(seen.request.require_stable)
        is_held_back = seen.request.require_stable and len(requests) < 3
        partition = OffsetFetchResponsePartition(
            partition_index=0,
            committed_offset=-1 if is_held_back else 2,
            metadata="",
            error_code=ErrorCode.UNSTABLE_OFFSET_COMMIT if is_held_back else ErrorCode.NONE,
        )
        return OffsetFetchResponse(topics=(OffsetFetchResponseTopic(name="t", partitions=(partition,)),))

    async def main() -> None:
        async with ScriptedBroker() as broker:
            ScriptedGroup(broker)
            broker.scripts[ApiKey.OFFSET_FETCH] = answer
            consumer = consumer_of(broker, isolation_level=isolation, enable_auto_commit=False)
            committed = await consumer.committed([T0])
            assert committed[T0] is not None
            assert committed[T0].offset == 2
            await consumer.close()
        assert requests == ([True] * 3 if isolation == "read_committed" else [False])

    asyncio.run(main())
