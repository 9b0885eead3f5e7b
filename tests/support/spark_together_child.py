"""A driver killed (SIGKILL) at one point of a decision in a database; started by test_spark_together.

    python -m tests.support.spark_together_child BOOTSTRAP PREFIX TOPIC URL FOLDER

The point is after the database's commit, and before the first EndTxn.
"""

import os
import signal
import sys
from collections.abc import Collection, Mapping
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from tallystick.client.errors import ClientError
from tallystick.client.net.cluster import Cluster
from tallystick.client.transactions.modes import TxnDecision
from tallystick.kernel.value import replace
from tallystick.spark import foreach_batch, spark_session, to_table, to_topic
from tallystick.spark.decisions.store_log import DatabaseParticipants
from tallystick.spark.protocol.committable import Participant
from tallystick.spark.protocol.ports import DecisionLogPort, ParticipantsPort
from tallystick.spark.sink.driver.database_context import DatabaseSinkContext


class Dying(DatabaseParticipants):
    async def end(
        self, participants: Collection[Participant], transaction_version: int, wish: TxnDecision
    ) -> Mapping[str, ClientError]:
        os.kill(os.getpid(), signal.SIGKILL)
        return {}


class DyingStation(DatabaseSinkContext):
    def create_ports(self, cluster: Cluster) -> tuple[ParticipantsPort, DecisionLogPort]:
        participants, log = super().create_ports(cluster)
        return Dying(participants, self.decision_row), log


def lines(spark: SparkSession, folder: Path) -> DataFrame:
    """Return the lines of one file per batch; they are `<batch>-<row>`."""
    found = spark.readStream.option("maxFilesPerTrigger", 1).text(str(folder / "in"))
    return found.repartition(2).selectExpr(
        "value as id",
        "cast(split_part(value, '-', 1) as int) as batch",
        "cast(split_part(value, '-', 2) as int) as row_number",
    )


def sinks(topic: str) -> tuple[object, ...]:
    return (
        to_topic(topic, key="id", value="id"),
        to_table("every_row", columns=["id", "batch"]),
        to_table("latest", columns=["row_number", "batch"], write="upsert", keys=["row_number"]),
    )


def main(bootstrap: str, prefix: str, topic: str, url: str, folder: str) -> None:
    spark = spark_session("dies", Path(folder), master="local[2]")
    options = {"kafka.bootstrap.servers": bootstrap, "transactional.id.prefix": prefix}
    write = foreach_batch(options, *sinks(topic), database=url)
    write = replace(write, create_database_context=DyingStation)  # type: ignore[type-var]
    query: StreamingQuery = (
        lines(spark, Path(folder))
        .writeStream.foreachBatch(write)
        .option("checkpointLocation", str(Path(folder) / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()


if __name__ == "__main__":
    main(*sys.argv[1:])
