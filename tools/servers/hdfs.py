"""Hadoop's HDFS in one process, for checkpoints in it; its jar is taken with Maven.

python -m tools.servers.hdfs fetch         # into .cache/hadoop-minicluster/, once (56 MB)
python -m tools.servers.hdfs classpath     # for spark.driver.extraClassPath
"""

import sys
from collections.abc import Sequence
from typing import Final

from tools.servers.maven import Jars, Unavailable

# That of the Hadoop client in PySpark 4.3.
VERSION: Final = "3.5.0"

JARS: Final = Jars(
    name="hadoop-minicluster",
    version=VERSION,
    artifacts=(("org.apache.hadoop", "hadoop-client-minicluster", VERSION),),
    # PySpark provides the client; the rest is inside the jar.
    exclusions=("*",),
)


def find_hdfs_jars() -> str:
    """Return the value of `spark.driver.extraClassPath`.

    Raises:
        Unavailable: mvn or java is missing, or Maven failed.
    """
    return ":".join(sorted(map(str, JARS.take().glob("*.jar"))))


def main(arguments: Sequence[str]) -> int:
    """Run the command line of this file."""
    try:
        match arguments:
            case ["fetch"]:
                print(f"HDFS {VERSION} is in {JARS.take()}")
            case ["classpath"]:
                print(find_hdfs_jars())
            case _:
                print(__doc__)
                return 2
    except Unavailable as exc:
        print(exc, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
