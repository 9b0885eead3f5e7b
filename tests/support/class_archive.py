"""Archive of Spark's classes, with which the JVMs that tests start need a third less processor time.

Each JVM that runs Spark reads, parses and verifies some 20,000 classes from jars. HotSpot maps them from
an archive that such a JVM has written at its exit (`-XX:ArchiveClassesAtExit`, JEP 350), and ignores one of
other jars or of another Java. `python -m tests.support.class_archive` writes it, in half a minute: 170 MB.
"""

import os
import tempfile
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import pyspark
from pyspark.sql import SparkSession
from pyspark.sql import functions as f
from pyspark.sql.datasource import DataSource, DataSourceReader
from tests.support.jvm_options import ARCHIVE, FAST_START, QUIET

from tallystick.spark.session import spark_session

_ROWS: Final = 1000
_SCHEMA: Final = "id BIGINT, key STRING, at TIMESTAMP"


def write_archive() -> None:
    """Run what pipelines do in a JVM that archives the classes it has loaded. Needs a process of its own."""
    jars = Path(pyspark.__file__).parent / "jars"
    if ARCHIVE.exists() and ARCHIVE.stat().st_mtime > jars.stat().st_ctime:
        return
    ARCHIVE.parent.mkdir(exist_ok=True)
    draft = ARCHIVE.with_suffix(f".{os.getpid()}")
    os.environ["SPARK_SUBMIT_OPTS"] = f"{FAST_START} {QUIET} -XX:ArchiveClassesAtExit={draft}"
    with tempfile.TemporaryDirectory(prefix="tallystick-classes-") as folder:
        spark = spark_session("classes", folder, master="local[2]")
        gateway: Any = spark.sparkContext._gateway
        _run_sample(spark, Path(folder))
        spark.stop()
        gateway.shutdown()
        gateway.proc.stdin.close()
        gateway.proc.wait()
    draft.replace(ARCHIVE)


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
    write_archive()
