"""A Spark session on this machine, for the demo, the pipeline and the tests."""

import os
import sys
from collections.abc import Mapping
from pathlib import Path

from pyspark.sql import SparkSession

from tallystick.spark.data_source import register
from tallystick.spark.java import java_home


def spark_session(
    name: str,
    work_dir: Path,
    *,
    master: str = "local[*]",
    settings: Mapping[str, str] | None = None,
) -> SparkSession:
    """Start Spark here, with `format("tallystick")` known to it; the one that runs already, if one does.

    It listens on the loopback address alone and keeps its files in `work_dir`.

    Args:
        name: shown in Spark's logs.
        work_dir: exists; the caller removes it after `stop()`.
        master: `local[2]`, `local-cluster[2,1,1024]`, `spark://...`.
        settings: Spark's own; they win over those here.
    Raises: NoJava.
    """
    # Read by the Java that PySpark starts, and by the workers that start from it.
    os.environ["JAVA_HOME"] = str(java_home())
    os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    builder = SparkSession.builder.appName(name).master(master)
    for key, value in {**_settings(work_dir), **(settings or {})}.items():
        builder = builder.config(key, value)
    spark = builder.getOrCreate()
    register(spark)
    return spark


def _settings(work_dir: Path) -> dict[str, str]:
    return {
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.memory": "1g",
        "spark.local.dir": str(work_dir / "local"),
        "spark.sql.warehouse.dir": str(work_dir / "warehouse"),
        "spark.sql.catalogImplementation": "in-memory",
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.execution.arrow.pyspark.enabled": "true",
        # Rows reach Python workers through files, not TCP: 50 to 60 ms less for each micro-batch.
        "spark.python.unix.domain.socket.enabled": "true",
        # One shuffle task a core; the 200 of a cluster cost a small machine a second a batch.
        "spark.sql.shuffle.partitions": str(os.cpu_count() or 2),
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.log.level": "ERROR",
    }
