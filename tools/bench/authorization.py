"""Measure what rights cost a request in processor time: python -m tools.bench.authorization [ROW ...].

The same frames go to the dispatcher without an authorizer and with one that has 1,000 ACLs, in turns, on
real files under `flush.policy=os`. A row is one kind of request, with one topic; those of transactions are
measured inside whole transactions. Processor time is measured, rounds are short, and the share is the median
of the ratios of neighbouring rounds, so that other programs disturb both alike.
"""

import asyncio
import statistics
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final
from uuid import UUID

from tools.bench.commits import NAME, TOPIC, make_end, make_frame, make_produce, make_version_1

from tallystick.broker.authorizer.acl_index import AclIndex, AclSettings
from tallystick.broker.authorizer.authorizer import ALLOW_ALL, Authorizer
from tallystick.broker.authorizer.bindings import AccessControlEntry, AclBinding, ResourcePattern
from tallystick.broker.authorizer.standard_authorizer import StandardAuthorizer
from tallystick.broker.broker import Broker
from tallystick.broker.config.broker_config import BrokerConfig
from tallystick.broker.handlers import HANDLERS
from tallystick.broker.handlers.dispatch import RequestDispatcher
from tallystick.broker.partitions.topics import TopicSpec
from tallystick.broker.server.server import Peer
from tallystick.broker.txn.machine.commands import InitProducerId, InitProducerIdResult
from tallystick.kernel.clock import SystemClock
from tallystick.kernel.ids import ProducerIdAndEpoch
from tallystick.protocol import decode
from tallystick.protocol.acls import AclOperation, AclPattern, AclPermission, AclResource
from tallystick.protocol.messages.data.fetch import FetchPartition, FetchRequest, FetchResponse, FetchTopic
from tallystick.protocol.messages.data.produce import (
    PartitionProduceData,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
)
from tallystick.protocol.messages.txn.txn_offset_commit import (
    TxnOffsetCommitRequest,
    TxnOffsetCommitRequestPartition,
    TxnOffsetCommitRequestTopic,
)
from tallystick.protocol.records import BatchMeta, Record, encode_batch
from tallystick.security.principals import Principal

ACLS: Final = 1_000
ROUNDS: Final = 200
REQUESTS: Final = 60
WARM_UP: Final = 4
GOAL: Final = 0.03
GROUP: Final = "bench-group"
# Of the event loop, until a transaction is complete.
TURNS_MAX: Final = 10_000

# By the name of a row: microseconds of processor time, a request.
Times = Mapping[str, float]
Round = Callable[[], Awaitable[Times]]


def make_authorizer() -> StandardAuthorizer:
    """Return an authorizer with rights on many names and prefixes, and those that the bench needs."""
    rights = [
        (AclResource.TOPIC, TOPIC, AclOperation.WRITE),
        (AclResource.TOPIC, TOPIC, AclOperation.READ),
        (AclResource.TRANSACTIONAL_ID, str(NAME), AclOperation.WRITE),
        (AclResource.GROUP, GROUP, AclOperation.READ),
    ]
    acls = [
        _allow(
            ResourcePattern(
                AclResource.TOPIC,
                f"{TOPIC}-{number}",
                AclPattern.PREFIXED if number % 2 else AclPattern.LITERAL,
            ),
            f"User:u{number}",
            AclOperation.WRITE,
        )
        for number in range(ACLS - len(rights))
    ]
    acls += [_allow(ResourcePattern(kind, name), "User:alice", right) for kind, name, right in rights]
    return StandardAuthorizer(AclSettings(), AclIndex(acls))


def _allow(pattern: ResourcePattern, principal: str, operation: AclOperation) -> AclBinding:
    return AclBinding(pattern, AccessControlEntry(principal, "*", operation, AclPermission.ALLOW))


