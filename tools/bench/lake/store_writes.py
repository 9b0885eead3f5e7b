"""Small dual writes into a Delta table: python -m tools.bench.lake.store_writes [--rounds N] [--rows N].

Four writers take turns, so that whatever else the machine does meets all of them: a block with rows and a
record, a block with rows alone, plain `write_deltalake` of the same rows (at least once, no topic, its file
not synced), and the same with the file and the log entry synced. Printed are the times of a write, the
processor time of this process, and writes a second.
"""

import argparse
import os
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
from deltalake import DeltaTable, write_deltalake

from tallystick import Admin
from tallystick.admin.topics import NewTopic
from tallystick.dualwrite import DeltaStore, DualWriter
from tallystick.testing import EmbeddedBroker

SCHEMA: Final = pa.schema([("n", pa.int64()), ("customer", pa.string()), ("cents", pa.int64())])
WARM_UP: Final = 5
TOPIC: Final = "payments"


class Times:
    """What each write of one kind took."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.elapsed_ms: list[float] = []
        self.processor_ms: list[float] = []

    def measure(self, write: Callable[[], object]) -> None:
        began, processor_began = time.perf_counter(), time.process_time()
        write()
        self.elapsed_ms.append((time.perf_counter() - began) * 1e3)
        self.processor_ms.append((time.process_time() - processor_began) * 1e3)

    def report(self) -> None:
        times_ms, processor_ms = sorted(self.elapsed_ms[WARM_UP:]), self.processor_ms[WARM_UP:]
        worst = times_ms[min(len(times_ms) - 1, int(len(times_ms) * 0.99))]
        per_s = 1e3 * len(times_ms) / sum(times_ms)
        print(
            f"{self.name:40} n {len(times_ms):4}  p50 {statistics.median(times_ms):6.1f} ms  "
            f"p99 {worst:6.1f} ms  processor p50 {statistics.median(processor_ms):5.1f} ms  {per_s:6.1f}/s"
        )


def sync_newest(place: Path) -> None:
    """Sync what plain `write_deltalake` has left to the operating system: the newest file and log entry."""
    log = place / "_delta_log"
    newest_file = max(place.glob("*.parquet"), key=lambda path: path.stat().st_mtime_ns)
    for path in (newest_file, place, max(log.glob("*.json")), log):
        handle = os.open(path, os.O_RDONLY)
        os.fsync(handle)
        os.close(handle)


def measure_turns(folder: Path, servers: str, rounds: int, rows: Sequence[dict[str, Any]]) -> None:
    table = pa.Table.from_pylist(list(rows), schema=SCHEMA)
    plain_place, synced_place = folder / "plain", folder / "synced"
    writers = [create_writer(folder / name, servers) for name in ("both", "rows")]

    def write_block(writer: DualWriter[Any], *, sends: bool) -> None:
        with writer.transaction() as txn:
            txn.handle.append(table)
            if sends:
                txn.send(TOPIC, b"paid")

    def write_synced() -> None:
        write_deltalake(synced_place, table, mode="append")
        sync_newest(synced_place)

    kinds: dict[str, Callable[[], object]] = {
        "rows and a record, one decision": lambda: write_block(writers[0], sends=True),
        "rows alone, by the same writer": lambda: write_block(writers[1], sends=False),
        "write_deltalake, at least once": lambda: write_deltalake(plain_place, table, mode="append"),
        "write_deltalake, synced": write_synced,
    }
    times = {name: Times(name) for name in kinds}
    for _ in range(rounds):
        for name, write in kinds.items():
            times[name].measure(write)
    for each in times.values():
        each.report()
    for writer in writers:
        writer.close()


def create_writer(place: Path, servers: str) -> DualWriter[Any]:
    config = {"bootstrap.servers": servers, "transactional.id": f"bench-{place.name}", "linger.ms": 0}
    writer: DualWriter[Any] = DualWriter(DeltaStore(place), config)
    writer.recover()
    return writer


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=200)
    parser.add_argument("--rows", type=int, default=10)
    parser.add_argument("--folder", help="where the tables are; a temporary folder by default")
    options = parser.parse_args()
    rows = [{"n": n, "customer": f"customer {n}", "cents": 350} for n in range(options.rows)]
    with tempfile.TemporaryDirectory(dir=options.folder) as name, EmbeddedBroker() as broker:
        folder, servers = Path(name), broker.bootstrap_servers
        with Admin({"bootstrap.servers": servers}) as admin:
            admin.create_topics([NewTopic(name=TOPIC, partitions=1)]).all()
        for table in ("both", "rows", "plain", "synced"):
            DeltaTable.create(folder / table, schema=SCHEMA)
        measure_turns(folder, servers, options.rounds, rows)


if __name__ == "__main__":
    main()
