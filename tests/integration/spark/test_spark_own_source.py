"""Spark's own Kafka source beside ours: same topics, same options, same rows, same offsets."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from tests.support.effort import LONG

from tallystick import Admin, Producer
from tallystick.admin.topics import NewTopic
from tallystick.testing import EmbeddedBroker

pytestmark = [pytest.mark.gate(0), pytest.mark.server, pytest.mark.kafka]

OURS, SPARKS = "tallystick", "kafka"
TOPIC, OTHER = "orders", "refunds"
COMMITTED = {"kafka.isolation.level": "read_committed"}
UNCOMMITTED = {"kafka.isolation.level": "read_uncommitted"}

BATCHES = {
    "everything": {"includeHeaders": "true"},
    "by name": {"subscribe": f"{OTHER}, {TOPIC}"},
    "by pattern": {"subscribePattern": "(ord|ref).*s"},
    "by partition": {"assign": json.dumps({TOPIC: [2, 0]})},
    "offsets": {
        "startingOffsets": json.dumps({TOPIC: {"0": 5, "1": -2, "2": 7}}),
        "endingOffsets": json.dumps({TOPIC: {"0": 20, "1": 11, "2": -1}}),
    },
    "times": {"startingTimestamp": "10500", "endingTimestamp": "30000"},
    "times by partition": {
        "startingOffsetsByTimestamp": json.dumps({TOPIC: {"0": 3000, "1": 99_000_000, "2": 0}}),
        "startingOffsetsByTimestampStrategy": "latest",
    },
    "more tasks": {"minPartitions": "11"},
    # Without offsets Spark's own source does not know the sizes yet, and does not cut; ours does.
    "small tasks": {
        "maxRecordsPerPartition": "7",
        "startingOffsets": json.dumps({TOPIC: {"0": 0, "1": 0, "2": 0}}),
        "endingOffsets": json.dumps({TOPIC: {"0": 29, "1": 22, "2": 7}}),
    },
    "more and small tasks": {"maxRecordsPerPartition": "20", "minPartitions": "13"},
}

ISOLATIONS = {"committed": COMMITTED, "uncommitted": UNCOMMITTED}
# Both levels for everything; the other options under one of them in turn, and under both in the long form.
READS = [
    pytest.param(options, isolation, id=f"{name}-{level}")
    for turn, (name, options) in enumerate(BATCHES.items())
    for of_level, (level, isolation) in enumerate(ISOLATIONS.items())
    if LONG or turn == 0 or turn % 2 == of_level
]


@pytest.fixture(scope="module")
def broker() -> Iterator[EmbeddedBroker]:
    """Two topics: records with and without headers, a committed transaction, an aborted one, an open one."""
    with EmbeddedBroker() as running:
        config = {"bootstrap.servers": running.bootstrap_servers}
        with Admin(config) as admin:
            admin.create_topics(
                [NewTopic(name=TOPIC, partitions=3), NewTopic(name=OTHER, partitions=1)]
            ).all()
        with Producer(config) as producer:
            for number in range(90):
                headers = [("n", b"%d" % number)] if number % 2 else []
                where: dict[str, Any] = {"partition": number % 3, "timestamp_ms": 1000 * number}
                producer.send(
                    TOPIC, value=b"%d" % number, key=b"k" if number % 5 else None, headers=headers, **where
                )
            producer.send(OTHER, value=None)
        with Producer({**config, "transactional.id": "t"}) as producer:
            producer.init_transactions()
            for commit in (True, False):
                producer.begin_transaction()
                for number in range(9):
                    producer.send(TOPIC, value=b"in", partition=number % 2, timestamp_ms=100_000)
                producer.flush()
                producer.commit_transaction() if commit else producer.abort_transaction()
            producer.begin_transaction()
            producer.send(TOPIC, value=b"open", partition=2, timestamp_ms=100_000)
            producer.flush()
            yield running


def batch(spark: SparkSession, broker: EmbeddedBroker, name: str, options: dict[str, str]) -> DataFrame:
    topics = {} if options.keys() & {"subscribe", "subscribePattern", "assign"} else {"subscribe": TOPIC}
    cluster = {"kafka.bootstrap.servers": broker.bootstrap_servers}
    return spark.read.format(name).options(**cluster, **topics, **options).load()


@pytest.mark.usefixtures("spark_kafka_jars")
@pytest.mark.parametrize(("options", "isolation"), READS)
def test_a_batch(
    spark: SparkSession, broker: EmbeddedBroker, options: dict[str, str], isolation: dict[str, str]
) -> None:
    """[SPK-1] The columns, the rows and the number of tasks."""
    ours = batch(spark, broker, OURS, {**options, **isolation})
    theirs = batch(spark, broker, SPARKS, {**options, **isolation})
    assert ours.schema == theirs.schema
    found, expected = (frame.orderBy("topic", "partition", "offset").collect() for frame in (ours, theirs))
    assert expected
    # Spark's own source has null for no headers; an empty array is what ours has, see docs/spark.md.
    assert [plain(row.asDict(True)) for row in found] == [plain(row.asDict(True)) for row in expected]
    assert ours.rdd.getNumPartitions() == theirs.rdd.getNumPartitions()


def plain(row: dict[str, object]) -> dict[str, object]:
    return {**row, "headers": row.get("headers") or []}


@pytest.mark.usefixtures("spark_kafka_jars")
@pytest.mark.parametrize("isolation", ISOLATIONS.values(), ids=ISOLATIONS)
def test_a_stream(
    spark: SparkSession, broker: EmbeddedBroker, tmp_path: Path, isolation: dict[str, str]
) -> None:
    """[SPK-2] The batches of a backlog, as the checkpoint has them."""
    found, expected = (planned(spark, broker, name, tmp_path / name, isolation) for name in (OURS, SPARKS))
    assert len(expected) > 3
    assert found == expected


def planned(
    spark: SparkSession, broker: EmbeddedBroker, name: str, checkpoint: Path, isolation: dict[str, str]
) -> list[object]:
    """The offsets of every batch of a query that reads everything."""
    options = {
        "kafka.bootstrap.servers": broker.bootstrap_servers,
        "subscribe": f"{TOPIC},{OTHER}",
        "startingOffsets": "earliest",
        "maxOffsetsPerTrigger": "25",
        **isolation,
    }
    rows = spark.readStream.format(name).options(**options).load()
    stream = rows.writeStream.format("noop").option("checkpointLocation", str(checkpoint))
    query = stream.trigger(availableNow=True).start()
    assert query.awaitTermination(100)
    logs = sorted((checkpoint / "offsets").glob("[0-9]*"), key=lambda path: int(path.name))
    return [json.loads(log.read_text().splitlines()[-1]) for log in logs]
