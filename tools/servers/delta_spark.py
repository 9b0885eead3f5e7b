"""Delta's own library for Spark, by which the tests read and change the tables that tallystick writes.

python -m tools.servers.delta_spark fetch         # into .cache/delta-spark/, once
"""

import sys
from collections.abc import Sequence
from typing import Final

from tools.servers.maven import Jars, Unavailable

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


def main(arguments: Sequence[str]) -> int:
    """Run the command line of this file."""
    if list(arguments) != ["fetch"]:
        print(__doc__)
        return 2
    try:
        print(f"Delta {VERSION} for Spark is in {JARS.take()}")
    except Unavailable as exc:
        print(exc, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
