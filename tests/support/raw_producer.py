"""A transactional producer of single requests with chosen versions, and readers of any log."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Self, TypeVar

from tests.support.raw_wire import RawConnection

from tallystick.broker.broker import Broker
from tallystick.broker.config.broker_config import BrokerConfig
from tallystick.broker.coordinator.placement import hash_to_partition
from tallystick.broker.embedded import EmbeddedBroker
from tallystick.broker.txn.codec import encode_batch_of
from tallystick.broker.txn.machine.commands import EntryStored
from tallystick.broker.txn.machine.model import TxnEntry
from tallystick.kernel.clock import SystemClock
from tallystick.kernel.codes import ErrorCode
from tallystick.kernel.ids import TransactionalId
from tallystick.protocol import decode_prefix
from tallystick.protocol.messages.cluster.find_coordinator import (
    FindCoordinatorRequest,
    FindCoordinatorResponse,
)
from tallystick.protocol.messages.data.fetch import FetchPartition, FetchRequest, FetchResponse, FetchTopic
from tallystick.protocol.messages.data.produce import (
    PartitionProduceData,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
)
from tallystick.protocol.messages.topics.create_topics import (
    CreatableTopic,
    CreateTopicsRequest,
    CreateTopicsResponse,
)
from tallystick.protocol.messages.txn.add_offsets_to_txn import (
    AddOffsetsToTxnRequest,
    AddOffsetsToTxnResponse,
)
from tallystick.protocol.messages.txn.add_partitions_to_txn import (
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
    AddPartitionsToTxnTopic,
)
from tallystick.protocol.messages.txn.describe_transactions import (
    DescribeTransactionsRequest,
    DescribeTransactionsResponse,
)
from tallystick.protocol.messages.txn.end_txn import EndTxnRequest, EndTxnResponse
from tallystick.protocol.messages.txn.init_producer_id import InitProducerIdRequest, InitProducerIdResponse
from tallystick.protocol.messages.txn.stored_transactions import TransactionLogKey, TransactionLogValue
from tallystick.protocol.records import (
    BatchHeader,
    BatchMeta,
    Record,
    decode_records,
    encode_batch,
    iter_headers,
)
from tallystick.storage.state.producer_state import AppendOrigin
from tallystick.testing import eventually

T = TypeVar("T")
Pair = tuple[int, int]
NO_PAIR: Pair = (-1, -1)
# The errors that a client retries: loading, no coordinator yet, another one, concurrent transactions; and
# their counterparts in Produce.
AGAIN = {
    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
    ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_COORDINATOR,
    ErrorCode.CONCURRENT_TRANSACTIONS,
    ErrorCode.NOT_ENOUGH_REPLICAS,
}


@dataclass(frozen=True)
class Versions:
    """The request versions of one client; Produce 12 and EndTxn 5 go together (KIP-890)."""

    init: int = 6
    add: int = 3
    produce: int = 12
    end: int = 5
    offsets: int = 4

    @property
    def implicit(self) -> bool:
        return self.produce >= 12


class RawProducer:
    """One transactional id over one connection; `reconnect` after a restart."""

    def __init__(self, broker: EmbeddedBroker, name: str, versions: Versions = Versions()) -> None:
        self.name = name
        self.versions = versions
        self.pair: Pair = NO_PAIR
        self.broker = broker
        self._sequences: dict[tuple[str, int], int] = {}
        self.connection = RawConnection(broker.bootstrap_servers)

    def reconnect(self) -> None:
        """Connect again when the broker is back and has loaded its state."""
        self.connection.__exit__(None, None, None)
        self.connection = RawConnection(self.broker.bootstrap_servers)
        eventually(lambda: self.describe().error_code == 0)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.connection.__exit__(None, None, None)

    def find(self) -> None:
        """Have the coordinator's topic created, and wait for it."""
        request = FindCoordinatorRequest(coordinator_keys=(self.name,), key_type=1)
        found = self.connection.ask(request, FindCoordinatorResponse, 4).coordinators
        assert [each.error_code for each in found] == [0]

    def init_until(self, epoch: int, *, keep: bool = False, two_phase: bool = False) -> None:
        """Send InitProducerId again and again, all requests concurrently, until this epoch is reached."""
        request = InitProducerIdRequest(
            transactional_id=self.name,
            transaction_timeout_ms=60_000,
            enable_2pc=two_phase,
            keep_prepared_txn=keep,
        )
        while self.pair[1] < epoch:
            number = min(epoch - self.pair[1], 1_000)
            answers = self.connection.ask_all([request] * number, InitProducerIdResponse, self.versions.init)
            assert {each.error_code for each in answers} == {0}
            assert len({(each.producer_id, each.producer_epoch) for each in answers}) == number
            self.became((answers[-1].producer_id, answers[-1].producer_epoch))

    def init(self, *, keep: bool = False, two_phase: bool = False, expected: Pair = NO_PAIR) -> Any:
        """Send InitProducerId until the answer is final."""
        request = InitProducerIdRequest(
            transactional_id=self.name,
            transaction_timeout_ms=60_000,
            producer_id=expected[0],
            producer_epoch=expected[1],
            enable_2pc=two_phase,
            keep_prepared_txn=keep,
        )
        answer = persist(lambda: self.connection.ask(request, InitProducerIdResponse, self.versions.init))
        if answer.error_code == 0:
            self.became((answer.producer_id, answer.producer_epoch))
        return answer

    def add(self, topic: str, *partitions: int, pair: Pair | None = None) -> set[int]:
        """Add partitions, and return the error codes of all."""
        producer_id, epoch = pair or self.pair
        request = AddPartitionsToTxnRequest(
            v3_and_below_transactional_id=self.name,
            v3_and_below_producer_id=producer_id,
            v3_and_below_producer_epoch=epoch,
            v3_and_below_topics=(AddPartitionsToTxnTopic(name=topic, partitions=partitions),),
        )
        return persist(
            lambda: {
                result.partition_error_code
                for each in self.connection.ask(
                    request, AddPartitionsToTxnResponse, self.versions.add
                ).results_by_topic_v3_and_below
                for result in each.results_by_partition
            },
            set,
        )

    def add_offsets(self, group_id: str) -> int:
        request = AddOffsetsToTxnRequest(
            transactional_id=self.name,
            producer_id=self.pair[0],
            producer_epoch=self.pair[1],
            group_id=group_id,
        )
        answer = persist(lambda: self.connection.ask(request, AddOffsetsToTxnResponse, self.versions.offsets))
        return int(answer.error_code)

    def write(self, topic: str, partition: int, *values: str, pair: Pair | None = None) -> int:
        """Write one batch, add the partition before if the versions require it, and return the error code."""
        if not self.versions.implicit and pair is None:
            refused = self.add(topic, partition)
            if refused != {0}:
                return refused.pop()
        place = (topic, partition)
        producer_id, epoch = pair or self.pair
        sequence = self._sequences.get(place, 0)
        records = [Record(index, 0, None, value.encode()) for index, value in enumerate(values)]
        meta = BatchMeta(
            producer_id=producer_id, producer_epoch=epoch, base_sequence=sequence, is_transactional=True
        )
        request = ProduceRequest(
            transactional_id=self.name,
            acks=-1,
            timeout_ms=10_000,
            topic_data=(
                TopicProduceData(
                    name=topic,
                    partition_data=(
                        PartitionProduceData(index=partition, records=encode_batch(records, meta)),
                    ),
                ),
            ),
        )
        answer = persist(
            lambda: (
                self.connection.ask(request, ProduceResponse, self.versions.produce)
                .responses[0]
                .partition_responses[0]
            )
        )
        code = answer.error_code
        if code == 0 and pair is None:
            self._sequences[place] = sequence + len(values)
        return code

    def end(self, *, commit: bool = True, pair: Pair | None = None) -> Any:
        producer_id, epoch = pair or self.pair
        request = EndTxnRequest(
            transactional_id=self.name, producer_id=producer_id, producer_epoch=epoch, committed=commit
        )
        answer = persist(lambda: self.connection.ask(request, EndTxnResponse, self.versions.end))
        if answer.error_code == 0 and answer.producer_id >= 0:
            self.became((answer.producer_id, answer.producer_epoch))
        return answer

    def describe(self) -> Any:
        request = DescribeTransactionsRequest(transactional_ids=(self.name,))
        (state,) = self.connection.ask(request, DescribeTransactionsResponse, 0).transaction_states
        return state

    def completed(self) -> None:
        """Wait for the markers."""
        eventually(lambda: self.describe().transaction_state in ("CompleteCommit", "CompleteAbort"))

    def became(self, pair: Pair) -> None:
        if pair != self.pair:
            self._sequences.clear()
        self.pair = pair


