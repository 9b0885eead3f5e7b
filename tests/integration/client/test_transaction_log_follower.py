"""Following `__transaction_state` on our broker, and on brokers that refuse, move or lie."""

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import pytest
from tests.support.raw_producer import RawProducer, make_topic
from tests.support.scripted_broker import ScriptedBroker, Seen
from tests.support.txn_words import ident

from tallystick.admin.client import Admin
from tallystick.admin.txn.transaction_log import TransactionLogFollower
from tallystick.broker.txn.codec import encode_batch_of
from tallystick.broker.txn.machine.commands import EntryStored
from tallystick.broker.txn.machine.model import IdlePhase, TxnEntry
from tallystick.client.errors import BadAnswer, NotAuthorized
from tallystick.kernel.codes import ErrorCode
from tallystick.kernel.ids import TimestampMs, TransactionalId
from tallystick.protocol.apis import ApiKey
from tallystick.protocol.messages.data.fetch import (
    FetchableTopicResponse,
    FetchRequest,
    FetchResponse,
    PartitionData,
)
from tallystick.protocol.messages.data.list_offsets import (
    ListOffsetsPartitionResponse,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopicResponse,
)
from tallystick.protocol.messages.topics.metadata import MetadataResponse, MetadataResponseTopic
from tallystick.protocol.records import patch_offset_and_epoch
from tallystick.protocol.transaction_history import TransactionTransition, TransitionKind
from tallystick.testing import EmbeddedBroker, FakeClock

pytestmark = pytest.mark.server

K = TransitionKind
WHOLE = [K.INITIALIZED, K.BEGUN, K.COMMITTED, K.COMPLETED]


@pytest.fixture
def broker() -> Iterator[EmbeddedBroker]:
    with EmbeddedBroker() as running:
        make_topic(running, "t")
        yield running


def commit(broker: EmbeddedBroker, name: str) -> None:
    with RawProducer(broker, name) as producer:
        producer.find()
        producer.init()
        assert producer.write("t", 0, "a") == 0
        producer.end()
        producer.completed()


async def poll_all(follower: TransactionLogFollower) -> list[TransactionTransition]:
    told = list(await follower.poll())
    while follower.is_behind:
        told += await follower.poll()
    assert follower.take_failures() == ()
    return told


def test_what_happens_is_told_once_and_as_the_broker_tells_it(broker: EmbeddedBroker) -> None:
    """[HIS-1] A cluster without a transaction log has no transitions, until it has one."""

    async def main() -> None:
        async with TransactionLogFollower({"bootstrap.servers": broker.bootstrap_servers}) as follower:
            assert await poll_all(follower) == []
            await asyncio.to_thread(commit, broker, "one")
            told = await poll_all(follower)
            assert [each.kind for each in told] == WHOLE
            assert await poll_all(follower) == []
            with Admin({"bootstrap.servers": broker.bootstrap_servers}) as admin:
                kept = admin.describe_transactions(["one"], history=True).one("one").history
            assert kept is not None
            assert [(each.kind, each.at_ms, each.producer, each.state) for each in told] == [
                (each.kind, each.at_ms, each.producer, each.state) for each in kept
            ]
            await asyncio.to_thread(commit, broker, "two")
            assert [(each.transactional_id, each.kind) for each in await poll_all(follower)] == [
                ("two", kind) for kind in WHOLE
            ]

    asyncio.run(main())


def test_the_first_poll_goes_back_as_far_as_it_may(broker: EmbeddedBroker) -> None:
    commit(broker, "one")

    async def follow(**how: Any) -> list[TransactionTransition]:
        config = {"bootstrap.servers": broker.bootstrap_servers}
        async with TransactionLogFollower(config, **how) as follower:
            return await poll_all(follower)

    whole = asyncio.run(follow())
    assert [each.kind for each in whole] == WHOLE
    assert asyncio.run(follow(backlog_max=0)) == []
    partitions = 50
    assert [each.kind for each in asyncio.run(follow(backlog_max=2 * partitions))] == WHOLE[2:]
    decided_ms = whole[2].at_ms
    since = asyncio.run(follow(since_ms=decided_ms))
    assert [each.kind for each in since] == [each.kind for each in whole if each.at_ms >= decided_ms]
    assert asyncio.run(follow(since_ms=whole[-1].at_ms + 60_000)) == []


# ----------------------------------------------------------------- brokers that are not ours

STATE = "__transaction_state"


def record(offset: int, at_ms: int) -> bytes:
    """Return a batch in which `id-OFFSET` is initialized."""
    entry = TxnEntry(
        transactional_id=TransactionalId(f"id-{offset}"),
        phase=IdlePhase(),
        client=ident(offset, 0),
        previous_identity=None,
        timeout_ms=1_000,
        transaction_version=2,
        updated_ms=TimestampMs(at_ms),
    )
    batch = bytearray(encode_batch_of((EntryStored(entry=entry),), entry.updated_ms, 2))
    patch_offset_and_epoch(batch, 0, offset, 0)
    return bytes(batch)


