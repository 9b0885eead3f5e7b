"""Measure what rights cost a Produce request in processor time: python -m tools.bench.authorization.

The same frames go to the dispatcher without an authorizer and with one that has 1,000 ACLs, in turns, on
real files under `flush.policy=os`, one record a request. Processor time is measured and rounds are short, so
that other programs disturb both alike.
"""

import asyncio
import statistics
import tempfile
import time
from pathlib import Path
from typing import Final

from tools.bench.commits import TOPIC, make_frame

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
from tallystick.kernel.clock import SystemClock
from tallystick.protocol import decode
from tallystick.protocol.acls import AclOperation, AclPattern, AclPermission, AclResource
from tallystick.protocol.messages.produce import (
    PartitionProduceData,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
)
from tallystick.protocol.records import BatchMeta, Record, encode_batch
from tallystick.security.principals import Principal

ACLS: Final = 1_000
ROUNDS: Final = 60
REQUESTS: Final = 200
GOAL: Final = 0.03
PRODUCE_VERSION: Final = 9


def make_authorizer() -> StandardAuthorizer:
    """Return an authorizer with rights on many topics, by name and by prefix, and one on ours."""
    entries = [
        (f"{TOPIC}-{number}", AclPattern.PREFIXED if number % 2 else AclPattern.LITERAL, f"User:u{number}")
        for number in range(ACLS - 1)
    ]
    entries.append((TOPIC, AclPattern.LITERAL, "User:alice"))
    return StandardAuthorizer(
        AclSettings(),
        AclIndex(
            AclBinding(
                ResourcePattern(AclResource.TOPIC, name, pattern),
                AccessControlEntry(principal, "*", AclOperation.WRITE, AclPermission.ALLOW),
            )
            for name, pattern, principal in entries
        ),
    )


def make_request() -> memoryview:
    """Return the frame of a request that produces one record of 100 bytes."""
    record = Record(0, int(time.time() * 1000), None, bytes(100), ())
    data = PartitionProduceData(index=0, records=encode_batch([record], BatchMeta()))
    request = ProduceRequest(
        acks=-1, timeout_ms=30_000, topic_data=(TopicProduceData(name=TOPIC, partition_data=(data,)),)
    )
    return memoryview(make_frame(request, PRODUCE_VERSION))


async def produce(dispatcher: RequestDispatcher, peer: Peer, requests: int) -> float:
    """Return the microseconds of processor time a request."""
    request = make_request()
    began = time.process_time()
    for _ in range(requests):
        answer = dispatcher.dispatch(request, peer)
        if not isinstance(answer, list):
            answer = await asyncio.ensure_future(answer)
    cpu_s = time.process_time() - began
    # Behind the size, the correlation id and the tags of the header.
    response = decode(ProduceResponse, b"".join(answer or [])[9:], PRODUCE_VERSION)
    code = response.responses[0].partition_responses[0].error_code
    if code:
        raise RuntimeError(f"the last request was answered with error {code}")
    return cpu_s / requests * 1e6


async def measure() -> tuple[float, float]:
    """Return the medians without and with rights, in microseconds a request."""
    with tempfile.TemporaryDirectory(prefix="bench-") as directory:
        config = BrokerConfig.parse({"flush.policy": "os", "log.reserve.bytes": "0"})
        broker = Broker(config, Path(directory), SystemClock())
        broker.open()
        await broker.start()
        try:
            await broker.topic_controller.create(TopicSpec(TOPIC, 1))
            dispatcher = RequestDispatcher(broker, HANDLERS)
            peer = Peer("10.0.0.1", 0, 1, principal=Principal("alice"))
            authorizers: tuple[Authorizer, ...] = (ALLOW_ALL, make_authorizer())
            await produce(dispatcher, peer, 2_000)
            costs_us: tuple[list[float], ...] = ([], [])
            for number in range(2 * ROUNDS):
                # Which is first changes, so that a drift of the clock falls on both.
                which = (number + number // 2) % 2
                broker.authorizer = authorizers[which]
                costs_us[which].append(await produce(dispatcher, peer, REQUESTS))
        finally:
            await broker.stop()
    return statistics.median(costs_us[0]), statistics.median(costs_us[1])


def measure_cost() -> float:
    """Return what the rights add to a request, as a share of one without."""
    without, with_rights = asyncio.run(measure())
    return (with_rights - without) / without


def main() -> None:
    """Measure, and print the share of a request that the rights take."""
    without, with_rights = asyncio.run(measure())
    share = (with_rights - without) / without
    print(f"Produce of one record: {without:.1f} us, with {ACLS:,} ACLs {with_rights:.1f} us")
    print(f"authorisation: {100 * share:.1f} % of a request, goal below {100 * GOAL:.0f} %")


if __name__ == "__main__":
    main()
