"""Measure our part of a micro-batch without Spark: `python -m tools.bench.spark_alone [--batches N]`.

Processes do what Spark's do: one begins each batch, two write ten rows of it at the same time, one commits
it. Each is the same for all batches. Between two batches is the time that Spark takes for its own logs.
Prints the p50 of each part as one line of JSON. `--bootstrap` measures on a broker that runs already, so that
two versions of the sink can take turns on it.
"""

import argparse
import json
import multiprocessing
import os
import statistics
import sys
import tempfile
import time
from contextlib import ExitStack
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Final

import pyarrow as pa
from tools.bench.brokers import OURS, create_topic, run_fresh
from tools.bench.spark import BATCH_ROWS, BROKER
from tools.bench.spark_parts import PARTS_FILE, connect, read_parts, time_part

from tallystick.admin import Admin
from tallystick.spark.options.option_table import QueryType
from tallystick.spark.options.sink_options import parse_sink_options
from tallystick.spark.protocol.committable import (
    MicroBatch,
    decode_lease,
    decode_vote,
    encode_lease,
    encode_vote,
)
from tallystick.spark.sink.attempt import run_attempt

QUERY: Final = "q"
TASKS: Final = 2
WARM_UP: Final = 10
PAUSE_MS: Final = 60
"""Time between two batches, by default: Spark's commit log, and its offset log of the next batch."""

VALUE: Final = b"x" * 100


def work(role: str, raw_options: dict[str, str], pipe: Connection) -> None:
    """Do one role's work for each message, until there is none."""
    os.environ["SPARK_REUSE_WORKER"] = "1"
    options = parse_sink_options(raw_options, QueryType.STREAM)
    rows = pa.record_batch({"value": pa.array([VALUE] * (BATCH_ROWS // TASKS), pa.binary())})
    while (message := pipe.recv()) is not None:
        number, argument = message
        start_s = time.perf_counter()
        context = connect(options)
        if role == "begin":
            result = encode_lease(context.begin(query_id=QUERY))
        elif role == "commit":
            context.commit([decode_vote(vote) for vote in argument])
            result = b""
        else:
            lease = decode_lease(argument)
            with time_part("task"):
                vote = run_attempt(context, lease, MicroBatch(QUERY, number), [rows])
            result = encode_vote(vote)
        pipe.send((result, (time.perf_counter() - start_s) * 1000))


class Roles:
    """The processes, by role."""

    def __init__(self, options: dict[str, str]) -> None:
        spawning = multiprocessing.get_context("spawn")
        self._pipes: dict[str, Connection] = {}
        self._processes = []
        for role in ("begin", "commit", *(f"task {number}" for number in range(TASKS))):
            self._pipes[role], theirs = spawning.Pipe()
            process = spawning.Process(target=work, args=(role, options, theirs), daemon=True)
            process.start()
            self._processes.append(process)

    def batch(self, number: int) -> dict[str, float]:
        """Run one batch; return the milliseconds of its phases, and their sum."""
        lease, begin_ms = self._ask("begin", number, b"")
        tasks = [name for name in self._pipes if name.startswith("task")]
        for name in tasks:
            self._pipes[name].send((number, lease))
        votes = [self._pipes[name].recv() for name in tasks]
        _, commit_ms = self._ask("commit", number, [vote for vote, _ in votes])
        tasks_ms = max(duration_ms for _, duration_ms in votes)
        return {
            "begin": begin_ms,
            "slower task": tasks_ms,
            "commit": commit_ms,
            "ours": begin_ms + tasks_ms + commit_ms,
        }

    def _ask(self, role: str, number: int, argument: object) -> tuple[bytes, float]:
        self._pipes[role].send((number, argument))
        result: tuple[bytes, float] = self._pipes[role].recv()
        return result

    def close(self) -> None:
        for pipe in self._pipes.values():
            pipe.send(None)
        for process in self._processes:
            process.join(10)


def run(bootstrap: str, batches: int, pause_ms: int, folder: Path) -> dict[str, float]:
    """Run the batches on a broker that has the topic; return the p50 of each part."""
    checkpoint = folder / "checkpoint"
    checkpoint.mkdir()
    (checkpoint / "metadata").write_text(json.dumps({"id": QUERY}))
    os.environ[PARTS_FILE] = str(folder / "parts")
    options = {
        "kafka.bootstrap.servers": bootstrap,
        "topic": "alone",
        "transactional.id.prefix": f"alone-{os.getpid()}",
        "checkpointLocation": str(checkpoint),
    }
    roles = Roles(options)
    phases = []
    for number in range(batches + WARM_UP):
        if number == WARM_UP:
            Path(os.environ[PARTS_FILE]).write_text("")
        phases.append(roles.batch(number))
        time.sleep(pause_ms / 1000)
    roles.close()
    parts = {
        name: statistics.median(duration_ms) for name, duration_ms in read_parts(folder / "parts").items()
    }
    phases_counted = phases[WARM_UP:]
    p50 = {name: statistics.median(each[name] for each in phases_counted) for name in phases_counted[0]}
    with Admin({"bootstrap.servers": bootstrap}) as admin:
        listings = admin.list_transactions(transactional_id_pattern=f"alone-{os.getpid()}/.*").all()
    return {**parts, **p50, "transactional ids": sum(map(len, listings.values()))}


def main() -> None:
    """Read the command line, measure, and print a line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--batches", type=int, default=200)
    parser.add_argument("--bootstrap", help="a broker that runs already; without it, one is started")
    parser.add_argument("--pause-ms", type=int, default=PAUSE_MS)
    arguments = parser.parse_args()
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="bench-alone-")))
        bootstrap = arguments.bootstrap
        if bootstrap is None:
            process = stack.enter_context(run_fresh(OURS, BROKER))
            create_topic(process, "alone", TASKS)
            bootstrap = process.bootstrap
        p50 = run(bootstrap, arguments.batches, arguments.pause_ms, folder)
    print(json.dumps({name: round(value, 2) for name, value in sorted(p50.items())}))
    sys.stdout.flush()


if __name__ == "__main__":
    main()
