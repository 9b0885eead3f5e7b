"""Hadoop's HDFS in one process, for checkpoints in it; Maven takes its jar (56 MB) into .cache, once."""

from typing import Final

from tools.servers.maven import Jars

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
