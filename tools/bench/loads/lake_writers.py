"""A Spark driver that writes batches into Delta tables: `python -m tools.bench.loads.lake_writers JSON`.

All writers take turns on the same batches in one session: the same JVM, equally warm, and the same rows, from
Parquet files. Each turn is the call that Spark makes of a function of `foreachBatch`, and prints a JSON line.
Processor time is that of the driver, its JVM and all Python workers; the broker's is not in it.
"""

import json
import os
import random
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final, TypedDict

import pyarrow as pa
import pyarrow.parquet as pq
from deltalake import DeltaTable, write_deltalake
from pyspark.sql import DataFrame, SparkSession
from tools.bench.loads.librdkafka import make_values
from tools.bench.loads.spark import compute_cpu_seconds, read_cpu_ticks

from tallystick.spark import foreach_batch, to_table, to_topic
from tallystick.spark.decisions.lake_row import LakeRow
from tallystick.spark.session import spark_session

TASKS: Final = 2
SCHEMA: Final = pa.schema([("id", pa.int64()), ("value", pa.string())])

OURS: Final = "table"
OURS_JOINT: Final = "topic and table"
OURS_TOPIC: Final = "topic"
DELTA_RS: Final = "write_deltalake"
KAFKA_AND_DELTA_RS: Final = "kafka, then write_deltalake"
Write = Callable[[DataFrame, int], object]


def name_place(writer: str) -> str:
    """Return the name of a writer's topic, and of its table's folder."""
    return writer.replace(" ", "-").replace(",", "")


class Plan(TypedDict):
    """What one driver does.

    writers   names of those above, which take turns in a new order each round
    settings  more of Spark's settings
    """

    master: str
    bootstrap: str
    settings: dict[str, str]
    writers: list[str]
    size: int
    rows: int
    rounds: int
    warm_up: int
    seed: int


class Turn(TypedDict):
    """One batch of one writer; `commits_ms` are the claim and the decision of the table."""

    writer: str
    round: int
    seconds: float
    cpu_seconds: float
    commits_ms: list[float]


class TimedCommits:
    """Takes the time of each commit of a batch in its table, with what is read and asked for it."""

    def __init__(self) -> None:
        self.times_ms: list[float] = []
        for name in ("claim", "decide"):
            setattr(LakeRow, name, self._time(getattr(LakeRow, name)))

    def _time(self, call: Callable[..., Any]) -> Callable[..., Any]:
        def timed(*args: Any) -> Any:
            began = time.perf_counter()
            result = call(*args)
            self.times_ms.append((time.perf_counter() - began) * 1e3)
            return result

        return timed

    def take(self) -> list[float]:
        """Return the times since the last call."""
        times_ms, self.times_ms = self.times_ms, []
        return times_ms


class Driver:
    """A session, its tables, and the writers' turns."""

    def __init__(self, spark: SparkSession, plan: Plan, folder: Path) -> None:
        self._spark, self._plan, self._folder = spark, plan, folder
        self._commits = TimedCommits()
        self._writers = {name: self._build(name) for name in plan["writers"]}

    def measure(self) -> Iterator[Turn]:
        """Yield every turn, and compare the tables with what was written in the end."""
        plan, order = self._plan, random.Random(self._plan["seed"])
        frame = self._load_rows()
        for number in range(plan["warm_up"] + plan["rounds"]):
            for name in order.sample(plan["writers"], len(plan["writers"])):
                os.sync()
                began, ticks_before = time.perf_counter(), read_cpu_ticks()
                self._writers[name](frame, number)
                turn: Turn = {
                    "writer": name,
                    "round": number - plan["warm_up"],
                    "seconds": time.perf_counter() - began,
                    "cpu_seconds": compute_cpu_seconds(ticks_before),
                    "commits_ms": self._commits.take(),
                }
                if turn["round"] >= 0:
                    yield turn
        expected_rows = plan["rows"] * (plan["warm_up"] + plan["rounds"])
        for name in plan["writers"]:
            if name != OURS_TOPIC:
                count = DeltaTable(self._find_table(name)).to_pyarrow_dataset().count_rows()
                if count != expected_rows:
                    raise RuntimeError(f"{name}: {count} rows are there, and {expected_rows} were written")

    def _load_rows(self) -> DataFrame:
        """Return the rows of a batch, in as many files as tasks."""
        folder = self._folder / "rows"
        folder.mkdir()
        texts = [text.decode("latin-1") for text in make_values(self._plan["size"])]
        count = self._plan["rows"] // TASKS
        for task in range(TASKS):
            ids = range(task * count, (task + 1) * count)
            rows = {"id": ids, "value": [texts[i % len(texts)] for i in ids]}
            pq.write_table(pa.table(rows, schema=SCHEMA), folder / f"{task}.parquet")
        return self._spark.read.parquet(str(folder))

    def _find_table(self, name: str) -> Path:
        return self._folder / name_place(name)

    def _build(self, name: str) -> Write:
        """Return the function of a writer, on a table of its own."""
        place = self._find_table(name)
        if name != OURS_TOPIC:
            DeltaTable.create(place, schema=SCHEMA)
        match name:
            case "table" | "topic and table" | "topic":
                topic = (to_topic(place.name, value="value"),) if name != OURS else ()
                table = (to_table(f"delta:{place}"),) if name != OURS_TOPIC else ()
                options = {**self._list_kafka_options(), "transactional.id.prefix": f"bench/{place.name}"}
                return foreach_batch(options, *topic, *table, query_id=name)
            case "write_deltalake":
                return lambda frame, _: write_deltalake(place, frame.toArrow(), mode="append")
            case _:
                options = {**self._list_kafka_options(), "topic": place.name}

                def write_both(frame: DataFrame, _: int) -> None:
                    frame.select("value").write.format("kafka").options(**options).save()
                    write_deltalake(place, frame.toArrow(), mode="append")

                return write_both

    def _list_kafka_options(self) -> dict[str, str]:
        # The built-in sink gets our default batch size, as in loads/spark.py.
        batching = {"kafka.batch.size": "262144", "kafka.linger.ms": "5"}
        return {"kafka.bootstrap.servers": self._plan["bootstrap"], **batching}


def main() -> None:
    """Read the plan from the only argument, carry it out, and print a line for each turn."""
    plan: Plan = json.loads(sys.argv[1])
    with tempfile.TemporaryDirectory(prefix="bench-lake-", ignore_cleanup_errors=True) as directory:
        folder = Path(directory)
        settings = {"spark.sql.files.minPartitionNum": str(TASKS), **plan["settings"]}
        spark = spark_session("bench", folder, master=plan["master"], settings=settings)
        try:
            for turn in Driver(spark, plan, folder).measure():
                print(json.dumps(turn), flush=True)
        finally:
            spark.stop()


if __name__ == "__main__":
    main()
