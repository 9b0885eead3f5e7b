"""The source under Spark Connect: the session is a client, and Python runs where the server starts it."""

import subprocess
import sys

import pytest

from tallystick import Admin, Producer
from tallystick.admin.topics import NewTopic
from tallystick.spark.runtime.java import find_java_home
from tallystick.testing import EmbeddedBroker

pytestmark = [pytest.mark.gate(0), pytest.mark.server]

# A process of its own: one that has a classic session cannot have another kind.
CLIENT = """
import os, sys
os.environ["JAVA_HOME"] = sys.argv[3]
os.environ["PYSPARK_PYTHON"] = sys.executable
os.environ["SPARK_TESTING"] = "1"  # the server on a free port
from pyspark.sql import SparkSession
from tallystick.spark import register

spark = SparkSession.builder.remote("local[2]").getOrCreate()
register(spark)
register(spark)
options = {"kafka.bootstrap.servers": sys.argv[1], "subscribe": "t", "startingOffsets": "earliest"}
print("batch", spark.read.format("tallystick").options(**options).load().count())
rows = spark.readStream.format("tallystick").options(**options).load()
query = (
    rows.writeStream.format("memory").queryName("seen").option("checkpointLocation", sys.argv[2])
    .trigger(availableNow=True).start()
)
print("ended", query.awaitTermination(100))
print("stream", spark.sql("select * from seen").count())
spark.stop()
"""


def test_read_and_read_stream(tallystick_broker: EmbeddedBroker, tmp_path: object) -> None:
    cluster = {"bootstrap.servers": tallystick_broker.bootstrap_servers}
    with Admin(cluster) as admin:
        admin.create_topics([NewTopic(name="t", partitions=2)]).all()
    with Producer(cluster) as producer:
        for number in range(100):
            producer.send("t", value=b"v", partition=number % 2)
    arguments = [tallystick_broker.bootstrap_servers, f"{tmp_path}/checkpoint", str(find_java_home())]
    run = [sys.executable, "-c", CLIENT, *arguments]
    done = subprocess.run(run, capture_output=True, text=True, timeout=250, check=False, cwd=str(tmp_path))
    assert done.stdout.splitlines() == ["batch 100", "ended True", "stream 100"], done.stderr[-3000:]