class Log:
    """A transaction log of one partition, of which each Fetch returns at most two batches."""

    def __init__(self, broker: ScriptedBroker, end: int) -> None:
        self.broker, self.end, self.first = broker, end, 0
        self.error = ErrorCode.NONE
        self.garbage = b""
        self.at_ms = 1
        broker.scripts = {
            ApiKey.METADATA: self.metadata,
            ApiKey.LIST_OFFSETS: self.offsets,
            ApiKey.FETCH: self.fetch,
        }
        self.is_hidden = False

    def metadata(self, _: Seen) -> MetadataResponse:
        if not self.is_hidden:
            return self.broker.metadata(**{STATE: 1})
        refused = MetadataResponseTopic(error_code=ErrorCode.TOPIC_AUTHORIZATION_FAILED, name=STATE)
        plain = self.broker.metadata()
        return MetadataResponse(brokers=plain.brokers, cluster_id=plain.cluster_id, topics=(refused,))

    def offsets(self, seen: Seen) -> ListOffsetsResponse:
        assert isinstance(seen.request, ListOffsetsRequest)
        at = seen.request.topics[0].partitions[0].timestamp
        offset = {-1: self.end, -2: self.first}.get(at, at)
        part = ListOffsetsPartitionResponse(partition_index=0, offset=offset, timestamp=0)
        return ListOffsetsResponse(topics=(ListOffsetsTopicResponse(name=STATE, partitions=(part,)),))

    def fetch(self, seen: Seen) -> FetchResponse:
        assert isinstance(seen.request, FetchRequest)
        at = seen.request.topics[0].partitions[0].fetch_offset
        error = self.error
        if not self.first <= at <= self.end:
            error = ErrorCode.OFFSET_OUT_OF_RANGE
        records = b"".join(record(offset, self.at_ms) for offset in range(at, min(at + 2, self.end)))
        data = PartitionData(
            partition_index=0,
            error_code=error,
            high_watermark=-1 if error else self.end,
            records=None if error else self.garbage or records,
        )
        return FetchResponse(responses=(FetchableTopicResponse(topic=STATE, partitions=(data,)),))


def on(
    check: Callable[[TransactionLogFollower, Log, FakeClock], Awaitable[None]], end: int = 5, **how: int
) -> None:
    async def main() -> None:
        async with ScriptedBroker() as broker:
            log, clock = Log(broker, end), FakeClock()
            config = {"bootstrap.servers": broker.address, "retry.backoff.ms": 1, "retry.backoff.max.ms": 1}
            async with TransactionLogFollower(config, clock=clock, **how) as follower:
                await check(follower, log, clock)

    asyncio.run(main())


def ids(told: tuple[TransactionTransition, ...] | list[TransactionTransition]) -> list[str]:
    return [each.transactional_id for each in told]


def test_one_poll_reads_a_bounded_number_of_records() -> None:
    async def check(follower: TransactionLogFollower, log: Log, _: FakeClock) -> None:
        first = await follower.poll()
        assert ids(first) == [f"id-{offset}" for offset in range(16)]
        assert follower.is_behind
        assert ids(await poll_all(follower)) == [f"id-{offset}" for offset in range(16, 40)]
        assert not follower.is_behind

    on(check, end=40)


def test_missing_rights_are_a_value_reported_once_and_tried_again_later() -> None:
    async def check(follower: TransactionLogFollower, log: Log, clock: FakeClock) -> None:
        log.is_hidden = True
        assert await follower.poll() == ()
        (failure,) = follower.take_failures()
        assert isinstance(failure, NotAuthorized)
        asked = len(log.broker.seen)
        assert await follower.poll() == ()
        assert len(log.broker.seen) == asked, "denied requests are in the brokers' logs"
        clock.advance(60_000)
        assert await follower.poll() == ()
        assert len(log.broker.seen) > asked
        assert follower.take_failures() == ()
        log.is_hidden = False
        clock.advance(60_000)
        assert ids(await poll_all(follower)) == [f"id-{offset}" for offset in range(5)]

    on(check)


def test_the_right_to_read_alone_may_be_missing() -> None:
    async def check(follower: TransactionLogFollower, log: Log, clock: FakeClock) -> None:
        log.error = ErrorCode.TOPIC_AUTHORIZATION_FAILED
        assert await follower.poll() == ()
        assert [type(each) for each in follower.take_failures()] == [NotAuthorized]
        log.error = ErrorCode.NONE
        clock.advance(60_000)
        assert len(await poll_all(follower)) == 5
        log.error = ErrorCode.TOPIC_AUTHORIZATION_FAILED
        await follower.poll()
        assert [type(each) for each in follower.take_failures()] == [NotAuthorized], "a new one is news"

    on(check)


def test_a_leader_that_moved_is_looked_up_and_is_no_failure() -> None:
    async def check(follower: TransactionLogFollower, log: Log, _: FakeClock) -> None:
        log.error = ErrorCode.NOT_LEADER_OR_FOLLOWER
        assert await follower.poll() == ()
        log.error, before = ErrorCode.NONE, log.broker.count(ApiKey.METADATA)
        assert len(await poll_all(follower)) == 5
        assert log.broker.count(ApiKey.METADATA) > before

    on(check)


def test_a_log_that_was_made_anew_is_read_anew() -> None:
    async def check(follower: TransactionLogFollower, log: Log, _: FakeClock) -> None:
        assert len(await poll_all(follower)) == 5
        log.end = 2  # an unclean election has taken the others back
        await follower.poll()
        assert ids(await poll_all(follower)) == [], "these were told"
        log.end, log.at_ms = 3, 2
        assert ids(await poll_all(follower)) == ["id-2"]
        log.end, log.at_ms = 1, 3  # the topic was made anew
        await follower.poll()
        assert ids(await poll_all(follower)) == ["id-0"]

    on(check)


def test_garbage_is_reported_and_does_not_end_the_following() -> None:
    async def check(follower: TransactionLogFollower, log: Log, _: FakeClock) -> None:
        log.garbage = bytes(200)
        assert await follower.poll() == ()
        assert [type(each) for each in follower.take_failures()] == [BadAnswer]
        assert not follower.is_behind
        log.garbage = b""
        assert len(await poll_all(follower)) == 5

    on(check)
