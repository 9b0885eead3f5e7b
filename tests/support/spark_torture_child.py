"""One driver of the torture: Spark, with one query over the input, until that is done or the driver is ended.

    SPARK_TORTURE=FOLDER python -m tests.support.spark_torture_child

A query that a fault stops is restarted in the same Spark: its Python workers keep their state. Each line of
`outcome` in FOLDER says how a run went: `done`, `stopped`, or the error that stopped the query.
"""

import json
import logging
import os
from pathlib import Path
from typing import Any

from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from tests.support import spark_torture_lake as lake
from tests.support.spark_torture import FOLDER, Folder, TorturedSource, connect, disturbed
from tests.support.spark_torture_database import TorturedTableStation, connect_task, sinks
from tests.support.spark_torture_queries import SHAPES
from tests.support.spark_torture_tables import is_lake

from tallystick.kernel.value import replace
from tallystick.spark import foreach_batch as foreach_batch_of
from tallystick.spark.session import spark_session
from tallystick.spark.sink.driver.foreach_topic import foreach_batch
from tallystick.testing import eventually

PARSED = [
    "cast(split(cast(value as string), ',')[0] as bigint) as id",
    "timestamp_millis(cast(split(cast(value as string), ',')[1] as bigint)) as ts",
]


def frames(spark: SparkSession, spec: dict[str, Any]) -> list[DataFrame]:
    """Return a frame of (id, ts) for each topic."""
    found, resume = [], {}
    if spec["sink"].get("onNewCheckpoint") == "resume":
        prefix = spec["sink"]["transactional.id.prefix"]
        resume = {"resume.from.prefix": prefix, "checkpointLocation": spec["checkpoint"]}
    for at, topic in enumerate(spec["topics"]):
        reader = spark.readStream.format("tortured").options(**spec["source"])
        reader = reader.option("subscribe", topic).option("maxOffsetsPerTrigger", spec["per_trigger"])
        reader = reader.option("startingOffsets", spec["starting"][at]).options(**resume)
        rows = reader.load().select("value")
        if spec["disturb_rows"]:
            rows = rows.mapInArrow(disturbed, "value binary")
        found.append(rows.selectExpr(*PARSED))
    return found


def start(spark: SparkSession, spec: dict[str, Any]) -> Any:
    rows = SHAPES[spec["shape"]].plan(*frames(spark, spec)).selectExpr("value", "value as key")
    if spec["surface"] == "foreach":
        writer = rows.writeStream.foreachBatch(foreach_batch(spec["sink"], connect=connect))
    elif is_lake(spec["database"]):
        whole: Any = foreach_batch_of(spec["sink"], *lake.sinks("out", spec["database"]))
        disturbed_whole = replace(
            whole, open_context=lake.connect_lake_task, create_lake_context=lake.TorturedLakeStation
        )
        writer = rows.writeStream.foreachBatch(disturbed_whole)
    elif spec["surface"] == "together":
        made: Any = foreach_batch_of(spec["sink"], *sinks("out"), database=spec["database"])
        tortured = replace(
            made, open_context=connect_task(spec["database"]), create_database_context=TorturedTableStation
        )
        writer = rows.writeStream.foreachBatch(tortured)
    else:
        writer = rows.writeStream.format("tortured").options(**spec["sink"])
    return writer.option("checkpointLocation", spec["checkpoint"]).trigger(availableNow=True).start()


def one_run(spark: SparkSession, spec: dict[str, Any], folder: Folder) -> str:
    query = start(spark, spec)
    folder.say("started")
    try:
        eventually(lambda: not query.isActive or folder.says("stop"), spec["limit_s"])
        if folder.says("stop"):
            query.stop()
            (folder.path / "stop").unlink()
            folder.say("stopped")
            return "stopped"
        query.explain(extended=True)
        query.awaitTermination()
    except StreamingQueryException as exc:
        return f"failed: {exc}"
    return "done"


def main() -> None:
    logging.basicConfig(level=logging.DEBUG)  # What is logged is searched for secrets.
    # It shows every argument that passes between Python and Java: every option of every format.
    logging.getLogger("py4j").setLevel(logging.INFO)
    folder = Folder(Path(os.environ[FOLDER]))
    spec = json.loads((folder.path / "spec").read_text())
    settings = {"spark.sql.shuffle.partitions": "2", "spark.sql.streaming.noDataMicroBatches.enabled": "true"}
    settings |= {f"spark.executorEnv.{name}": os.environ[name] for name in (FOLDER, "PYTHONPATH")}
    settings |= spec["settings"]
    spark = spark_session("torture", folder.path, master=spec["master"], settings=settings)
    spark.dataSource.register(TorturedSource)
    java = spark.sparkContext._gateway.proc.pid
    folder.say("pids", f"{java} {os.getpid()}")
    for _ in range(spec["runs"]):
        outcome = one_run(spark, spec, folder)
        with (folder.path / "outcome").open("a") as told:
            told.write(outcome.replace("\n", " ") + "\n")
        if outcome == "done":
            break
    spark.stop()


if __name__ == "__main__":
    main()
