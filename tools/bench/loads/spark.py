"""A Spark driver as a process: `python -m tools.bench.loads.spark JSON` prints a JSON line per run.

Our connector and Spark's own run in the same session, one after the other: the same JVM, equally warm, and
the same rows, from Parquet files. Processor time is that of the driver, its JVM and all Python workers.
"""

import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final, NotRequired, TypedDict

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession
from tools.bench.loads.librdkafka import make_values
from tools.bench.spark_parts import NAME, PARTS_FILE, TimedSource, read_parts

from tallystick.spark.session import spark_session

TASKS: Final = 2
BATCHES: Final = 4
"""Micro-batches per AvailableNow query."""

BATCH_ROWS: Final = 10
_PATIENCE_S: Final = 3600


class Run(TypedDict):
    """One measurement.

    kind    sink (Parquet to `topic`), source (`source` to noop), stream (`source` to `topic`, AvailableNow),
            parts (the same in batches of 10 rows, all rows read by Spark's own source)
    """

    kind: str
    connector: str
    topic: str
    source: str
    messages: int
    size: int
    codec: str


class Plan(TypedDict):
    """The runs of one driver, in order."""

    master: str
    bootstrap: str
    jars: str
    runs: list[Run]


class RunTiming(TypedDict):
    """Elapsed seconds and processor time; for `parts`, medians in ms."""

    seconds: float
    cpu_seconds: float
    parts_ms: NotRequired[dict[str, float]]


def read_cpu_ticks() -> dict[int, int]:
    """Return the processor time by process: this one and its descendants, with their waited-for children."""
    parent_and_ticks: dict[int, tuple[int, int]] = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = stat.read_text().rpartition(")")[2].split()
        except OSError:
            continue  # the process has ended meanwhile
        parent_and_ticks[int(stat.parent.name)] = int(fields[1]), sum(map(int, fields[11:15]))

    def is_own(pid: int) -> bool:
        while pid in parent_and_ticks and pid != os.getpid():
            pid = parent_and_ticks[pid][0]
        return pid == os.getpid()

    return {pid: ticks for pid, (_, ticks) in parent_and_ticks.items() if is_own(pid)}


def compute_cpu_seconds(before: dict[int, int]) -> float:
    """Return the processor seconds of the processes running now, since `before`.

    PySpark ends idle workers without waiting for them, so their time is not counted.
    """
    ticks = sum(now - before.get(pid, 0) for pid, now in read_cpu_ticks().items())
    return ticks / os.sysconf("SC_CLK_TCK")


class Driver:
    """A session, and the runs in it."""

    def __init__(self, spark: SparkSession, bootstrap: str, folder: Path) -> None:
        self._spark, self._bootstrap, self._folder = spark, bootstrap, folder
        self._queries = 0

    def measure(self, run: Run) -> RunTiming:
        """Do one run and check that every row is there once."""
        self._queries += 1
        work = self._plan_work(run)
        os.sync()
        began, ticks_before = time.perf_counter(), read_cpu_ticks()
        work()
        timing: RunTiming = {
            "seconds": time.perf_counter() - began,
            "cpu_seconds": compute_cpu_seconds(ticks_before),
        }
        if run["kind"] != "source":
            # Read with Spark's own source, whichever connector wrote.
            options = {**self._list_client_options(run), "kafka.isolation.level": "read_committed"}
            count = self._spark.read.format("kafka").options(**options, subscribe=run["topic"]).load().count()
            if count != run["messages"]:
                raise RuntimeError(f"{run}: {count} rows are there")
        if run["kind"] == "parts":
            timing["parts_ms"] = self._read_parts_ms(run)
        return timing

    def _plan_work(self, run: Run) -> Callable[[], object]:
        match run["kind"]:
            case "sink":
                writer = self._load_rows(run).write.format(run["connector"]).mode("append")
                return writer.options(**self._list_sink_options(run)).save
            case "source":
                reader = self._spark.read.format(run["connector"]).options(**self._list_client_options(run))
                rows = reader.option("subscribe", run["source"]).load()
                return rows.write.format("noop").mode("overwrite").save
        return lambda: self._run_query(run)

    def _load_rows(self, run: Run) -> DataFrame:
        folder = self._folder / f"rows-{run['size']}-{run['messages']}"
        if not folder.exists():
            folder.mkdir()
            texts = make_values(run["size"])
            count = run["messages"] // TASKS
            table = pa.table({"value": pa.array([texts[i % len(texts)] for i in range(count)])})
            for task in range(TASKS):
                pq.write_table(table, folder / f"{task}.parquet")
        return self._spark.read.parquet(str(folder))

    def _run_query(self, run: Run) -> None:
        parts = run["kind"] == "parts"
        rows = (
            self._spark.readStream.format("kafka" if parts else run["connector"])
            .options(**self._list_client_options(run), subscribe=run["source"], startingOffsets="earliest")
            .option("maxOffsetsPerTrigger", BATCH_ROWS if parts else run["messages"] // BATCHES)
            .load()
            .select("key", "value")
        )
        connector = NAME if parts and run["connector"] == "tallystick" else run["connector"]
        query = (
            rows.writeStream.format(connector)
            .options(**self._list_sink_options(run))
            .option("checkpointLocation", str(self._folder / f"checkpoint-{self._queries}"))
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination(_PATIENCE_S)
        self._add_batch_ms = [
            progress["durationMs"]["addBatch"]
            for progress in query.recentProgress
            if "addBatch" in progress["durationMs"]
        ]

    def _read_parts_ms(self, run: Run) -> dict[str, float]:
        times_ms = {"addBatch": list(map(float, self._add_batch_ms))}
        if run["connector"] == "tallystick":
            times_ms |= read_parts(Path(os.environ[PARTS_FILE]))
        return {name: statistics.median(values_ms) for name, values_ms in times_ms.items()}

    def _list_client_options(self, run: Run) -> dict[str, str]:
        return {"kafka.bootstrap.servers": self._bootstrap}

    def _list_sink_options(self, run: Run) -> dict[str, str]:
        # The built-in sink gets our default batch size; its own is 16 KiB.
        batching = {"kafka.batch.size": "262144", "kafka.linger.ms": "5"}
        naming = (
            {"transactional.id.prefix": f"bench/{run['topic']}"} if run["connector"] == "tallystick" else {}
        )
        return {
            **self._list_client_options(run),
            **batching,
            **naming,
            "kafka.compression.type": run["codec"],
            "topic": run["topic"],
        }


def main() -> None:
    """Read the plan from the only argument, carry it out, and print the time of each run."""
    plan: Plan = json.loads(sys.argv[1])
    with tempfile.TemporaryDirectory(prefix="bench-spark-", ignore_cleanup_errors=True) as directory:
        folder = Path(directory)
        os.environ[PARTS_FILE] = str(folder / "parts")
        settings = {
            "spark.jars": plan["jars"],
            "spark.sql.files.minPartitionNum": str(TASKS),
            "spark.sql.streaming.numRecentProgressUpdates": "100000",
        }
        spark = spark_session("bench", folder, master=plan["master"], settings=settings)
        spark.dataSource.register(TimedSource)
        try:
            driver = Driver(spark, plan["bootstrap"], folder)
            for run in plan["runs"]:
                print(json.dumps(driver.measure(run)), flush=True)
        finally:
            spark.stop()


if __name__ == "__main__":
    main()
