"""Arrow batches in and out, through the facades and a broker, with the codec's extension and without."""

import asyncio

import pytest
from tests.support.codecs_of_records import EXTENSION, codec

from tallystick import Consumer, Producer, TopicPartition, aio
from tallystick.client.producer.batches.partitioner import hash_key_to_partition
from tallystick.testing import EmbeddedBroker

pa = pytest.importorskip("pyarrow", reason="the extra `arrow` is not installed")

PARTITIONS = 4
pytestmark = [pytest.mark.server, pytest.mark.broker(in_process=False, num_partitions=PARTITIONS)]
ROWS = 3000


def made(topics: list[str]):  # type: ignore[no-untyped-def]
    """Rows with keys, partitions, times and headers, some of each missing."""
    header = pa.struct([("key", pa.string()), ("value", pa.binary())])
    places = range(ROWS)
    return pa.RecordBatch.from_pydict(
        {
            "key": [None if i % 5 == 0 else b"%d" % (i % 97) for i in places],
            "value": [None if i % 11 == 0 else b"v" * (i % 300) for i in places],
            "topic": [topics[i % len(topics)] for i in places],
            "partition": pa.array([i % PARTITIONS if i % 3 == 0 else None for i in places], pa.int32()),
            "timestamp": pa.array([10**12 + i * 10 for i in places], pa.timestamp("ms", tz="UTC")),
            "headers": pa.array(
                [[{"key": "n", "value": b"%d" % i}] if i % 7 == 0 else None for i in places],
                pa.list_(header),
            ),
        }
    )


def read(broker: EmbeddedBroker, topics: list[str], most: int | None = None) -> dict[tuple[str, int], list]:  # type: ignore[type-arg]
    """Everything, by partition."""
    found: dict[tuple[str, int], list] = {}  # type: ignore[type-arg]
    ats = [TopicPartition(topic, p) for topic in topics for p in range(PARTITIONS)]
    with Consumer({"bootstrap.servers": broker.bootstrap_servers}) as consumer:
        consumer.assign(ats)
        ends = consumer.end_offsets(ats)
        consumer.seek_to_beginning()
        while any(consumer.position(at) < ends[at] for at in ats):
            for row in consumer.poll_arrow(1, most).to_pylist():
                found.setdefault((row["topic"], row["partition"]), []).append(row)
    return found


@pytest.mark.gate(1)
@pytest.mark.parametrize("compiled", [True, False])
def test_rows_arrive_where_they_said_and_as_they_were(broker: EmbeddedBroker, compiled: bool) -> None:
    if compiled and EXTENSION is None:
        pytest.skip("the extension is not compiled")
    topics = [f"{name}-{compiled}" for name in ("orders", "returns")]
    batch = made(topics)
    with codec(EXTENSION if compiled else None):
        with Producer({"bootstrap.servers": broker.bootstrap_servers, "batch.size": 5000}) as producer:
            sent = [delivery.result(30) for delivery in producer.send_arrow(batch)]
        found = read(broker, topics, 700)
    rows = batch.to_pylist()
    seen = []
    for metadata in sent:
        for part in metadata.parts:
            for place, row in enumerate(part.rows):
                seen.append(row)
                expected = rows[row]
                if expected["partition"] is not None:
                    assert part.partition == expected["partition"]
                elif expected["key"] is not None:
                    assert part.partition == hash_key_to_partition(expected["key"], PARTITIONS)
                got = found[metadata.topic, part.partition][part.first_offset + place]
                assert got["offset"] == part.first_offset + place
                for name in ("key", "value", "topic", "timestamp"):
                    assert got[name] == expected[name]
                assert got["headers"] == (expected["headers"] or [])
    assert sorted(seen) == list(range(ROWS))


def test_the_same_under_asyncio(broker: EmbeddedBroker) -> None:
    async def main() -> int:
        async with aio.Producer({"bootstrap.servers": broker.bootstrap_servers}) as producer:
            sent = await producer.send_arrow(made(["ignored"]), "loop")
            return sum([(await delivery).count for delivery in sent])

    assert asyncio.run(main()) == ROWS
    assert sum(map(len, read(broker, ["loop"]).values())) == ROWS
