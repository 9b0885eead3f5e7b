"""Brokers that are down, and brokers that do not know our guard: what a Kafka of several brokers does."""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

import pytest
from tests.support.scripted_broker import HangUp, ScriptedBroker, Seen

from tallystick.admin.aio import Admin
from tallystick.admin.configs import ConfigResource, ResourceType
from tallystick.admin.errors import BrokerDown, NothingOpen
from tallystick.admin.txn.hanging import HangingFinding, HangingVerdict
from tallystick.admin.txn.transactions import AbortSpec
from tallystick.client.errors import NotSupported
from tallystick.kernel.codes import ErrorCode
from tallystick.kernel.ids import INT32_MAX, TopicPartition
from tallystick.kernel.value import replace
from tallystick.protocol.apis import ApiKey
from tallystick.protocol.messages.cluster.describe_configs import (
    DescribeConfigsResponse,
    DescribeConfigsResult,
)
from tallystick.protocol.messages.cluster.find_coordinator import Coordinator, FindCoordinatorResponse
from tallystick.protocol.messages.topics.metadata import MetadataResponse, MetadataResponseBroker
from tallystick.protocol.messages.txn import describe_producers as dp
from tallystick.protocol.messages.txn.list_transactions import ListTransactionsResponse, TransactionState
from tallystick.protocol.messages.txn.write_txn_markers import (
    WritableTxnMarkerPartitionResult,
    WritableTxnMarkerResult,
    WritableTxnMarkerTopicResult,
    WriteTxnMarkersRequest,
    WriteTxnMarkersResponse,
)

pytestmark = pytest.mark.server

AT = TopicPartition("t", 0)
DEAD_PORT = 1


@dataclass
class Partition:
    """`t-0` of a broker that skips our tag. Producer 7 hangs at offset `start`, until a marker comes."""

    start: int = 5
    markers: list[tuple[int, int]] = field(default_factory=list)  # partition, coordinator epoch
    loses_answers: int = 0
    coordinator_epoch: int = 3

    def producers(self, _: Seen) -> dp.DescribeProducersResponse:
        state = dp.ProducerState(
            producer_id=7,
            producer_epoch=0,
            coordinator_epoch=self.coordinator_epoch,
            current_txn_start_offset=self.start,
        )
        part = dp.PartitionResponse(partition_index=0, active_producers=(state,))
        return dp.DescribeProducersResponse(topics=(dp.TopicResponse(name="t", partitions=(part,)),))

    def mark(self, seen: Seen) -> WriteTxnMarkersResponse:
        assert isinstance(seen.request, WriteTxnMarkersRequest)
        (marker,) = seen.request.markers
        (topic,) = marker.topics
        (index,) = topic.partition_indexes
        self.markers.append((index, marker.coordinator_epoch))
        code = ErrorCode.NONE if index == 0 else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        if index == 0:
            self.start = -1
            if self.loses_answers:
                self.loses_answers -= 1
                raise HangUp
        result = WritableTxnMarkerPartitionResult(partition_index=index, error_code=code)
        topics = (WritableTxnMarkerTopicResult(name="t", partitions=(result,)),)
        return WriteTxnMarkersResponse(markers=(WritableTxnMarkerResult(producer_id=7, topics=topics),))


def on(
    partition: Partition,
    check: Callable[[Admin, ScriptedBroker], Awaitable[None]],
    *,
    dead: bool = False,
    timeout_ms: int = 60_000,
) -> None:
    async def main() -> None:
        broker = ScriptedBroker()
        broker.scripts = {
            ApiKey.METADATA: lambda _: metadata(broker, dead),
            ApiKey.DESCRIBE_PRODUCERS: partition.producers,
            ApiKey.LIST_TRANSACTIONS: lambda _: ListTransactionsResponse(),
            ApiKey.WRITE_TXN_MARKERS: partition.mark,
        }
        async with broker:
            config = {
                "bootstrap.servers": broker.address,
                "reconnect.backoff.ms": 1,
                "reconnect.backoff.max.ms": 1,
                "retry.backoff.ms": 1,
                "request.timeout.ms": timeout_ms,
                "default.api.timeout.ms": timeout_ms,
            }
            async with Admin(config) as admin:
                await check(admin, broker)

    asyncio.run(main())


def metadata(broker: ScriptedBroker, dead: bool) -> MetadataResponse:
    """With `dead` the cluster lists a second broker, to which nobody can connect."""
    answer = broker.metadata(t=1)
    if not dead:
        return answer
    gone = MetadataResponseBroker(node_id=2, host="127.0.0.1", port=DEAD_PORT)
    return MetadataResponse(
        brokers=(*answer.brokers, gone),
        cluster_id=answer.cluster_id,
        controller_id=1,
        topics=answer.topics,
    )


def test_a_broker_that_is_down_is_reported_and_makes_nothing_hang() -> None:
    """[ADM-2] What it coordinates is unknown: a transaction nobody else knows may be its own."""

    async def check(admin: Admin, _: ScriptedBroker) -> None:
        listed = await admin.list_transactions()
        assert set(listed.found) == {1}
        assert isinstance(listed.failures[2], BrokerDown)
        with pytest.raises(BrokerDown, match="broker 2"):
            listed.all()
        report = await admin.find_hanging_transactions(topic="t", limit_ms=0)
        assert not report.complete
        assert set(report.failures) == {"broker 2"}
        (case,) = report.cases
        assert (case.finding, case.verdict) == (HangingFinding.MAYBE_UNLISTED, HangingVerdict.UNKNOWN)

    on(Partition(), check, dead=True)


