"""Measure microseconds per message of Produce and Fetch: python tools/bench/codecs.py.

One partition, 1 KiB of records; "hand" is protocol/produce_fetch_codec.py. Both columns include building the
answer.
"""

import timeit
import uuid
from collections.abc import Callable

from tallystick.protocol import decode, encode, produce_fetch_codec
from tallystick.protocol.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from tallystick.protocol.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData

TOPIC_ID = uuid.UUID(int=2**100)
RECORDS = bytes(1024)
ROUNDS = 20_000


def micros(run: Callable[[], object]) -> float:
    return min(timeit.repeat(run, number=ROUNDS, repeat=5)) / ROUNDS * 1e6


def produce(version: int) -> tuple[float, float, float, float]:
    by_id = version >= produce_fetch_codec.PRODUCE_TOPIC_ID_SINCE
    data = (PartitionProduceData(index=0, records=RECORDS),)
    topic = (
        TopicProduceData(topic_id=TOPIC_ID, partition_data=data)
        if by_id
        else TopicProduceData(name="topic-name", partition_data=data)
    )
    request = ProduceRequest(transactional_id=None, acks=-1, timeout_ms=30_000, topic_data=(topic,))
    body = memoryview(encode(request, version))
    key: produce_fetch_codec.TopicKey = TOPIC_ID if by_id else "topic-name"
    return (
        micros(lambda: decode(ProduceRequest, body, version)),
        micros(lambda: produce_fetch_codec.read_produce_request(body, version)),
        micros(
            lambda: encode(
                produce_fetch_codec._build_produce_response(
                    [(key, [produce_fetch_codec.ProducePartitionResult(0, 0, 7)])], version, 0
                ),
                version,
            )
        ),
        micros(
            lambda: produce_fetch_codec.write_produce_response(
                [(key, [produce_fetch_codec.ProducePartitionResult(0, 0, 7)])], version
            )
        ),
    )


def fetch(version: int) -> tuple[float, float, float, float]:
    by_id = version >= produce_fetch_codec.FETCH_TOPIC_ID_SINCE
    parts = (FetchPartition(partition=0, fetch_offset=7, partition_max_bytes=2**20),)
    topic = (
        FetchTopic(topic_id=TOPIC_ID, partitions=parts) if by_id else FetchTopic(topic="t", partitions=parts)
    )
    request = FetchRequest(max_wait_ms=500, min_bytes=1, topics=(topic,))
    body = memoryview(encode(request, version))
    key: produce_fetch_codec.TopicKey = TOPIC_ID if by_id else "topic-name"
    session = produce_fetch_codec.FetchResponseHeader()

    def answer() -> list[tuple[produce_fetch_codec.TopicKey, list[produce_fetch_codec.FetchPartitionResult]]]:
        return [(key, [produce_fetch_codec.FetchPartitionResult(0, 0, 88, records=RECORDS)])]

    return (
        micros(lambda: decode(FetchRequest, body, version)),
        micros(lambda: produce_fetch_codec.read_fetch_request(body, version)),
        micros(
            lambda: encode(produce_fetch_codec._build_fetch_response(answer(), version, session), version)
        ),
        micros(lambda: produce_fetch_codec.write_fetch_response(answer(), version, session)),
    )


def main() -> None:
    print(
        f"{'us per message':16}{'read generated':>16}{'read hand':>12}"
        f"{'write generated':>17}{'write hand':>12}"
    )
    for name, measure, versions in (("Produce", produce, (7, 9, 13)), ("Fetch", fetch, (11, 12, 16, 18))):
        for version in versions:
            read, read_hand, write, write_hand = measure(version)
            print(
                f"{name + ' ' + str(version):16}{read:16.2f}{read_hand:12.2f}{write:17.2f}{write_hand:12.2f}"
            )


if __name__ == "__main__":
    main()
