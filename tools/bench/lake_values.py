"""Micro-batches into a topic and a Delta table: python -m tools.bench.lake_values [--batches N] [--rows N].

Three writers take turns on the same batches, in one Spark session: topic and table in one decision, the topic
alone, and plain `write_deltalake` of the whole batch in the driver (at least once, no topic). Printed are the
times of a batch, what the two commits of the table take of it, and the gap: from the decision until a reader
of committed records has the batch's first record.
"""

import argparse
import statistics
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Final

import psutil
import pyarrow as pa
from deltalake import DeltaTable, write_deltalake

from tallystick import Admin, Consumer
from tallystick.admin.topics import NewTopic
from tallystick.spark import foreach_batch, spark_session, to_table, to_topic
from tallystick.spark.decisions.lake_row import LakeRow
from tallystick.testing import EmbeddedBroker

SCHEMA: Final = pa.schema([("id", pa.int64()), ("batch", pa.int32())])
WARM_UP: Final = 5
_LINGER_S: Final = 2.0


class TimedCommits:
    """The times of the table's commits, in ms, and the moment at which each batch was decided."""

    def __init__(self) -> None:
        self.claims: list[float] = []
        self.decisions: list[float] = []
        self.decided_at: dict[int, float] = {}
        claim, decide = LakeRow.claim, LakeRow.decide

        def timed_claim(row: LakeRow, *args: Any) -> bool:
            began = time.perf_counter()
            result = claim(row, *args)
            self.claims.append((time.perf_counter() - began) * 1e3)
            return result

        def timed_decide(row: LakeRow, decision: Any, *args: Any) -> None:
            began = time.perf_counter()
            decide(row, decision, *args)
            now = time.perf_counter()
            self.decisions.append((now - began) * 1e3)
            self.decided_at[decision.batch_id] = now

        LakeRow.claim = timed_claim  # type: ignore[method-assign,assignment]
        LakeRow.decide = timed_decide  # type: ignore[method-assign,assignment]


@contextmanager
def first_times_of(servers: str, topic: str) -> Iterator[dict[int, float]]:
    """Read a topic's committed records in a thread; yield when the first record of each batch was there."""
    first_times: dict[int, float] = {}
    is_over = threading.Event()

    def read() -> None:
        config = {
            "bootstrap.servers": servers,
            "group.id": "bench",
            "auto.offset.reset": "earliest",
            "isolation.level": "read_committed",
            "fetch.max.wait.ms": "5",
        }
        with Consumer(config) as consumer:
            consumer.subscribe([topic])
            while not is_over.is_set():
                records = consumer.poll(0.05) or ()
                now = time.perf_counter()
                for record in records:
                    first_times.setdefault(int(record.value or b"-1"), now)

    thread = threading.Thread(target=read)
    thread.start()
    try:
        yield first_times
    finally:
        is_over.wait(_LINGER_S)
        is_over.set()
        thread.join()


def measure(batches: int, rows: int, folder: Path, servers: str) -> None:
    spark = spark_session("spark_lake", folder, master="local[2]")
    for name in ("joint", "plain"):
        DeltaTable.create(folder / name, schema=SCHEMA)
    with Admin({"bootstrap.servers": servers}) as admin:
        admin.create_topics([NewTopic(name=name, partitions=2) for name in ("joint", "topic")]).all()

    def build(name: str, *tables: Any) -> Callable[[Any, int], None]:
        kafka = {"kafka.bootstrap.servers": servers, "transactional.id.prefix": name}
        return foreach_batch(kafka, to_topic(name, value="cast(batch as string)"), *tables, query_id=name)

    def write_plain(frame: Any, _: int) -> None:
        write_deltalake(folder / "plain", frame.toArrow().cast(SCHEMA), mode="append")

    writers = {
        "topic and table": build("joint", to_table(f"delta:{folder / 'joint'}")),
        "topic": build("topic"),
        "write_deltalake": write_plain,
    }
    times: dict[str, list[float]] = {name: [] for name in writers}
    processor: dict[str, list[float]] = {name: [] for name in writers}
    commits = TimedCommits()
    with first_times_of(servers, "joint") as first_times:
        for batch in range(batches):
            frame = spark.range(batch * rows, (batch + 1) * rows, 1, 2)
            frame = frame.selectExpr("id", f"cast(id div {rows} as int) as batch")
            for name, write in writers.items():
                began, processor_ms = time.perf_counter(), read_processor_ms()
                write(frame, batch)
                times[name].append((time.perf_counter() - began) * 1e3)
                processor[name].append(read_processor_ms() - processor_ms)
    spark.stop()
    for name, values in times.items():
        report(name, values[WARM_UP:])
    for name, values in processor.items():
        report(f"{name}, processor time", values[WARM_UP:])
    pairs = zip(times["topic and table"][WARM_UP:], times["topic"][WARM_UP:], strict=True)
    report("joint decision, over the topic alone", [joint - alone for joint, alone in pairs])
    report("claim of the table", commits.claims[WARM_UP:])
    report("decision in the table", commits.decisions[WARM_UP:])
    read_batches = [n for n in commits.decided_at if n in first_times and n >= WARM_UP]
    gaps = [(first_times[n] - commits.decided_at[n]) * 1e3 for n in read_batches]
    report("gap from the decision to the topic's reader", gaps)


def read_processor_ms() -> float:
    """Return the processor time of this process and all below it: Java, Python workers, the broker."""
    total_s = 0.0
    for process in (psutil.Process(), *psutil.Process().children(recursive=True)):
        with suppress(psutil.Error):
            cpu = process.cpu_times()
            total_s += cpu.user + cpu.system
    return total_s * 1e3


def report(name: str, values: Sequence[float]) -> None:
    in_order = sorted(values)
    worst = in_order[min(len(in_order) - 1, int(len(in_order) * 0.99))]
    print(f"{name:44} n {len(in_order):4}  p50 {statistics.median(in_order):7.1f} ms  p99 {worst:7.1f} ms")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--batches", type=int, default=100)
    parser.add_argument("--rows", type=int, default=200)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder, EmbeddedBroker() as broker:
        measure(options.batches, options.rows, Path(folder), broker.bootstrap_servers)


if __name__ == "__main__":
    main()
