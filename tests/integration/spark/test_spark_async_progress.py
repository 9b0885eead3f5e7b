"""Spark's asynchronous progress tracking is for sinks that it knows by name; no Python sink is among them.

docs/design/spark-sink.md says why the sink refuses it, too.
"""

from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from pyspark.errors import IllegalArgumentException
from pyspark.sql.datasource import DataSource, DataSourceStreamWriter, WriterCommitMessage

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

pytestmark = [pytest.mark.slow]

ASYNC = "asyncProgressTrackingEnabled"


class Dropped(DataSourceStreamWriter):
    def write(self, iterator: object) -> WriterCommitMessage:
        raise NotImplementedError


class DroppingSource(DataSource):
    """A Python sink that has nothing to do with ours."""

    @classmethod
    def name(cls) -> str:
        return "dropping"

    def streamWriter(self, schema: "StructType", overwrite: bool) -> DataSourceStreamWriter:  # noqa: N802
        return Dropped()


def write_nothing(frame: "DataFrame", batch_id: int) -> None:
    raise NotImplementedError


@pytest.mark.parametrize("sink", ["dropping", "ForeachBatchSink"])
def test_spark_refuses_it_for_python_sinks_and_for_foreach_batch(
    spark: "SparkSession", sink: str, tmp_path: Path
) -> None:
    """AsyncProgressTrackingMicroBatchExecution.validateAndGetTrigger, before anything is read."""
    spark.dataSource.register(DroppingSource)
    writer = spark.readStream.format("rate").load().writeStream.option("checkpointLocation", str(tmp_path))
    writer = writer.format(sink) if sink == "dropping" else writer.foreachBatch(write_nothing)
    with pytest.raises(IllegalArgumentException, match=f"Sink {sink} does not support async progress"):
        writer.option(ASYNC, "true").start()