@dataclass
class Bench:
    """A broker, and what one client of it asks. `peer` is its connection."""

    broker: Broker
    dispatcher: RequestDispatcher
    peer: Peer
    topic_id: UUID

    async def ask(self, request: memoryview) -> bytes:
        """Return the answer to one frame, without its size, correlation id and tags."""
        answer = self.dispatcher.dispatch(request, self.peer)
        if not isinstance(answer, list):
            answer = await asyncio.ensure_future(answer)
        return b"".join(answer or [])[9:]

    async def repeat(self, row: str, request: memoryview, check: Callable[[bytes], int]) -> Times:
        """Send one frame many times; `check` returns the error code of the last answer."""
        dispatch, peer, answer = self.dispatcher.dispatch, self.peer, None
        began = time.process_time()
        for _ in range(REQUESTS):
            answer = dispatch(request, peer)
            if not isinstance(answer, list):
                answer = await asyncio.ensure_future(answer)
        cpu_s = time.process_time() - began
        if code := check(b"".join(answer or [])[9:]):
            raise RuntimeError(f"{row}: the last request was answered with error {code}")
        return {row: cpu_s / REQUESTS * 1e6}

    def make_produce(self, version: int) -> Round:
        """Return what produces one record of 100 bytes a request."""
        record = Record(0, int(time.time() * 1000), None, bytes(100), ())
        data = PartitionProduceData(index=0, records=encode_batch([record], BatchMeta()))
        topic = (
            TopicProduceData(topic_id=self.topic_id, partition_data=(data,))
            if version >= PRODUCE_BY_ID
            else TopicProduceData(name=TOPIC, partition_data=(data,))
        )
        request = make_frame(ProduceRequest(acks=-1, timeout_ms=30_000, topic_data=(topic,)), version)

        def check(answer: bytes) -> int:
            return decode(ProduceResponse, answer, version).responses[0].partition_responses[0].error_code

        return lambda: self.repeat(f"Produce {version}", memoryview(request), check)

    def make_fetch(self, version: int) -> Round:
        """Return what fetches the first record, without a session."""
        part = FetchPartition(partition=0, fetch_offset=0, partition_max_bytes=1)
        topic = (
            FetchTopic(topic_id=self.topic_id, partitions=(part,))
            if version >= FETCH_BY_ID
            else FetchTopic(topic=TOPIC, partitions=(part,))
        )
        request = make_frame(
            FetchRequest(max_wait_ms=0, min_bytes=1, max_bytes=1, session_epoch=-1, topics=(topic,)), version
        )

        def check(answer: bytes) -> int:
            part = decode(FetchResponse, answer, version).responses[0].partitions[0]
            return part.error_code or int(not part.records)

        return lambda: self.repeat(f"Fetch {version}", memoryview(request), check)

    async def begin(self) -> ProducerIdAndEpoch:
        answer = await self.broker.transactions.execute(NAME, InitProducerId(timeout_ms=60_000))
        if not isinstance(answer, InitProducerIdResult):
            raise RuntimeError(str(answer))
        return answer.client

    async def commit(self, frames: Callable[[ProducerIdAndEpoch, int], Mapping[str, bytes]]) -> Times:
        """Commit many transactions, and return the times of each of their requests."""
        cpu_s: dict[str, float] = {}
        identity, sequence = await self.begin(), 0
        for _ in range(REQUESTS):
            for row, request in frames(identity, sequence).items():
                view = memoryview(request)
                began = time.process_time()
                answer = self.dispatcher.dispatch(view, self.peer)
                if not isinstance(answer, list):
                    await asyncio.ensure_future(answer)
                cpu_s[row] = cpu_s.get(row, 0.0) + time.process_time() - began
            for _ in range(TURNS_MAX):
                await asyncio.sleep(0)
                entry = self.broker.transactions.find_by_producer_id(identity.producer_id)
                if entry is not None and entry.state.label == "CompleteCommit":
                    break
            else:
                raise RuntimeError(f"{entry} is not committed")
            sequence = sequence + 1 if entry.client == identity else 0
            identity = entry.client
        return {row: each / REQUESTS * 1e6 for row, each in cpu_s.items()}


def _frames_of_version_1(identity: ProducerIdAndEpoch, sequence: int) -> Mapping[str, bytes]:
    rows = ("AddPartitionsToTxn 0", "Produce 7 in a transaction", "EndTxn 1")
    return dict(zip(rows, make_version_1(identity, sequence), strict=True))


