"""All open transactions in one snapshot, judged by the code that finds hanging ones."""

import asyncio
from collections.abc import Iterator, Sequence

import pytest
from tests.support.hanging import hang
from tests.support.raw_producer import RawProducer, make_topic
from tests.support.scripted_broker import ScriptedBroker, Seen

from tallystick.admin.aio import Admin as AsyncAdmin
from tallystick.admin.client import Admin
from tallystick.admin.txn.hanging import HangingFinding, HangingVerdict
from tallystick.client.errors import IdExpired
from tallystick.kernel.codes import ErrorCode
from tallystick.kernel.ids import TopicPartition
from tallystick.kernel.value import replace
from tallystick.protocol.apis import ApiKey
from tallystick.protocol.messages.cluster.find_coordinator import (
    Coordinator,
    FindCoordinatorRequest,
    FindCoordinatorResponse,
)
from tallystick.protocol.messages.txn import describe_producers as dp
from tallystick.protocol.messages.txn import describe_transactions as dt
from tallystick.protocol.messages.txn.list_transactions import (
    ListTransactionsRequest,
    ListTransactionsResponse,
    TransactionState,
)
from tallystick.protocol.transaction_history import TransitionKind
from tallystick.testing import EmbeddedBroker

pytestmark = pytest.mark.server


@pytest.fixture
def running() -> Iterator[EmbeddedBroker]:
    """It takes the first batch of a transaction without asking the coordinator, as old brokers do."""
    with EmbeddedBroker(transaction_partition_verification_enable=False) as broker:
        make_topic(broker, "t", 3)
        with RawProducer(broker, "first") as first:
            first.find()
        yield broker


def test_all_that_is_open_is_judged_in_one_snapshot(running: EmbeddedBroker) -> None:
    """[ADM-1] Young ones too; and ids that have begun and written nothing, which no partition knows."""
    open_at, prepared_at, hanging_at = (TopicPartition("t", index) for index in range(3))
    with (
        RawProducer(running, "open") as plain,
        RawProducer(running, "prepared") as prepared,
        RawProducer(running, "without-data") as silent,
        RawProducer(running, "idle") as idle,
        Admin({"bootstrap.servers": running.bootstrap_servers}) as admin,
    ):
        idle.init()
        plain.init()
        silent.init()
        prepared.init(two_phase=True)
        assert plain.write("t", 0, "a") == prepared.write("t", 1, "b") == 0
        assert silent.add("t", 0) == {0}
        hang(running.bootstrap_servers, hanging_at, 888_001)
        report = admin.describe_open_transactions()
        assert report.complete
        by_partition = {case.transaction.partition: case for case in report.cases}
        assert {at: case.verdict for at, case in by_partition.items()} == {
            open_at: HangingVerdict.OPEN,
            prepared_at: HangingVerdict.IN_DOUBT,
            hanging_at: HangingVerdict.HANGING,
        }
        assert by_partition[hanging_at].finding is HangingFinding.UNKNOWN_PRODUCER_ID
        assert set(report.descriptions) == {"open", "prepared", "without-data"}
        assert report.ids_without_data == ("without-data",)
        assert by_partition[open_at].description == report.descriptions["open"]
        slow = {c.transaction.partition: c for c in admin.describe_open_transactions(limit_ms=-1).cases}
        assert slow[open_at].verdict is HangingVerdict.SLOW


def test_a_producer_whose_id_has_nothing_open_is_asked_for_by_name(running: EmbeddedBroker) -> None:
    """[ADM-1] No list of open ids has it; that its coordinator has nothing open is the proof."""
    with (
        RawProducer(running, "ended") as producer,
        Admin({"bootstrap.servers": running.bootstrap_servers}) as admin,
    ):
        producer.init()
        hang(running.bootstrap_servers, TopicPartition("t", 0), *producer.pair)
        report = admin.describe_open_transactions()
        (case,) = report.cases
        assert (case.finding, case.verdict) == (HangingFinding.NOT_INCLUDED, HangingVerdict.HANGING)
        assert case.description is not None
        assert case.description.transactional_id == "ended"
        assert report.descriptions == {}


# -------------------------------------------------------------- how many requests it takes

NAMES = [f"id-{number}" for number in range(1_200)]


