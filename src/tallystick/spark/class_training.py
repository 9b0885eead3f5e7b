"""Training run for the class archive: it makes Spark's JVM load the classes that pipelines use.

`python -m tallystick.spark.class_training FILE BASE` writes FILE; BASE is the archive of Java's own classes,
if Java came without one.
"""

import sys
import tempfile
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from pyspark.sql import SparkSession
from pyspark.sql import functions as f
from pyspark.sql.datasource import DataSource, DataSourceReader

from tallystick.spark.class_archive import QUIET_JVM_OPTIONS
from tallystick.spark.session import FAST_START_JVM_OPTIONS, spark_session

_ROWS: Final = 1000
_SCHEMA: Final = "id BIGINT, key STRING, at TIMESTAMP"


def train(draft: str, base: str) -> None:
    """Run Spark with a JVM that writes the archive at its exit. Needs a process of its own."""
    java = f"{QUIET_JVM_OPTIONS} {FAST_START_JVM_OPTIONS} -XX:ArchiveClassesAtExit={draft}"
    if Path(base).exists():
        java += f" -XX:SharedArchiveFile={base}"
    with tempfile.TemporaryDirectory(prefix="tallystick-classes-") as name:
        folder = Path(name)
        settings = {"spark.driver.extraJavaOptions": java}
        spark = spark_session("classes", folder, master="local[2]", settings=settings)
        gateway: Any = spark.sparkContext._gateway
        _run_sample(spark, folder)
        spark.stop()
        gateway.shutdown()
        gateway.proc.stdin.close()
        gateway.proc.wait()


def _run_sample(spark: SparkSession, folder: Path) -> None:
    """Use files, JSON, a join, Python sources and functions, a stateful stream, and one with foreachBatch."""
    spark.dataSource.register(_SampleSource)
    rows = spark.read.format("numbers").load()
    (folder / "keys.csv").write_text("key,name\n1,one\n2,two\n")
    keys = spark.read.option("header", "true").csv(str(folder / "keys.csv"))
    rows.join(f.broadcast(keys), "key", "left").selectExpr("to_json(struct(*)) AS value").write.text(
        str(folder / "in")
    )
    lines = spark.readStream.text(str(folder / "in"))
    events = lines.select(f.from_json("value", _SCHEMA).alias("v")).select("v.*")
    hours = (
        events.withWatermark("at", "1 hour").groupBy(f.window("at", "1 hour")).agg(f.count("*").alias("n"))
    )
    for number, frame in enumerate((hours, events)):
        stream = frame.writeStream.outputMode("append").foreachBatch(_drain)
        checkpoint = str(folder / f"checkpoint-{number}")
        stream.option("checkpointLocation", checkpoint).trigger(availableNow=True).start().awaitTermination()


def _drain(frame: Any, batch: int) -> None:
    frame.mapInArrow(lambda batches: batches, frame.schema).collect()


class _SampleSource(DataSource):
    """A data source in Python, with rows of numbers."""

    @classmethod
    def name(cls) -> str:
        return "numbers"

    def schema(self) -> str:
        return _SCHEMA

    def reader(self, schema: Any) -> "_SampleReader":
        return _SampleReader()


class _SampleReader(DataSourceReader):
    def read(self, partition: Any) -> Iterator[Any]:
        for number in range(_ROWS):
            yield number, str(number % 3), datetime.fromtimestamp(60 * number, UTC)


if __name__ == "__main__":
    train(*sys.argv[1:])