def _frames_of_version_2(identity: ProducerIdAndEpoch, sequence: int) -> Mapping[str, bytes]:
    offsets = TxnOffsetCommitRequest(
        transactional_id=NAME,
        group_id=GROUP,
        producer_id=identity.producer_id,
        producer_epoch=identity.epoch,
        topics=(
            TxnOffsetCommitRequestTopic(
                name=TOPIC,
                partitions=(TxnOffsetCommitRequestPartition(partition_index=0, committed_offset=1),),
            ),
        ),
    )
    return {
        "Produce 12 in a transaction": make_frame(make_produce(identity, sequence), 12),
        "TxnOffsetCommit 5": make_frame(offsets, 5),
        "EndTxn 5": make_frame(make_end(identity), 5),
    }


# KIP-516: the first versions that name topics by id.
PRODUCE_BY_ID: Final = 13
FETCH_BY_ID: Final = 13
PRODUCE_ROW: Final = "produce"
ROWS: Final[Mapping[str, Callable[[Bench], Round]]] = {
    PRODUCE_ROW: lambda bench: bench.make_produce(9),
    "produce-by-id": lambda bench: bench.make_produce(PRODUCE_BY_ID),
    "fetch": lambda bench: bench.make_fetch(12),
    "fetch-by-id": lambda bench: bench.make_fetch(17),
    "transaction-1": lambda bench: lambda: bench.commit(_frames_of_version_1),
    "transaction-2": lambda bench: lambda: bench.commit(_frames_of_version_2),
}


@dataclass
class Samples:
    """Times of one kind of request by round, without and with rights."""

    without: list[float] = field(default_factory=list)
    with_rights: list[float] = field(default_factory=list)

    @property
    def share(self) -> float:
        """What the rights add to a request, as a share of one without."""
        return statistics.median(b / a for a, b in zip(self.without, self.with_rights, strict=True)) - 1


@asynccontextmanager
async def _run_broker() -> AsyncIterator[Bench]:
    with tempfile.TemporaryDirectory(prefix="bench-") as directory:
        config = BrokerConfig.parse({"flush.policy": "os", "log.reserve.bytes": "0"})
        broker = Broker(config, Path(directory), SystemClock())
        broker.open()
        await broker.start()
        try:
            await broker.topic_controller.create(TopicSpec(TOPIC, 1))
            await broker.transactions.ensure_topic()
            await broker.groups.ensure_topic()
            topic = broker.topics.find(TOPIC)
            if topic is None:
                raise RuntimeError(f"{TOPIC} does not exist")
            peer = Peer("10.0.0.1", 0, 1, principal=Principal("alice"))
            yield Bench(broker, RequestDispatcher(broker, HANDLERS), peer, topic.topic_id)
        finally:
            await broker.stop()


async def measure(row: str, rounds: int = ROUNDS) -> Mapping[str, Samples]:
    """Return the times of each kind of request of a row."""
    samples: dict[str, Samples] = {}
    async with _run_broker() as bench:
        if row.startswith("fetch"):
            await bench.make_produce(9)()
        run = ROWS[row](bench)
        authorizers: tuple[Authorizer, Authorizer] = (ALLOW_ALL, make_authorizer())
        for number in range(-2 * WARM_UP, 2 * rounds):
            # Which is first changes, so that a drift of the clock falls on both.
            which = (number + number // 2) % 2
            bench.broker.authorizer = authorizers[which]
            times = await run()
            for kind, cpu_s in times.items() if number >= 0 else ():
                each = samples.setdefault(kind, Samples())
                (each.with_rights if which else each.without).append(cpu_s)
    return samples


def measure_cost() -> float:
    """Return what the rights add to a Produce request, as a share of one without."""
    ((_, samples),) = asyncio.run(measure(PRODUCE_ROW)).items()
    return samples.share


def main() -> None:
    """Measure, and print the share of each kind of request that the rights take."""
    print(f"{ACLS:,} ACLs, medians of {ROUNDS} rounds of {REQUESTS} requests; goal below {GOAL:.0%}")
    for row in sys.argv[1:] or ROWS:
        for kind, each in asyncio.run(measure(row)).items():
            without, with_rights = statistics.median(each.without), statistics.median(each.with_rights)
            print(f"{kind:28}{without:8.1f} us, with rights {with_rights:8.1f} us: {each.share:6.1%}")


if __name__ == "__main__":
    main()