class Many:
    """A broker with an open transaction of each of NAMES in partition t-0."""

    def __init__(self, broker: ScriptedBroker) -> None:
        self.broker = broker
        self.moves: set[str] = set()  # answered NOT_COORDINATOR once
        broker.scripts = {
            ApiKey.METADATA: lambda _: broker.metadata(t=1, __transaction_state=1),
            ApiKey.FIND_COORDINATOR: self.find,
            ApiKey.LIST_TRANSACTIONS: self.list_ids,
            ApiKey.DESCRIBE_TRANSACTIONS: self.describe,
            ApiKey.DESCRIBE_PRODUCERS: self.producers,
        }

    def find(self, seen: Seen) -> FindCoordinatorResponse:
        assert isinstance(seen.request, FindCoordinatorRequest)
        if seen.version < 4:
            return FindCoordinatorResponse(node_id=1, host="127.0.0.1", port=self.broker.port)
        return FindCoordinatorResponse(
            coordinators=tuple(
                Coordinator(key=key, node_id=1, host="127.0.0.1", port=self.broker.port)
                for key in seen.request.coordinator_keys
            )
        )

    def list_ids(self, seen: Seen) -> ListTransactionsResponse:
        assert isinstance(seen.request, ListTransactionsRequest)
        assert seen.request.state_filters == ("Ongoing", "PrepareCommit", "PrepareAbort")
        return ListTransactionsResponse(
            transaction_states=tuple(
                TransactionState(transactional_id=name, producer_id=number, transaction_state="Ongoing")
                for number, name in enumerate(NAMES)
            )
        )

    def describe(self, seen: Seen) -> dt.DescribeTransactionsResponse:
        assert isinstance(seen.request, dt.DescribeTransactionsRequest)
        states = tuple(map(self.describe_one, seen.request.transactional_ids))
        self.moves.clear()
        return dt.DescribeTransactionsResponse(transaction_states=states)

    def describe_one(self, name: str) -> dt.TransactionState:
        code = ErrorCode.NONE if name in NAMES else ErrorCode.TRANSACTIONAL_ID_NOT_FOUND
        return dt.TransactionState(
            error_code=ErrorCode.NOT_COORDINATOR if name in self.moves else code,
            transactional_id=name,
            transaction_state="Ongoing",
            transaction_timeout_ms=60_000,
            transaction_start_time_ms=1,
            producer_id=int(name.removeprefix("id-")),
            producer_epoch=0,
            topics=(dt.TopicData(topic="t", partitions=(0,)),),
        )

    def producers(self, _: Seen) -> dp.DescribeProducersResponse:
        states = tuple(
            dp.ProducerState(
                producer_id=number, producer_epoch=0, coordinator_epoch=0, current_txn_start_offset=number
            )
            for number in range(len(NAMES))
        )
        part = dp.PartitionResponse(partition_index=0, active_producers=states)
        state = dp.PartitionResponse(partition_index=0)
        return dp.DescribeProducersResponse(
            topics=(
                dp.TopicResponse(name="t", partitions=(part,)),
                dp.TopicResponse(name="__transaction_state", partitions=(state,)),
            )
        )

    def count(self) -> Sequence[int]:
        """Return the numbers of FindCoordinator, List-, DescribeTransactions and DescribeProducers."""
        keys = (
            ApiKey.FIND_COORDINATOR,
            ApiKey.LIST_TRANSACTIONS,
            ApiKey.DESCRIBE_TRANSACTIONS,
            ApiKey.DESCRIBE_PRODUCERS,
        )
        return [self.broker.count(key) for key in keys]


def config(broker: ScriptedBroker) -> dict[str, object]:
    return {"bootstrap.servers": broker.address, "retry.backoff.ms": 1, "retry.backoff.max.ms": 1}


def test_many_open_transactions_take_few_requests() -> None:
    async def main() -> None:
        async with ScriptedBroker() as broker, AsyncAdmin(config(broker)) as admin:
            many = Many(broker)
            report = await admin.describe_open_transactions()
            assert report.complete
            assert {case.verdict for case in report.cases} == {HangingVerdict.SLOW}
            assert len(report.cases) == len(report.descriptions) == len(NAMES)
            assert many.count() == [3, 1, 3, 1]
            await admin.describe_open_transactions()
            assert many.count() == [3, 2, 6, 2], "the coordinators are known from before"

    asyncio.run(main())


def test_one_id_that_moves_or_is_unknown_costs_the_others_nothing() -> None:
    async def main() -> None:
        async with ScriptedBroker() as broker, AsyncAdmin(config(broker)) as admin:
            many = Many(broker)
            many.moves = {"id-7"}
            found = await admin.describe_transactions(["id-7", "id-8", "id-99999"])
            assert [found.one(name).writer.producer_id for name in ("id-7", "id-8")] == [7, 8]
            assert isinstance(found.failures["id-99999"], IdExpired)
            asked = [
                seen.request.transactional_ids
                for seen in broker.seen
                if isinstance(seen.request, dt.DescribeTransactionsRequest)
            ]
            assert asked == [("id-7", "id-8", "id-99999"), ("id-7",)]
            assert many.count()[0] == 2, "the one that moved is looked up again"

    asyncio.run(main())


def test_a_history_of_a_newer_broker_is_passed_on() -> None:
    """Kinds and states that this version does not know stay visible as numbers."""

    async def main() -> None:
        async with ScriptedBroker() as broker, AsyncAdmin(config(broker)) as admin:
            many = Many(broker)
            known = dt.HistoryTransition(
                kind=3, timestamp_ms=7, state=1, producer_id=5, producer_epoch=0, partition_count=2
            )
            newer = dt.HistoryTransition(
                kind=99, timestamp_ms=-1, state=77, producer_id=-1, producer_epoch=-1, partition_count=0
            )

            def describe(seen: Seen) -> dt.DescribeTransactionsResponse:
                assert isinstance(seen.request, dt.DescribeTransactionsRequest)
                history = (known, newer) if seen.request.include_history else None
                state = replace(many.describe_one("id-1"), history=history)
                return dt.DescribeTransactionsResponse(transaction_states=(state,))

            broker.scripts[ApiKey.DESCRIBE_TRANSACTIONS] = describe
            plain = (await admin.describe_transactions(["id-1"])).one("id-1")
            assert plain.history is None
            described = (await admin.describe_transactions(["id-1"], history=True)).one("id-1")
            assert described.history is not None
            begun, other = described.history
            assert (begun.kind, begun.state, begun.transactional_id) == (
                TransitionKind.BEGUN,
                "Ongoing",
                "id-1",
            )
            assert (other.kind, other.state, other.producer) == (99, "77", None)

    asyncio.run(main())


def test_an_older_broker_is_asked_for_one_coordinator_at_a_time() -> None:
    """KIP-699 is not there before version 4 of FindCoordinator."""

    async def main() -> None:
        async with ScriptedBroker() as broker, AsyncAdmin(config(broker)) as admin:
            many = Many(broker)
            broker.scripts[ApiKey.API_VERSIONS] = lambda _: broker.versions(FindCoordinator=(0, 3))
            found = await admin.describe_transactions(NAMES[:3])
            assert list(found.all()) == NAMES[:3]
            assert many.count()[2] == 1

    asyncio.run(main())
