"""Spark's own Kafka connector beside ours, with random options, topics and faults.

A difference that docs/spark.md does not have fails. `TALLYSTICK_RECORD=1` writes what Spark's own connector
does with the first seeds to a file; without Java, `test_spark_recorded.py` compares ours with it.
"""

import json
import os
import random
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from tests.support.effort import LONG
from tests.support.spark_cases import (
    ERROR,
    RECORDED,
    RECORDED_SEEDS,
    Outcome,
    build_cluster,
    draw_options,
    is_documented,
    to_rows,
)

from tallystick import Admin, Producer, TopicPartition
from tallystick.admin.topics import NewTopic
from tallystick.testing import EmbeddedBroker

pytestmark = [
    pytest.mark.gate(0),
    pytest.mark.server,
    pytest.mark.kafka,
    pytest.mark.usefixtures("spark_kafka_jars"),
]

OURS, SPARKS = "tallystick", "kafka"
NEW_SEED = int(os.environ.get("TALLYSTICK_SEED", time.time_ns() % 1_000_000))
STREAM_SEEDS = range(6 if LONG else 2)


@pytest.fixture(scope="module")
def broker() -> Iterator[EmbeddedBroker]:
    with EmbeddedBroker() as running:
        build_cluster(running.bootstrap_servers)
        yield running


def read_batch(spark: SparkSession, broker: EmbeddedBroker, name: str, options: dict[str, str]) -> Outcome:
    reader = spark.read.format(name).option("kafka.bootstrap.servers", broker.bootstrap_servers)
    try:
        rows = reader.options(**options).load().selectExpr("*", "unix_millis(timestamp) AS ms").collect()
    except (PySparkException, Py4JJavaError):
        return ERROR
    return to_rows([row.asDict(True) for row in rows])


@pytest.mark.parametrize("seed", RECORDED_SEEDS)
def test_what_was_recorded_is_what_sparks_own_connector_does(
    spark: SparkSession, broker: EmbeddedBroker, seed: int
) -> None:
    found = read_batch(spark, broker, SPARKS, draw_options(seed))
    recorded = json.loads(RECORDED.read_text())
    if os.environ.get("TALLYSTICK_RECORD") == "1":
        recorded[str(seed)] = found
        lines = (f"{json.dumps(key)}: {json.dumps(recorded[key])}" for key in sorted(recorded, key=int))
        RECORDED.write_text("{\n" + ",\n".join(lines) + "\n}\n")
    assert found == recorded[str(seed)]


@pytest.mark.parametrize("seed", [NEW_SEED + n for n in range(40 if LONG else 3)])
def test_a_batch(spark: SparkSession, broker: EmbeddedBroker, seed: int) -> None:
    options = draw_options(seed)
    ours, sparks = (read_batch(spark, broker, name, options) for name in (OURS, SPARKS))
    assert ours == sparks or is_documented(options, ours, sparks), (seed, options)


def draw_write(seed: int) -> tuple[list[str], bool]:
    """Return the columns of a batch write, as SQL over `id`, and whether the topic is an option."""
    chance = random.Random(seed)
    contents = ("CAST(id AS STRING)", "CAST(CAST(id AS STRING) AS BINARY)")
    columns = [f"IF(id % 5 = 0, NULL, {chance.choice(contents)}) AS value"]
    if chance.random() < 0.7:
        columns.append(chance.choice((*contents, "CAST(NULL AS BINARY)", "CAST(NULL AS STRING)")) + " AS key")
    by_option = chance.random() < 0.5
    if not by_option:
        columns.append(chance.choice(("'TOPIC'", "IF(id = 7, NULL, 'TOPIC')", "'TOPIC'")) + " AS topic")
    if chance.random() < 0.5:
        number = chance.choice(("id % 3", "IF(id % 2 = 0, NULL, 1)", "id % 3", "IF(id = 5, 99, 0)", "id"))
        columns.append(f"CAST({number} AS {chance.choice(('INT', 'INT', 'BIGINT'))}) AS partition")
    if chance.random() < 0.5:
        header = "named_struct('key', 'h', 'value', CAST(CAST(id AS STRING) AS BINARY))"
        columns.append(
            f"{chance.choice((f'array({header})', f'IF(id = 3, NULL, array({header}))'))} AS headers"
        )
    if chance.random() < 0.15:
        columns.append("id AS surplus")
    return columns, by_option


