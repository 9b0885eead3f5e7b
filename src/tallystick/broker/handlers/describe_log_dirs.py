"""DescribeLogDirs: what partitions take up in the data directory."""

import asyncio
from collections.abc import Sequence

from tallystick.broker.broker import Broker
from tallystick.broker.context import RequestContext
from tallystick.broker.handlers.distinct import itself, merged
from tallystick.broker.listing import SLICE_ENTRIES
from tallystick.protocol.messages.describe_log_dirs import (
    DescribeLogDirsPartition,
    DescribeLogDirsRequest,
    DescribeLogDirsResponse,
    DescribeLogDirsResult,
    DescribeLogDirsTopic,
)


async def handle(
    broker: Broker, request: DescribeLogDirsRequest, context: RequestContext
) -> DescribeLogDirsResponse:
    wanted: Sequence[tuple[str, Sequence[int]]]
    if request.topics is None:
        wanted = [(topic.name, range(topic.partitions)) for topic in broker.topics]
    else:
        named = ((topic.topic, topic.partitions) for topic in request.topics)
        wanted = list(merged(named, itself).items())
    topics = []
    for number, (name, indexes) in enumerate(wanted, 1):
        if number % SLICE_ENTRIES == 0:
            await asyncio.sleep(0)  # others first
        found = [(index, broker.topics.partition(name, index)) for index in indexes]
        partitions = tuple(
            DescribeLogDirsPartition(
                partition_index=index, partition_size=known.log.size_bytes, offset_lag=0, is_future_key=False
            )
            for index, known in found
            if known is not None
        )
        if partitions:
            topics.append(DescribeLogDirsTopic(name=name, partitions=partitions))
    total_bytes, usable_bytes = broker.files.volume_bytes()
    result = DescribeLogDirsResult(
        log_dir=str(broker.data_dir), topics=tuple(topics), total_bytes=total_bytes, usable_bytes=usable_bytes
    )
    return DescribeLogDirsResponse(results=(result,))
