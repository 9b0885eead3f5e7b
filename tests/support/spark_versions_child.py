"""One use of tallystick from whatever PySpark comes first on the path: BOOTSTRAP USE FOLDER."""

import os
import sqlite3
import sys
from pathlib import Path

import pyarrow as pa
import pyspark
from deltalake import DeltaTable
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming import DataStreamWriter
from tools.servers.delta_spark import build_session_settings

from tallystick.spark import foreach_batch, register, register_serializer, to_table, to_topic
from tallystick.spark.runtime.java import find_java_home
from tallystick.spark.sink.driver.foreach_topic import foreach_batch as foreach_topic

BATCHES = 6
ROWS_A_BATCH = 50
ROWS = [f"row-{number}" for number in range(BATCHES * ROWS_A_BATCH)]


def _start_spark(folder: Path, settings: dict[str, str]) -> SparkSession:
    os.environ["JAVA_HOME"] = str(find_java_home())
    os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"
    builder = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false")
    spark = builder.config(map={"spark.local.dir": str(folder / "local"), **settings}).getOrCreate()
    assert spark.version == pyspark.__version__, "a Spark of another version"
    return spark


def _read_rows(spark: SparkSession, folder: Path) -> DataFrame:
    """Return a stream of one file for each batch."""
    files = folder / "rows"
    files.mkdir(exist_ok=True)
    for at in range(BATCHES):
        file = files / f"{at}.txt"
        if not file.exists():
            file.write_text("\n".join(ROWS[at * ROWS_A_BATCH : (at + 1) * ROWS_A_BATCH]))
    return spark.readStream.option("maxFilesPerTrigger", 1).text(str(files))


def lake_table(folder: Path) -> str:
    """Return the lake table of a run, as users name it."""
    return f"delta:{folder}/rows-table"


def create_lake_table(folder: Path) -> None:
    schema = pa.schema([("value", pa.string())])
    DeltaTable.create(f"{folder}/rows-table", schema, mode="ignore")


def _run(writer: DataStreamWriter, folder: Path) -> None:
    checkpoint = str(folder / "checkpoint")
    writer.option("checkpointLocation", checkpoint).trigger(availableNow=True).start().awaitTermination()


def run_beside_delta_spark(spark: SparkSession, sink: dict[str, str], folder: Path) -> None:
    """Write to a table by its name in Spark's catalog; Delta's library makes, changes and reads it."""
    properties = "TBLPROPERTIES (delta.checkpointInterval = 2)"
    is_new = not (folder / "rows table").exists()
    spark.sql(
        f"CREATE TABLE IF NOT EXISTS rows (value STRING) USING delta LOCATION '{folder}/rows table'"
        + (f" {properties}" if is_new else "")
    )
    if not is_new:  # a driver was killed
        spark.sql("INSERT INTO rows VALUES ('of another')")
        spark.sql("OPTIMIZE rows")
    both = foreach_batch(
        sink, to_topic("out", value="value"), to_table("delta:spark_catalog.default.rows", columns=["value"])
    )
    _run(_read_rows(spark, folder).writeStream.foreachBatch(both), folder)
    spark.sql("UPDATE rows SET value = 'changed' WHERE value = 'of another'")
    with (folder / "read").open("a") as file:
        file.writelines(f"{row.value}\n" for row in spark.table("rows").collect())


def main(bootstrap: str, use: str, folder: Path) -> None:
    """Run it. What it reads ends up in FOLDER/read, a line for each row."""
    spark = _start_spark(folder, build_session_settings() if use == "DELTA_SPARK" else {})
    kafka = {"kafka.bootstrap.servers": bootstrap}
    sink = {**kafka, "transactional.id.prefix": use.lower()}
    if use == "FOREACH_BATCH":
        _run(
            _read_rows(spark, folder).writeStream.foreachBatch(foreach_topic({**sink, "topic": "out"})),
            folder,
        )
    elif use == "FOREACH_BATCH_WITH_TABLE":
        with sqlite3.connect(folder / "rows.db") as database:
            database.execute("CREATE TABLE IF NOT EXISTS out (value TEXT)")
        url = f"sqlite:///{folder}/rows.db"
        both = foreach_batch(
            sink, to_topic("out", value="value"), to_table("out", columns=["value"]), database=url
        )
        _run(_read_rows(spark, folder).writeStream.foreachBatch(both), folder)
    elif use == "REGISTER_SERIALIZER":
        register_serializer(spark, "encode", {}, topic="out")
    elif use == "DELTA_SPARK":
        run_beside_delta_spark(spark, sink, folder)
    elif use == "FOREACH_BATCH_WITH_LAKE":
        create_lake_table(folder)
        both = foreach_batch(
            sink, to_topic("out", value="value"), to_table(lake_table(folder), columns=["value"])
        )
        _run(_read_rows(spark, folder).writeStream.foreachBatch(both), folder)
    else:
        register(spark)
        if use == "BATCH_WRITE":
            rows = spark.createDataFrame([(row,) for row in ROWS], "value string")
            rows.write.format("tallystick").options(**sink, topic="out").mode("append").save()
        elif use == "STREAM_WRITE":
            rows = _read_rows(spark, folder)
            _run(rows.writeStream.format("tallystick").options(**sink, topic="out"), folder)
        elif use == "STREAM_WRITE_WITH_SCHEMA":
            avro = {"schema.registry.url": os.environ["REGISTRY"], "value.format": "avro"}
            options = {**sink, **avro, "auto.register.schemas": "true", "topic": "out"}
            rows = _read_rows(spark, folder).selectExpr("struct(value AS text) AS value")
            _run(rows.writeStream.format("tallystick").options(**options), folder)
        elif use == "STREAM_WRITE_WITH_LAKE":
            create_lake_table(folder)
            rows = _read_rows(spark, folder).selectExpr("value", "struct(value) AS row")
            both = rows.writeStream.format("tallystick").options(
                **sink, topic="out", table=lake_table(folder)
            )
            _run(both, folder)
        elif use == "BATCH_READ":
            frame = spark.read.format("tallystick").options(**kafka, subscribe="in").load()
            _note(frame, folder)
        elif use == "STREAM_READ":
            options = {
                **kafka,
                "subscribe": "in",
                "startingOffsets": "earliest",
                "maxOffsetsPerTrigger": "60",
            }
            frame = spark.readStream.format("tallystick").options(**options).load()
            _run(frame.writeStream.foreachBatch(lambda rows, _: _note(rows, folder)), folder)
    spark.stop()


def _note(frame: DataFrame, folder: Path) -> None:
    with (folder / "read").open("a") as file:
        file.writelines(f"{bytes(row.value).decode()}\n" for row in frame.select("value").collect())


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], Path(sys.argv[3]))
