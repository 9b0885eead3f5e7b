"""Spark's own Kafka source and sink, `format("kafka")`, to compare with; its jars are taken with Maven.

python -m tools.servers.spark_kafka fetch         # into .cache/spark-kafka/, once
python -m tools.servers.spark_kafka classpath     # for spark.jars
"""

import sys
from collections.abc import Sequence
from typing import Final

from tools.servers.maven import Jars, Unavailable

# The newest versions in Maven: there is no 4.3.0, and the delegation token part, which is unused here, ends
# at 4.0.0. PySpark 4.3 runs them.
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
    # PySpark provides their other dependencies.
    exclusions=("*",),
)


def find_spark_jars() -> str:
    """Return the value of `spark.jars`.

    Raises:
        Unavailable: mvn or java is missing, or Maven failed.
    """
    return ",".join(sorted(map(str, JARS.take().glob("*.jar"))))


def main(arguments: Sequence[str]) -> int:
    """Run the command line of this file."""
    try:
        match arguments:
            case ["fetch"]:
                print(f"Spark's Kafka connector {VERSION} is in {JARS.take()}")
            case ["classpath"]:
                print(find_spark_jars())
            case _:
                print(__doc__)
                return 2
    except Unavailable as exc:
        print(exc, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
