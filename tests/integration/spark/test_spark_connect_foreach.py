"""`foreach_batch` under Spark Connect: the function runs in a process of the server."""

import sqlite3
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest
from tests.support.reading import committed_records

from tallystick import Admin
from tallystick.admin.topics import NewTopic
from tallystick.spark.runtime.java import find_java_home
from tallystick.testing import EmbeddedBroker

pytestmark = [pytest.mark.gate(0), pytest.mark.server, pytest.mark.timeout(600)]

ROWS = 60

# A process of its own: one that has a classic session cannot have another kind.
CLIENT = """
import os, shutil, sys
from pathlib import Path
bootstrap, folder, home = sys.argv[1:]
os.environ["JAVA_HOME"] = home
os.environ["PYSPARK_PYTHON"] = sys.executable
os.environ["SPARK_TESTING"] = "1"  # the server on a free port
from pyspark.sql import SparkSession
from tallystick.spark import foreach_batch, to_table, to_topic

spark = SparkSession.builder.remote("local[2]").getOrCreate()
options = {"kafka.bootstrap.servers": bootstrap, "transactional.id.prefix": "connect"}
plain = foreach_batch({**options, "topic": "alone", "transactional.id.prefix": "alone"}, query_id="alone")
together = foreach_batch(
    options,
    to_topic("together", value="value"),
    to_table("t", columns=["value"]),
    database=f"sqlite:///{folder}/rows.db",
    query_id="together",
)

def started(writer):
    for _ in range(5):
        try:
            return writer.start()
        except Exception as exc:  # Spark gives its Python ten seconds to begin, however busy the machine
            if "failed to connect back" not in str(exc):
                raise
    raise TimeoutError

def run(name, write):
    rows = spark.readStream.option("maxFilesPerTrigger", 1).text(f"{folder}/in").repartition(2)
    writer = rows.writeStream.foreachBatch(write).option("checkpointLocation", f"{folder}/{name}")
    query = started(writer.trigger(availableNow=True))
    print(name, query.awaitTermination(200), query.exception())

for name, write in (("alone", plain), ("together", together)):
    run(name, write)
    for log in Path(folder, name, "commits").glob("*1*"):
        log.unlink()  # as after an ordinary stop() while the sink commits
    run(name, write)
spark.stop()
"""


def test_a_topic_alone_and_with_a_table(tallystick_broker: EmbeddedBroker, tmp_path: Path) -> None:
    """[SPK-22] [SPK-40] Two batches, the second of which comes again: every row is there once."""
    cluster = {"bootstrap.servers": tallystick_broker.bootstrap_servers}
    with Admin(cluster) as admin:
        admin.create_topics([NewTopic(name=name, partitions=1) for name in ("alone", "together")]).all()
    with sqlite3.connect(tmp_path / "rows.db") as connection:
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("CREATE TABLE t (value TEXT NOT NULL)")
    (tmp_path / "in").mkdir()
    values = [f"row {number}" for number in range(ROWS)]
    for batch in range(2):
        (tmp_path / "in" / f"{batch}.txt").write_text("\n".join(values[batch::2]) + "\n")
    arguments = [tallystick_broker.bootstrap_servers, str(tmp_path), str(find_java_home())]
    run = [sys.executable, "-c", CLIENT, *arguments]
    done = subprocess.run(run, capture_output=True, text=True, timeout=500, check=False, cwd=tmp_path)
    ended = [f"{name} True None" for name in ("alone", "alone", "together", "together")]
    assert done.stdout.splitlines() == ended, done.stderr[-3000:]
    for topic in ("alone", "together"):
        found = (each.value or b"" for each in committed_records(cluster, topic))
        assert Counter(value.decode() for value in found) == Counter(values)
    with sqlite3.connect(tmp_path / "rows.db") as connection:
        assert Counter(row[0] for row in connection.execute("SELECT value FROM t")) == Counter(values)
