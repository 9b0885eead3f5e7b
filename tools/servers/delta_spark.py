"""Delta's own library for Spark, by which the tests read and change the tables that tallystick writes."""

from typing import Final

from tools.servers.maven import Jars

VERSION: Final = "4.4.0"
SPARK: Final = "4.2"
"""The newest Spark that this version runs with."""

JARS: Final = Jars(
    name="delta-spark",
    version=VERSION,
    artifacts=(
        ("io.delta", f"delta-spark_{SPARK}_2.13", VERSION),
        ("io.delta", "delta-storage", VERSION),
        ("io.delta", "delta-kernel-api", VERSION),
        ("io.delta", "delta-kernel-defaults", VERSION),
        ("io.delta", "delta-kernel-unitycatalog", VERSION),
        ("io.unitycatalog", "unitycatalog-client", "0.6.0"),
        ("io.unitycatalog", "unitycatalog-hadoop", "0.6.0"),
    ),
    # PySpark provides their other dependencies.
    exclusions=("*",),
)


def build_session_settings() -> dict[str, str]:
    """Return the settings of a Spark session whose catalog has Delta tables.

    Raises:
        Unavailable: mvn or java is missing, or Maven failed.
    """
    return {
        "spark.jars": ",".join(sorted(map(str, JARS.take().glob("*.jar")))),
        "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
        "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
    }
