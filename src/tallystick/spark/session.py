"""Registration of `format("tallystick")`, and a local session for the demo, the pipeline and the tests."""

import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import pyspark
from pyspark.sql import SparkSession

import tallystick.spark as lazy
from tallystick.kernel.settings import BadConfig
from tallystick.spark.files.hadoop import HadoopSystem
from tallystick.spark.files.served import serve
from tallystick.spark.runtime.java import find_java_home
from tallystick.spark.runtime.versions import (
    SparkFeature,
    check_feature,
    find_checkpoint_manager,
    has_feature,
)

FAST_START_JVM_OPTIONS: Final = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
"""JVM options for a fast start rather than speed later, for a demo and for tests."""

# Spark's default manager starts ten programs (`readlink`, `chmod`) for each file that it writes on a local
# disk, and it writes two in a micro-batch. This one starts two for each: docs/design/spark-sink.md.
_LOCAL_CHECKPOINTS: Final = {
    "spark.sql.streaming.checkpointFileManagerClass": find_checkpoint_manager(pyspark.__version__)
}


def spark_session(
    name: str,
    work_dir: str | Path,
    *,
    master: str = "local[*]",
    settings: Mapping[str, str] | None = None,
) -> SparkSession:
    """Start Spark with `format("tallystick")` registered, or return the session that runs.

    Before PySpark 4.0 there is no `format` to register, and only `foreach_batch` can be used.

    Spark listens on the loopback address only and keeps its files in `work_dir`. Its Python workers run this
    Python, unless PYSPARK_PYTHON names another.

    Args:
        name: the application's name in Spark's logs.
        work_dir: a folder for Spark's files; the caller removes it after `stop()`.
        master: `local[2]`, `local-cluster[2,1,1024]`, `spark://...`.
        settings: Spark settings; they override those made here.
    Raises: NoJava.
    """
    # Read by the JVM that PySpark starts, and by the workers that the JVM starts.
    os.environ["JAVA_HOME"] = str(find_java_home())
    is_local = master.startswith("local")
    # PYSPARK_DRIVER_PYTHON is for the workers of the driver itself.
    for variable in ("PYSPARK_PYTHON", "PYSPARK_DRIVER_PYTHON"):
        os.environ.setdefault(variable, sys.executable)
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    builder = SparkSession.builder.appName(name).master(master)
    ours = {**_list_default_settings(Path(work_dir).absolute()), **(_LOCAL_CHECKPOINTS if is_local else {})}
    for key, value in {**ours, **(settings or {})}.items():
        builder = builder.config(key, value)
    spark = builder.getOrCreate()
    if has_feature(SparkFeature.BATCH_READ, pyspark.__version__):
        register(spark)
    return spark


def _list_default_settings(work_dir: Path) -> dict[str, str]:
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
        # One shuffle task per core; Spark's default of 200 costs a small machine a second per batch.
        "spark.sql.shuffle.partitions": str(os.cpu_count() or 2),
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.log.level": "ERROR",
    }


def register(spark: SparkSession) -> None:
    """Register `format("tallystick")` with this session, classic or Connect. It may be called again.

    This process then reads and writes the notes in a query's checkpoint for Spark's Python workers on this
    host, on the loopback address: only it has a way to Spark's file systems. Connect has none.

    Raises: UnsupportedSpark, before PySpark 4.0. BadConfig, if this host's Python workers lack tallystick.
    """
    check_feature(SparkFeature.BATCH_READ, pyspark.__version__)
    # Named here and not imported: before 4.0 its base classes do not exist.
    source: Any = lazy.KafkaDataSource
    if hasattr(spark, "_jsparkSession"):
        if (spark.sparkContext.master or "").startswith("local"):
            check_worker_python(spark.sparkContext.pythonExec)
        # A class of its own is pickled by value, and takes the address to the driver's workers.
        address = serve(HadoopSystem(spark))
        source = type(source.__name__, (source,), {"files_address": address, "__module__": __name__})
    spark.dataSource.register(source)


def check_worker_python(command: str) -> None:
    """Check that the Python of Spark's workers on this host can import tallystick.

    Without PYSPARK_PYTHON they run whatever `python3` is on the PATH, which is another one in an environment
    that is not activated, and each query would end in a page of Java.

    Raises: BadConfig.
    """
    path = shutil.which(command)
    if path is None or Path(path).absolute() == Path(sys.executable):
        return
    answer = subprocess.run([path, "-c", "import tallystick"], capture_output=True, text=True, check=False)
    if answer.returncode != 0:
        why = (answer.stderr.strip().splitlines() or [f"exit code {answer.returncode}"])[-1]
        raise BadConfig(
            f"PYSPARK_PYTHON: Spark's workers run {path}, which cannot import tallystick ({why}): set "
            f"PYSPARK_PYTHON={sys.executable} before the session is made"
        )