def test_a_partition_without_a_leader_does_not_hide_what_hangs_elsewhere() -> None:
    """[ADM-2] Nobody can be asked about t-1; t-0 is judged all the same, and t-1 reported."""

    async def check(admin: Admin, broker: ScriptedBroker) -> None:
        whole = broker.metadata(t=1)
        (topic,) = whole.topics
        (first,) = topic.partitions
        lost = replace(first, partition_index=1, error_code=ErrorCode.LEADER_NOT_AVAILABLE, leader_id=-1)
        broker.scripts[ApiKey.METADATA] = lambda _: replace(
            whole, topics=(replace(topic, partitions=(first, lost)),)
        )
        report = await admin.find_hanging_transactions(topic="t", limit_ms=0)
        assert [case.transaction.partition for case in report.hanging] == [AT]
        assert set(report.failures) == {"t-1"}
        assert not report.complete

    on(Partition(), check, timeout_ms=2_000)


def test_an_id_whose_coordinator_cannot_be_asked_is_reported() -> None:
    """[ADM-2] It is listed as open, and nobody can say in which partitions: it may be this transaction."""

    async def check(admin: Admin, broker: ScriptedBroker) -> None:
        state = TransactionState(transactional_id="x", producer_id=7, transaction_state="Ongoing")
        broker.scripts |= {
            ApiKey.LIST_TRANSACTIONS: lambda _: ListTransactionsResponse(transaction_states=(state,)),
            ApiKey.FIND_COORDINATOR: lambda _: FindCoordinatorResponse(
                coordinators=(
                    Coordinator(
                        key="x", node_id=-1, host="", port=-1, error_code=ErrorCode.COORDINATOR_NOT_AVAILABLE
                    ),
                )
            ),
        }
        report = await admin.find_hanging_transactions(topic="t", limit_ms=0)
        (case,) = report.cases
        assert (case.finding, case.verdict) == (HangingFinding.NOT_DESCRIBED, HangingVerdict.UNKNOWN)
        assert set(report.failures) == {"'x'"}
        assert not report.complete

    on(Partition(), check, timeout_ms=2_000)


def test_settings_of_a_broker_that_came_back_are_asked_of_it() -> None:
    """It was down when the brokers were listed last; that it is not in that list is no reason to refuse."""

    async def check(admin: Admin, broker: ScriptedBroker) -> None:
        async with ScriptedBroker(node_id=2) as second:
            resource = ConfigResource(ResourceType.BROKER, "2")
            told = DescribeConfigsResult(resource_type=ResourceType.BROKER, resource_name="2")
            second.scripts[ApiKey.DESCRIBE_CONFIGS] = lambda _: DescribeConfigsResponse(results=(told,))
            await admin.describe_cluster()
            for either in (broker, second):
                either.scripts[ApiKey.METADATA] = lambda _: broker.metadata(second)
            assert (await admin.describe_configs([resource])).one(resource) == {}
            nobody = ConfigResource(ResourceType.BROKER, "3")
            with pytest.raises(NotSupported, match="lists 1, 2"):
                (await admin.describe_configs([nobody])).one(nobody)

    on(Partition(), check)


def test_without_a_check_of_the_start_offset_the_partition_is_read_immediately_before() -> None:
    """[ADM-3] The first marker is the question who checks; it can be written nowhere."""

    async def check(admin: Admin, broker: ScriptedBroker) -> None:
        (case,) = (await admin.find_hanging_transactions(topic="t", limit_ms=0)).hanging
        assert case.finding is HangingFinding.UNKNOWN_PRODUCER_ID
        plan = await admin.plan_abort(AbortSpec(partition=AT, start_offset=5))
        assert not plan.guarded
        assert partition.markers == [(INT32_MAX, -1)]
        assert await admin.abort_transaction(plan)
        assert partition.markers[1:] == [(0, 3)], "the coordinator's epoch, as the partition knows it"
        assert [seen.key for seen in broker.seen[-2:]] == [
            ApiKey.DESCRIBE_PRODUCERS,
            ApiKey.WRITE_TXN_MARKERS,
        ]

    partition = Partition()
    on(partition, check)


def test_what_ended_between_plan_and_abort_is_not_ended_again() -> None:
    """[ADM-3]"""

    async def check(admin: Admin, _: ScriptedBroker) -> None:
        plan = await admin.plan_abort(AbortSpec(partition=AT, start_offset=5))
        partition.start = 9
        with pytest.raises(NothingOpen, match="offset 9"):
            await admin.abort_transaction(plan)
        assert [index for index, _ in partition.markers] == [INT32_MAX]

    partition = Partition()
    on(partition, check)


def test_an_abort_whose_answer_was_lost_is_looked_up_and_not_repeated(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """[ADM-3] The marker that was written may have been followed by another transaction."""

    async def check(admin: Admin, _: ScriptedBroker) -> None:
        plan = await admin.plan_abort(AbortSpec(partition=AT, start_offset=5))
        with caplog.at_level(logging.WARNING, "tallystick.audit"):
            assert not await admin.abort_transaction(plan)
        assert [index for index, _ in partition.markers] == [INT32_MAX, 0]
        assert "no longer open" in caplog.messages[-1]

    partition = Partition(loses_answers=1)
    on(partition, check)


def test_a_partition_without_a_marker_gives_zero_for_its_coordinators_epoch() -> None:
    async def check(admin: Admin, _: ScriptedBroker) -> None:
        assert await admin.abort_transaction(AbortSpec(partition=AT, start_offset=5))
        assert partition.markers[1:] == [(0, 0)]

    partition = Partition(coordinator_epoch=-1)
    on(partition, check)
