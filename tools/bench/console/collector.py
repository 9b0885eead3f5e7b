"""Measure the console's collector: `python -m tools.bench.console.collector [--transactions N] [--groups N]`.

First each reading by itself, beside many open transactions, groups and rows of a store; then the whole
collector for a while, beside producers that commit. Processor time is this process's: the broker is another.
"""

import argparse
import asyncio
import gc
import json
import subprocess
import sys
import tempfile
import time
import tracemalloc
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from sqlalchemy import create_engine, insert
from tools.bench.brokers import OURS, create_topic, run_fresh
from tools.bench.raw import Raw, ask_until_done, run_for_each
from tools.bench.rows import OS
from tools.bench.transactional_ids import TOPIC, open_transactions
from tools.servers.broker_process import BrokerProcess

from tallystick.client.offsets import GroupMetadata, OffsetAndMetadata, build_offset_commit_request
from tallystick.client.transactions.prepared import PreparedTxnState
from tallystick.console.collect.collector import Collector
from tallystick.console.collect.config import CollectorConfig
from tallystick.dualwrite.rules.model import StoredState, to_columns
from tallystick.dualwrite.stores.sql import SqlStore
from tallystick.kernel.ids import TopicPartition
from tallystick.protocol.messages.groups.offset_commit import OffsetCommitResponse

PARTITIONS = 12
REPEATS = 5
COMMIT_VERSION = 9
LOAD_TOPIC = "load"
PRODUCERS = 24


def fill_groups(bootstrap: str, count: int) -> None:
    """Commit an offset in each partition for many groups."""

    async def one(raw: Raw, number: int) -> None:
        offsets = {TopicPartition(TOPIC, index): OffsetAndMetadata(1) for index in range(PARTITIONS)}
        request = build_offset_commit_request(GroupMetadata(group_id=f"group-{number}"), offsets)
        await ask_until_done(
            lambda: raw.ask(request, OffsetCommitResponse, COMMIT_VERSION),
            lambda answer: answer.topics[0].partitions[0].error_code,
        )

    asyncio.run(run_for_each(bootstrap, range(count), one))


def fill_store(folder: Path, count: int) -> str:
    """Make an SQLite store with a row for each open transaction."""
    url = f"sqlite:///{folder}/shop.db"
    engine = create_engine(url)
    store = SqlStore(engine)
    store.create()
    rows = [
        StoredState(transactional_id=f"open-{n}", owner="bench", state=PreparedTxnState(f"{n}:0"))
        for n in range(count)
    ]
    with engine.begin() as connection:
        connection.execute(insert(store.tables.states), [to_columns(row) for row in rows])
    engine.dispose()
    return url


async def measure(name: str, read: Callable[[], Awaitable[Any]]) -> None:
    """Print the times of the first reading, and the least of some later ones."""
    times = []
    for _ in range(REPEATS):
        gc.collect()
        began, cpu_s = time.perf_counter(), time.process_time()
        await read()
        times.append((time.perf_counter() - began, time.process_time() - cpu_s))
    first, least = times[0], min(times[1:], key=lambda each: each[1])
    print(
        f"{name:24} first {first[0] * 1000:7.0f} ms, {first[1] * 1000:7.0f} ms of processor; "
        f"later {least[0] * 1000:7.0f} ms, {least[1] * 1000:7.0f} ms of processor"
    )


async def measure_parts(config: CollectorConfig) -> None:
    """Measure the parts one by one, with the collector's own readers."""
    collector = Collector(config)
    parts = collector._list_parts()
    for part in parts:
        await measure(part.name, lambda part=part: collector._read(part))  # type: ignore[misc]
    await measure("ids counted", collector._transactions.count_ids)
    print({part.name: part.find(collector._draft).status.failures for part in parts})
    tracemalloc.start()
    before = tracemalloc.get_traced_memory()[0]
    for part in parts:
        await collector._read(part)
    print(f"memory of one round: {(tracemalloc.get_traced_memory()[0] - before) / 2**20:.1f} MiB")
    tracemalloc.stop()
    await collector.close()


async def measure_share(config: CollectorConfig, seconds: float) -> float:
    """Return the share of a core that a running collector takes."""
    async with Collector(config) as collector:
        async for snapshot in collector.follow():
            if snapshot.groups.status.read_ms:
                break
        cpu_s, began = time.process_time(), time.perf_counter()
        await asyncio.sleep(seconds)
        share = (time.process_time() - cpu_s) / (time.perf_counter() - began)
        last = collector.snapshot
        print(f"{last.number} snapshots, {len(last.transactions.descriptions)} open in the last")
        return share


def run_load(process: BrokerProcess, seconds: float) -> subprocess.Popen[str]:
    load = {
        "client": "tallystick",
        "bootstrap": process.bootstrap,
        "topic": LOAD_TOPIC,
        "partitions": PARTITIONS,
        "producers": PRODUCERS,
        "warm_up_s": 1.0,
        "seconds": seconds,
        "size": 100,
    }
    command = [sys.executable, "-m", "tools.bench.loads.transactions", json.dumps(load)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


def main() -> None:
    """Run both measurements."""
    options = argparse.ArgumentParser()
    options.add_argument("--transactions", type=int, default=10_000)
    options.add_argument("--groups", type=int, default=1_000)
    options.add_argument("--seconds", type=float, default=30.0)
    arguments = options.parse_args()
    with tempfile.TemporaryDirectory() as folder, run_fresh(OURS, OS) as process:
        client = {"bootstrap.servers": process.bootstrap}
        if arguments.transactions:
            open_transactions(process, arguments.transactions, PARTITIONS)
            fill_groups(process.bootstrap, arguments.groups)
            url = fill_store(Path(folder), arguments.transactions)
            asyncio.run(measure_parts(CollectorConfig.check(client, [url])))
    with run_fresh(OURS, OS) as process:
        create_topic(process, LOAD_TOPIC, PARTITIONS)
        config = CollectorConfig.check({"bootstrap.servers": process.bootstrap})
        load = run_load(process, arguments.seconds + 5)
        share = asyncio.run(measure_share(config, arguments.seconds))
        load_report = json.loads(load.communicate()[0])
        rate = load_report["committed"] / arguments.seconds
        print(f"share of a core beside the load: {share * 100:.1f} %; {rate:.0f} transactions/s")


if __name__ == "__main__":
    main()
