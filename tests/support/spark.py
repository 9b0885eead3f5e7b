"""The Spark session that all tests of a run share, as the fixture `spark`: starting one takes seconds.

Two tasks run at a time, and a task has four attempts, so that retries can be seen.
"""

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from pyspark.sql import SparkSession

from tallystick.spark.session import spark_session


@contextmanager
def running_spark(jars: str = "") -> Iterator[SparkSession]:
    """Run a Spark session inside the block.

    Args:
        jars: `spark.jars`.
    """
    with tempfile.TemporaryDirectory(prefix="ts-spark-") as directory:
        settings = {"spark.jars": jars} if jars else {}
        session = spark_session("tests", Path(directory), master="local[2, 4]", settings=settings)
        yield session
        session.stop()
