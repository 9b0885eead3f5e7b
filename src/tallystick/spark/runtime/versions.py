"""Features of each version of Spark: Python data sources came in 4.0, and grew until 4.2. Pure.

docs/spark.md has the table for users; `tests/integration/spark/test_spark_versions.py` runs every cell of it.
"""

import re
from enum import Enum
from typing import Final

from tallystick.kernel.errors import TallystickError

Version = tuple[int, int]


class SparkFeature(Enum):
    """A way to use tallystick from Spark, and the first version of PySpark that can.

    Source: PySpark's `pyspark.sql.datasource`: DataSourceReader since 4.0, DataSourceStreamArrowWriter since
        4.1, read limits and Trigger.AvailableNow of streams (`pyspark.sql.streaming.datasource`) since 4.2;
        `arrow_udf` since 4.1.
    """

    FOREACH_BATCH = "foreachBatch", (3, 5)
    REGISTER_SERIALIZER = "register_serializer", (4, 1)
    BATCH_READ = "spark.read.format", (4, 0)
    BATCH_WRITE = "df.write.format", (4, 1)
    STREAM_WRITE = "df.writeStream.format", (4, 1)
    STREAM_READ = "spark.readStream.format", (4, 2)

    def __init__(self, call: str, since: Version) -> None:
        self.call = call
        self.since = since


class UnsupportedSpark(TallystickError):
    """This version of PySpark lacks the called feature. Nothing was read or written."""


_VERSION: Final = re.compile(r"(\d+)\.(\d+)")
_INSTEAD: Final = {
    SparkFeature.BATCH_READ: "Read with Spark's own format('kafka')",
    SparkFeature.STREAM_READ: "Read with Spark's own format('kafka')",
    SparkFeature.BATCH_WRITE: "Write a stream with foreachBatch(tallystick.spark.foreach_batch(...))",
    SparkFeature.STREAM_WRITE: "Write with foreachBatch(tallystick.spark.foreach_batch(...))",
    SparkFeature.REGISTER_SERIALIZER: "Encode the column in a mapInArrow of your own, or upgrade Spark",
    SparkFeature.FOREACH_BATCH: "Upgrade Spark",
}


def parse_version(text: str) -> Version:
    """Return major and minor of `pyspark.__version__`, which may end in anything (`4.1.0.dev3`)."""
    match = _VERSION.match(text)
    if match is None:
        raise UnsupportedSpark(f"PySpark's version {text!r} cannot be read")
    return int(match[1]), int(match[2])


def has_feature(feature: SparkFeature, version: str) -> bool:
    """Return whether a version of PySpark can do it."""
    return parse_version(version) >= feature.since


def check_feature(feature: SparkFeature, version: str) -> None:
    """Check that this version of PySpark can do it. Raises: UnsupportedSpark, with what to do instead."""
    if not has_feature(feature, version):
        major, minor = feature.since
        call = f"{feature.call}('tallystick')" if feature.call.endswith(".format") else feature.call
        raise UnsupportedSpark(
            f"{call} needs PySpark {major}.{minor} or later, and this is {version}. {_INSTEAD[feature]}"
        )


def find_checkpoint_manager(version: str) -> str:
    """Return the checkpoint manager that starts fewer programs: docs/design/spark-sink.md."""
    package = "org.apache.spark.sql.execution.streaming"
    shelf = ".checkpointing" if parse_version(version) >= (4, 1) else ""
    return f"{package}{shelf}.FileSystemBasedCheckpointFileManager"
