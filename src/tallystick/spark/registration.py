"""Registration of `format("tallystick")` with a session, where Spark has Python data sources."""

from typing import TYPE_CHECKING

import pyspark

import tallystick.spark as lazy
from tallystick.spark.runtime import session_advice
from tallystick.spark.runtime.versions import SparkFeature, check_feature

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def register(spark: "SparkSession") -> None:
    """Register `format("tallystick")` with this session, classic or Connect. It may be called again.

    Logs a warning, once, if rows reach Python workers over TCP.

    Raises: UnsupportedSpark, before PySpark 4.0.
    """
    check_feature(SparkFeature.BATCH_READ, pyspark.__version__)
    # Named here and not imported: before 4.0 its base classes do not exist.
    spark.dataSource.register(lazy.KafkaDataSource)
    session_advice.advise(spark)