def _only_code(answer: Any) -> set[int]:
    return {answer.error_code}


def persist(ask: Callable[[], T], codes: Callable[[T], set[int]] = _only_code) -> T:
    """Ask until the answer is no retriable error."""

    def final() -> list[T]:
        answer = ask()
        return [answer] if AGAIN.isdisjoint(codes(answer)) else []

    return eventually(final)[0]


# ---- reading the logs


def make_topic(broker: EmbeddedBroker, name: str, partitions: int = 1) -> None:
    wanted = CreatableTopic(name=name, num_partitions=partitions, replication_factor=1)
    with RawConnection(broker.bootstrap_servers) as connection:
        request = CreateTopicsRequest(topics=(wanted,), timeout_ms=10_000)
        assert [each.error_code for each in connection.ask(request, CreateTopicsResponse, 5).topics] == [0]


def read(
    broker: EmbeddedBroker, topic: str, partition: int, *, committed: bool = False
) -> tuple[list[tuple[BatchHeader, list[Record]]], list[tuple[int, int]]]:
    """Return every batch with its records, and the aborted transactions (producer id, first offset)."""
    batches: list[tuple[BatchHeader, list[Record]]] = []
    aborted: set[tuple[int, int]] = set()
    with RawConnection(broker.bootstrap_servers) as connection:
        while True:
            at = batches[-1][0].last_offset + 1 if batches else 0
            wanted = FetchPartition(partition=partition, fetch_offset=at, partition_max_bytes=1 << 20)
            request = FetchRequest(
                max_wait_ms=0,
                min_bytes=0,
                isolation_level=int(committed),
                topics=(FetchTopic(topic=topic, partitions=(wanted,)),),
            )
            (found,) = connection.ask(request, FetchResponse, 12).responses[0].partitions
            assert found.error_code == 0, (topic, at, found.error_code)
            data = bytes(found.records or b"")
            if not data:
                return batches, sorted(aborted)
            aborted |= {(each.producer_id, each.first_offset) for each in found.aborted_transactions or ()}
            for place, header in iter_headers(data):
                batches.append((header, list(decode_records(data, place))))