@pytest.mark.parametrize("seed", [NEW_SEED + n for n in range(20 if LONG else 3)])
def test_a_write(spark: SparkSession, broker: EmbeddedBroker, seed: int) -> None:
    """The records of each partition: keys, values, headers, and the partition that the key chose."""
    columns, by_option = draw_write(seed)
    outcomes = []
    for name in (OURS, SPARKS):
        topic = f"write-{seed}-{name}"
        with Admin({"bootstrap.servers": broker.bootstrap_servers}) as admin:
            admin.create_topics([NewTopic(name=topic, partitions=3)]).all()
        rows = spark.range(0, 20, 1, 2).selectExpr(*(each.replace("TOPIC", topic) for each in columns))
        options = {
            "kafka.bootstrap.servers": broker.bootstrap_servers,
            **({"topic": topic} if by_option else {}),
        }
        options |= {"transactional.id.prefix": topic} if name == OURS else {"kafka.max.block.ms": "5000"}
        try:
            rows.write.format(name).options(**options).mode("append").save()
        except (PySparkException, Py4JJavaError):
            outcomes.append(ERROR)
            continue
        found = read_batch(spark, broker, OURS, {"subscribe": topic, "includeHeaders": "true"})
        is_free = not any(each.endswith("AS partition") for each in columns) or "2 = 0" in str(columns)
        outcomes.append(
            sorted(
                # The partition of a record without a key is anyone's, if no column names it.
                [-1 if is_free and row[3] is None else row[1], str(row[3]), str(row[4]), row[7]]
                for row in found
            )
        )
    assert outcomes[0] == outcomes[1], (seed, columns, by_option)


class Stream:
    """A query of one connector that is started again and again on its checkpoint, and its rows."""

    def __init__(
        self, spark: SparkSession, broker: EmbeddedBroker, name: str, folder: Path, lenient: bool
    ) -> None:
        self._spark, self._folder, self._name = spark, folder, name
        self._options = {
            "kafka.bootstrap.servers": broker.bootstrap_servers,
            "kafka.isolation.level": "read_committed",
            "kafka.default.api.timeout.ms": "5000",
            "kafka.request.timeout.ms": "5000",
            "kafkaConsumer.pollTimeoutMs": "5000",
            "startingOffsets": "earliest",
            "maxOffsetsPerTrigger": "7",
            "failOnDataLoss": str(not lenient).lower(),
        }

    def run(self, topic: str) -> str:
        """Read what there is; "error" if the query fails."""
        rows = self._spark.readStream.format(self._name).options(**self._options, subscribe=topic).load()
        writer = rows.select("topic", "partition", "offset", "value").writeStream.format("json")
        writer = writer.option("checkpointLocation", str(self._folder / "checkpoint"))
        query = writer.trigger(availableNow=True).start(str(self._folder / "rows"))
        try:
            query.awaitTermination(300)
        except (PySparkException, Py4JJavaError):
            return ERROR
        return "read"

    def rows(self) -> list[str]:
        return sorted(
            line for path in (self._folder / "rows").glob("*.json") for line in path.read_text().splitlines()
        )


@pytest.mark.parametrize("seed", STREAM_SEEDS)
def test_a_stream_with_faults(spark: SparkSession, broker: EmbeddedBroker, tmp_path: Path, seed: int) -> None:
    """The same rows after each step, and failures at the same steps."""
    chance, topic = random.Random(seed), f"stream-{seed}"
    lenient = bool(seed % 2)
    streams = [Stream(spark, broker, name, tmp_path / name, lenient) for name in (OURS, SPARKS)]
    config = {"bootstrap.servers": broker.bootstrap_servers}
    with Admin(config) as admin:
        admin.create_topics([NewTopic(name=topic, partitions=2)]).all()
        for step in range(5):
            fault = chance.choice(("none", "partition", "abort", "age", "anew"))
            partitions = len(admin.describe_topics([topic]).one(topic).partitions)
            if step and fault == "partition":
                admin.create_partitions({topic: partitions + 1}).all()
            elif step and fault == "anew":
                admin.delete_topics([topic]).all()
                admin.create_topics([NewTopic(name=topic, partitions=partitions)]).all()
            with Producer({**config, "transactional.id": topic}) as producer:
                producer.init_transactions()
                producer.begin_transaction()
                for number in range(chance.randrange(20)):
                    producer.send(topic, value=b"%d-%d" % (step, number), partition=number % partitions)
                producer.flush()
                producer.abort_transaction() if fault == "abort" else producer.commit_transaction()
            if step and fault == "age":
                admin.delete_records({TopicPartition(topic, 0): None}).all()
            outcomes = [stream.run(topic) for stream in streams]
            assert outcomes[0] == outcomes[1], (step, fault)
            assert streams[0].rows() == streams[1].rows(), (step, fault)
            if ERROR in outcomes:
                return
