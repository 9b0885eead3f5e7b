"""Spark's own Kafka source and sink, to compare ours with: `format("kafka")`, its jars taken with Maven.

python -m tools.spark_kafka fetch         # into .cache/spark-kafka/, once
python -m tools.spark_kafka classpath     # for spark.jars
"""

import sys
from collections.abc import Sequence
from typing import Final

from tools.maven import Jars, Unavailable

# The newest that Maven found: there was no 4.3.0, and of the part that renews delegation tokens, which nobody
# uses here, none after 4.0.0. PySpark 4.3 runs them.
VERSION: Final = "4.2.0"

JARS: Final = Jars(
    name="spark-kafka",
    version=VERSION,
    artifacts=(
        ("org.apache.spark", "spark-sql-kafka-0-10_2.13", VERSION),
        ("org.apache.spark", "spark-token-provider-kafka-0-10_2.13", "4.0.0"),
        ("org.apache.kafka", "kafka-clients", "3.9.1"),
        ("org.apache.commons", "commons-pool2", "2.12.0"),
    ),
    # PySpark brings what else they need.
    excluded=("*",),
)


def spark_jars() -> str:
    """The value of `spark.jars`. Raises: Unavailable."""
    return ",".join(sorted(map(str, JARS.take().glob("*.jar"))))


def main(arguments: Sequence[str]) -> int:
    """The command line of this file."""
    try:
        match arguments:
            case ["fetch"]:
                print(f"Spark's Kafka connector {VERSION} is in {JARS.take()}")
            case ["classpath"]:
                print(spark_jars())
            case _:
                print(__doc__)
                return 2
    except Unavailable as exc:
        print(exc, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
