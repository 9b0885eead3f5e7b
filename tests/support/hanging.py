"""Makes a hanging transaction, unknown to any coordinator, on a broker without verification."""

import time

from tests.support.raw_wire import RawConnection

from tallystick.kernel.codes import ErrorCode
from tallystick.kernel.ids import TopicPartition
from tallystick.protocol.messages.data import produce
from tallystick.protocol.records import BatchMeta, Record, encode_batch
from tallystick.testing import eventually

HOUR_MS = 3_600_000


def hang(bootstrap: str, at: TopicPartition, producer_id: int, epoch: int = 0) -> int:
    """Open a hanging transaction, an hour old by its record; return its first offset."""
    record = Record(offset=0, timestamp_ms=int(time.time() * 1000) - HOUR_MS, key=None, value=b"hanging")
    meta = BatchMeta(producer_id=producer_id, producer_epoch=epoch, base_sequence=0, is_transactional=True)
    part = produce.PartitionProduceData(index=at.partition, records=encode_batch([record], meta))
    request = produce.ProduceRequest(
        transactional_id="hanging",
        acks=-1,
        timeout_ms=10_000,
        topic_data=(produce.TopicProduceData(name=at.topic, partition_data=(part,)),),
    )

    def send() -> produce.PartitionProduceResponse:
        with RawConnection(bootstrap) as wire:
            (told,) = wire.ask(request, produce.ProduceResponse, 11).responses[0].partition_responses
        # Apache Kafka may not be ready for a topic, or to verify a transaction, at the first request.
        assert told.error_code == ErrorCode.NONE
        return told

    told = eventually(send)
    return told.base_offset
