"""`QueryMetrics` in the driver of a real query, and in the client of Spark Connect."""

import subprocess
import sys
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry
from pyspark.sql import SparkSession
from tests.support.effort import long_form

from tallystick import Admin
from tallystick.admin.topics import NewTopic
from tallystick.spark import QueryMetrics
from tallystick.spark.protocol.query_events import QueryEvent, QueryEventKind
from tallystick.spark.runtime.java import find_java_home
from tallystick.testing import EmbeddedBroker, eventually

pytestmark = [pytest.mark.slow, pytest.mark.server, pytest.mark.broker(in_process=False)]

PREFIX, TOPIC, NAME = "test/metrics", "metered", "metered"


def run_query(spark: SparkSession, broker: EmbeddedBroker, folder: Path) -> None:
    """Write what is in the folder to the topic, in a batch for each file, and stop."""
    lines = spark.readStream.option("maxFilesPerTrigger", 1).text(str(folder / "in")).repartition(2)
    (
        lines.writeStream.format("tallystick")
        .queryName(NAME)
        .option("kafka.bootstrap.servers", broker.bootstrap_servers)
        .option("transactional.id.prefix", PREFIX)
        .option("topic", TOPIC)
        .option("checkpointLocation", str(folder / "checkpoint"))
        .trigger(availableNow=True)
        .start()
        .awaitTermination()
    )


@pytest.mark.gate(0)
def test_batches_transactions_and_replays_of_a_query(
    spark: SparkSession, broker: EmbeddedBroker, tmp_path: Path
) -> None:
    client = {"bootstrap.servers": broker.bootstrap_servers}
    with Admin(client) as admin:
        admin.create_topics([NewTopic(name=TOPIC, partitions=1)]).all()
    (tmp_path / "in").mkdir()
    for number in range(2):
        (tmp_path / "in" / f"{number}.txt").write_text("row\n" * 10)
    events: list[QueryEvent] = []
    queries = QueryMetrics(events.append)
    queries.read_decisions(NAME, PREFIX, client)
    registry = CollectorRegistry()
    registry.register(queries)
    spark.streams.addListener(queries)
    try:
        run_query(spark, broker, tmp_path)
        # As after a stop() between the decision and the end of the batch.
        for name in ("1", ".1.crc"):
            (tmp_path / "checkpoint/commits" / name).unlink()
        run_query(spark, broker, tmp_path)
        eventually(lambda: sum(each.kind is QueryEventKind.STOPPED for each in events) == 2)
    finally:
        spark.streams.removeListener(queries)
    batches = [each for each in events if each.kind is QueryEventKind.BATCH]
    assert [(each.batch, each.rows, each.is_replay) for each in batches] == [
        (0, 10, False),
        (1, 10, False),
        (1, 10, True),
    ]
    assert all(each.durations_ms["addBatch"] > 0 for each in batches)
    labels = {"query": NAME}
    assert registry.get_sample_value("tallystick_spark_query_batches_total", labels) == 3
    assert registry.get_sample_value("tallystick_spark_query_replays_total", labels) == 1
    assert registry.get_sample_value("tallystick_spark_query_active", labels) == 0
    # A batch is decided before Spark reports it.
    assert registry.get_sample_value("tallystick_spark_query_participants", labels) in (1, 2)


# A process of its own: one that has a classic session cannot have another kind.
CONNECT_CLIENT = """
import os, sys
os.environ["JAVA_HOME"] = sys.argv[2]
os.environ["PYSPARK_PYTHON"] = sys.executable
os.environ["SPARK_TESTING"] = "1"  # the server on a free port
from pyspark.sql import SparkSession
from tallystick.spark import QueryMetrics
from tallystick.testing import eventually

spark = SparkSession.builder.remote("local[2]").getOrCreate()
events = []
spark.streams.addListener(QueryMetrics(events.append))
os.makedirs(sys.argv[1] + "/in")
with open(sys.argv[1] + "/in/0.txt", "w") as file:
    file.write("row")
rows = spark.readStream.text(sys.argv[1] + "/in")
query = (
    rows.writeStream.format("noop").queryName("quiet").trigger(availableNow=True)
    .option("checkpointLocation", sys.argv[1] + "/checkpoint").start()
)
query.awaitTermination(100)
eventually(lambda: events and events[-1].kind == "stopped")
print([(each.kind.value, each.query, each.batch) for each in events])
spark.stop()
"""


@long_form
def test_with_spark_connect_the_listener_runs_in_the_clients_process(tmp_path: Path) -> None:
    run = [sys.executable, "-c", CONNECT_CLIENT, str(tmp_path), str(find_java_home())]
    done = subprocess.run(run, capture_output=True, text=True, timeout=250, check=False, cwd=str(tmp_path))
    expected = "[('started', 'quiet', None), ('batch', 'quiet', 0), ('stopped', 'quiet', None)]"
    assert done.stdout.splitlines() == [expected], done.stderr[-3000:]
