"""Measure the broker's processor time per commit, without sockets: -m tools.bench.commits [--profile].

Requests go to the dispatcher as the frames clients send, on real files under `flush.policy=os`, one message
per transaction. Processor time is measured, so that other programs disturb little; "version 2" is the
transaction protocol of Kafka's Java client, "version 1" that of librdkafka.
"""

import asyncio
import cProfile
import pstats
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

from tools.bench.raw import find_spec

from tallystick.broker.broker import Broker
from tallystick.broker.config.broker_config import BrokerConfig
from tallystick.broker.handlers import HANDLERS
from tallystick.broker.handlers.dispatch import RequestDispatcher
from tallystick.broker.partitions.topics import TopicSpec
from tallystick.broker.server.server import Peer
from tallystick.broker.txn.machine.commands import InitProducerId, InitProducerIdResult
from tallystick.kernel.clock import SystemClock
from tallystick.kernel.ids import ProducerIdAndEpoch, TransactionalId
from tallystick.protocol import encode
from tallystick.protocol.messages.data.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from tallystick.protocol.messages.headers import RequestHeader
from tallystick.protocol.messages.txn.add_partitions_to_txn import (
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnTopic,
)
from tallystick.protocol.messages.txn.end_txn import EndTxnRequest
from tallystick.protocol.records import BatchMeta, Record, encode_batch

COMMITS: Final = 5_000
WARM_UP: Final = 500
TOPIC, NAME = "commits", TransactionalId("bench")
# Turns of the event loop that the markers take; whether they were enough is checked for each commit.
TURNS: Final = 1

Frames = Callable[[ProducerIdAndEpoch, int], list[bytes]]


def make_frame(request: object, version: int) -> bytes:
    """Return a request's frame without its length prefix."""
    spec = find_spec(request)
    header = RequestHeader(
        request_api_key=spec.key, request_api_version=version, correlation_id=1, client_id="bench"
    )
    return encode(header, spec.get_request_header_version(version)) + encode(request, version)


def make_produce(identity: ProducerIdAndEpoch, sequence: int) -> ProduceRequest:
    """Return a request that produces one record of 100 bytes."""
    record = Record(0, int(time.time() * 1000), None, bytes(100), ())
    meta = BatchMeta(
        producer_id=identity.producer_id,
        producer_epoch=identity.epoch,
        base_sequence=sequence,
        is_transactional=True,
    )
    data = PartitionProduceData(index=0, records=encode_batch([record], meta))
    return ProduceRequest(
        transactional_id=NAME,
        acks=-1,
        timeout_ms=30_000,
        topic_data=(TopicProduceData(name=TOPIC, partition_data=(data,)),),
    )


def make_end(identity: ProducerIdAndEpoch) -> EndTxnRequest:
    """Return a request that commits."""
    return EndTxnRequest(
        transactional_id=NAME,
        producer_id=identity.producer_id,
        producer_epoch=identity.epoch,
        committed=True,
    )


def make_version_1(identity: ProducerIdAndEpoch, sequence: int) -> list[bytes]:
    """Return a transaction's frames: the epoch stays, and sequence numbers go on."""
    add = AddPartitionsToTxnRequest(
        v3_and_below_transactional_id=NAME,
        v3_and_below_producer_id=identity.producer_id,
        v3_and_below_producer_epoch=identity.epoch,
        v3_and_below_topics=(AddPartitionsToTxnTopic(name=TOPIC, partitions=(0,)),),
    )
    return [
        make_frame(add, 0),
        make_frame(make_produce(identity, sequence), 7),
        make_frame(make_end(identity), 1),
    ]


def make_version_2(identity: ProducerIdAndEpoch, _sequence: int) -> list[bytes]:
    """Return a transaction's frames: each has an epoch of its own, and sequence numbers begin at 0."""
    return [make_frame(make_produce(identity, 0), 12), make_frame(make_end(identity), 5)]


async def measure(frames: Frames, profile: cProfile.Profile | None) -> float:
    """Return the microseconds of processor time per commit."""
    with tempfile.TemporaryDirectory(prefix="bench-") as directory:
        config = BrokerConfig.parse({"flush.policy": "os", "log.reserve.bytes": "0"})
        broker = Broker(config, Path(directory), SystemClock())
        broker.open()
        await broker.start()
        try:
            await broker.topic_controller.create(TopicSpec(TOPIC, 1))
            await broker.transactions.ensure_topic()
            return await commit(broker, frames, profile)
        finally:
            await broker.stop()


async def commit(broker: Broker, frames: Frames, profile: cProfile.Profile | None) -> float:
    """Commit repeatedly, checking that each transaction is complete; return the time per commit."""
    dispatcher, peer = RequestDispatcher(broker, HANDLERS), Peer("bench", 0, 1)
    answer = await broker.transactions.execute(NAME, InitProducerId(timeout_ms=60_000))
    if not isinstance(answer, InitProducerIdResult):
        raise RuntimeError(str(answer))
    identity, cpu_s = answer.client, 0.0
    for number in range(WARM_UP + COMMITS):
        requests = [memoryview(request) for request in frames(identity, number)]
        began = time.process_time()
        if profile is not None and number >= WARM_UP:
            profile.enable()
        for request in requests:
            answer_or_future = dispatcher.dispatch(request, peer)
            if not isinstance(answer_or_future, list):
                await asyncio.ensure_future(answer_or_future)
        for _ in range(TURNS):
            await asyncio.sleep(0)
        if profile is not None:
            profile.disable()
        if number >= WARM_UP:
            cpu_s += time.process_time() - began
        entry = broker.transactions.find_by_producer_id(identity.producer_id)
        if entry is None or entry.state.label != "CompleteCommit":
            raise RuntimeError(f"{entry} is not committed")
        identity = entry.client
    return cpu_s / COMMITS * 1e6


def main() -> None:
    """Measure both protocols; with `--profile` print where they spend their time."""
    for frames in (make_version_2, make_version_1):
        profile = cProfile.Profile() if "--profile" in sys.argv else None
        print(f"{frames.__name__}: {asyncio.run(measure(frames, profile)):.0f} us a commit")
        if profile is not None:
            pstats.Stats(profile).sort_stats("cumulative").print_stats("tallystick", 40)


if __name__ == "__main__":
    main()