def committed_values(broker: EmbeddedBroker, topic: str, partition: int) -> list[str]:
    """Return what a read_committed consumer hands to its application."""
    batches, aborted = read(broker, topic, partition, committed=True)
    values: list[str] = []
    left, dropping = list(aborted), set()
    for header, records in batches:
        while left and min(left, key=lambda each: each[1])[1] <= header.last_offset:
            first = min(left, key=lambda each: each[1])
            left.remove(first)
            dropping.add(first[0])
        if header.is_control:
            dropping.discard(header.producer_id)
        elif not (header.is_transactional and header.producer_id in dropping):
            values += [(record.value or b"").decode() for record in records]
    return values


def states_of(broker: EmbeddedBroker, name: str, partitions: int) -> list[TransactionLogValue]:
    """Return the records of an id in `__transaction_state`, oldest first; read without our codec."""
    values = _values_of(broker, name, partitions)
    return [decode_prefix(TransactionLogValue, value, form, 2)[0] for form, value in values]


def stored_forms(broker: EmbeddedBroker, name: str, partitions: int) -> list[int]:
    """Return the version in which each of those records is written."""
    return [form for form, _ in _values_of(broker, name, partitions)]


def _values_of(broker: EmbeddedBroker, name: str, partitions: int) -> list[tuple[int, bytes]]:
    batches, _ = read(broker, "__transaction_state", hash_to_partition(name, partitions))
    found = []
    for _, records in batches:
        for record in records:
            assert record.key is not None
            assert record.value is not None
            key, _ = decode_prefix(TransactionLogKey, record.key, int.from_bytes(record.key[:2], "big"), 2)
            if key.transactional_id == name:
                found.append((int.from_bytes(record.value[:2], "big"), record.value))
    return found


def rewrite(broker: EmbeddedBroker, name: str, change: Callable[[TxnEntry], TxnEntry]) -> None:
    """Append a record of an id to the log of a stopped broker, as if requests had led to it."""

    async def put() -> None:
        config = BrokerConfig.parse({"listeners": "PLAINTEXT://127.0.0.1:0", "flush.policy": "os"})
        offline = Broker(config, broker.data_dir, SystemClock())
        offline.open()
        await offline.start()
        transactions = offline.transactions
        while (loading := transactions._loader.loading_task) is not None:
            await loading
        entry = transactions.get_entry(TransactionalId(name))
        assert isinstance(entry, TxnEntry)
        partition = offline.topics.find_partition(
            "__transaction_state", transactions.partition_for(TransactionalId(name))
        )
        assert partition is not None
        record = EntryStored(entry=change(entry))
        partition.append(encode_batch_of([record], offline.clock.now_ms(), 2), AppendOrigin.COORDINATOR)
        await offline.stop()

    asyncio.run(put())
