"""Registration of `format("tallystick")` with a session, where Spark has Python data sources."""

from typing import TYPE_CHECKING, Any

import pyspark

import tallystick.spark as lazy
from tallystick.spark.files.hadoop import HadoopSystem
from tallystick.spark.files.served import serve
from tallystick.spark.runtime.versions import SparkFeature, check_feature

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def register(spark: "SparkSession") -> None:
    """Register `format("tallystick")` with this session, classic or Connect. It may be called again.

    This process then reads and writes the notes in a query's checkpoint for Spark's Python workers on this
    host, on the loopback address: only it has a way to Spark's file systems. Connect has none.

    Raises: UnsupportedSpark, before PySpark 4.0.
    """
    check_feature(SparkFeature.BATCH_READ, pyspark.__version__)
    # Named here and not imported: before 4.0 its base classes do not exist.
    source: Any = lazy.KafkaDataSource
    if hasattr(spark, "_jsparkSession"):
        # A class of its own is pickled by value, and takes the address to the driver's workers.
        address = serve(HadoopSystem(spark))
        source = type(source.__name__, (source,), {"files_address": address, "__module__": __name__})
    spark.dataSource.register(source)
