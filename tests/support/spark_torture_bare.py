"""A driver without Java: it calls the sink as Spark does, in Spark's order, and forgets as Spark does.

    SPARK_TORTURE=FOLDER python -m tests.support.spark_torture_bare

`offsets/N` is written before a batch and `commits/N` after it; begin and commit have separate stations; a
task is tried four times, its rows may be split anew, and now and then two attempts race: the loser is not
told and may live through later batches, which Spark's local mode cannot do. The source is the numbers up to
`until`.
"""

import json
import logging
import os
import random
from collections.abc import Callable, Iterator
from contextlib import suppress
from multiprocessing import get_context
from multiprocessing.connection import Connection, wait
from pathlib import Path
from secrets import token_hex
from typing import Any, Final

import pyarrow as pa
from sqlalchemy.exc import SQLAlchemyError
from tests.support import spark_torture_lake as lake
from tests.support.spark_torture import FOLDER, Folder, TorturedStation, connect, strike
from tests.support.spark_torture_database import TorturedTableStation, connect_task, sinks
from tests.support.spark_torture_tables import is_lake

from tallystick.kernel.errors import TallystickError
from tallystick.spark.decisions.database import resolve_database
from tallystick.spark.options.option_table import QueryType
from tallystick.spark.options.sink_options import SinkOptions, parse_sink_options, with_database_suffix
from tallystick.spark.options.sinks import StagedMoves
from tallystick.spark.protocol.committable import (
    BatchLease,
    MicroBatch,
    Vote,
    build_empty_vote,
    decode_lease,
    decode_vote,
    encode_lease,
    encode_vote,
)
from tallystick.spark.sink.task.attempt import run_attempt
from tallystick.spark.sink.task.combined_attempt import HASH_COLUMN, CombinedTask

ATTEMPTS: Final = 4
TASKS: Final = 2
RACES: Final = 0.15
PIECE: Final = 250
SINKS: Final = sinks("out")

Told = tuple[bytes, str]
"""A vote, and the attempt's name."""

_processes = get_context("forkserver")


class TaskFailed(Exception):
    """Four attempts of one task have failed; holds the last error."""


def chunks(ids: list[int]) -> Iterator[pa.RecordBatch]:
    for at in range(0, len(ids), PIECE):
        strike("rows")
        values = [str(i) for i in ids[at : at + PIECE]]
        yield pa.record_batch({"value": values, "key": values})


def structs(ids: list[int]) -> Iterator[pa.RecordBatch]:
    """Yield batches like those of `project_sinks`, for a topic and a table; a number is its own hash."""
    for rows in chunks(ids):
        values = rows.column("value")
        texts, hashes = values.cast(pa.binary()), values.cast(pa.int64())
        none = pa.nulls(len(values), pa.list_(pa.struct({"key": pa.string(), "value": pa.binary()})))
        record = {"key": texts, "value": texts, "headers": none, HASH_COLUMN: hashes}
        row = {"id": values, HASH_COLUMN: hashes}
        made = [pa.StructArray.from_arrays(list(each.values()), list(each)) for each in (record, row)]
        yield pa.record_batch(made, names=["sink_0", "sink_1"])


def casting(spec: dict[str, Any]) -> Callable[[BatchLease, MicroBatch, list[int]], Told]:
    """Return the function that runs a task."""
    options, url = options_of(spec), spec["database"]

    def to_topic(lease: BatchLease, job: MicroBatch, ids: list[int]) -> Told:
        return encode_vote(run_attempt(connect(options), lease, job, chunks(ids))), ""

    def together(lease: BatchLease, job: MicroBatch, ids: list[int]) -> Told:
        where = resolve_database(url)
        work = CombinedTask(
            options=options, lease=lease, job=job, sinks=SINKS, store=where, open_context=connect_task(url)
        )
        vote, name = work.run(structs(ids))
        return encode_vote(vote), name

    def into_lake(lease: BatchLease, job: MicroBatch, ids: list[int]) -> Told:
        lake.disturb_files()
        work = CombinedTask(
            options=options,
            lease=lease,
            job=job,
            sinks=lake.sinks("out", url),
            store=lake.find_target(url),
            open_context=lake.connect_lake_task,
        )
        vote, files = work.run(structs(ids))
        return encode_vote(vote), files

    if is_lake(url):
        return into_lake
    return to_topic if url is None else together


def options_of(spec: dict[str, Any]) -> SinkOptions:
    found = parse_sink_options(spec["sink"], QueryType.STREAM)
    return found if spec["database"] is None else with_database_suffix(found)


def serve(tasks: Connection, spec: dict[str, Any]) -> None:
    """Run task after task, as a Python worker, until the driver is gone."""
    os.environ["SPARK_REUSE_WORKER"] = "1"
    cast = casting(spec)
    with suppress(EOFError, ConnectionError):
        while True:
            lease, query_id, batch_id, ids = tasks.recv()
            try:
                tasks.send(cast(decode_lease(lease), MicroBatch(query_id, batch_id), ids))
            except (TallystickError, SQLAlchemyError) as exc:
                tasks.send(f"{type(exc).__name__}: {exc}")


class Workers:
    """Processes that run tasks; a killed one is replaced."""

    def __init__(self, spec: dict[str, Any]) -> None:
        self._spec = spec
        self._idle: list[Connection] = []
        self._zombies: list[Connection] = []

    def run(self, task: tuple[Any, ...]) -> Connection:
        for zombie in [each for each in self._zombies if each.poll()]:
            self._zombies.remove(zombie)
            self.collect(zombie)
        connection = self._idle.pop() if self._idle else self._fork()
        connection.send(task)
        return connection

    def collect(self, connection: Connection) -> Told | str:
        """Return the vote, or the error."""
        try:
            found: Told | str = connection.recv()
        except (EOFError, ConnectionResetError):
            return "Python worker exited unexpectedly"
        self._idle.append(connection)
        return found

    def forget(self, connection: Connection) -> None:
        self._zombies.append(connection)

    def _fork(self) -> Connection:
        ours, theirs = _processes.Pipe()
        _processes.Process(target=serve, args=(theirs, self._spec), daemon=True).start()
        theirs.close()
        return ours


class BareQuery:
    """One run of a query, on a checkpoint that looks like Spark's."""

    def __init__(self, spec: dict[str, Any], folder: Folder, workers: Workers) -> None:
        self.spec, self.folder, self.workers = spec, folder, workers
        self.random = random.Random(f"{folder.path.name} {spec['sink']['transactional.id.prefix']}")
        self.checkpoint = Path(spec["checkpoint"])
        options = options_of(spec)
        self.table: TorturedTableStation | lake.TorturedLakeStation | None = None
        if spec["database"] is None:
            # As in Spark, where they are separate processes and share nothing.
            self.begins, self.commits = TorturedStation(options), TorturedStation(options)
        elif is_lake(spec["database"]):
            self.table = lake.TorturedLakeStation(options, lake.locate(spec["database"]))
            self.begins = self.commits = self.table
        else:
            self.table = TorturedTableStation(options, resolve_database(spec["database"]), SINKS[1:])
            self.begins = self.commits = self.table
        for name in ("offsets", "commits"):
            (self.checkpoint / name).mkdir(parents=True, exist_ok=True)
        metadata = self.checkpoint / "metadata"
        if not metadata.exists():
            write(metadata, json.dumps({"id": token_hex(8)}))
        self.query_id = json.loads(metadata.read_text())["id"]

    def run(self) -> str:
        while (batch_id := self.next_batch()) is not None:
            self.batch(batch_id)
            if self.folder.says("stop"):
                (self.folder.path / "stop").unlink()
                return "stopped"
            write(self.checkpoint / "commits" / str(batch_id), "")
        return "done"

    def next_batch(self) -> int | None:
        last = max((int(each.name) for each in (self.checkpoint / "commits").iterdir()), default=-1)
        start = self.end_of(last)
        if not (self.checkpoint / "offsets" / str(last + 1)).exists():
            if start >= self.spec["until"]:
                return None
            end = min(self.spec["until"], start + self.random.randint(1, int(self.spec["per_trigger"])))
            write(self.checkpoint / "offsets" / str(last + 1), f"v1\n{{}}\n{end}")
        return last + 1

    def end_of(self, batch_id: int) -> int:
        if batch_id < 0:
            return int(self.spec["starting"][0])
        return int((self.checkpoint / "offsets" / str(batch_id)).read_text().splitlines()[-1])

    def batch(self, batch_id: int) -> None:
        start, end = self.end_of(batch_id - 1), self.end_of(batch_id)
        lease = self.begins.begin(query_id=self.query_id)
        votes: list[Vote | None] = []
        try:
            told = list(self.tasks(lease, batch_id, range(start, end)))
            votes = [decode_vote(vote) for vote, _ in told]
            if self.table is not None:
                rows = sum(vote.row_checksums[1].rows for vote in votes if vote is not None)
                moves = StagedMoves(attempts=tuple(name for _, name in told), rows=(rows,))
                self.table.decision_log.set_staged_moves(lease.nonce, moves)
            self.commits.commit(votes, str(end))
        except (TallystickError, SQLAlchemyError, TaskFailed):
            self.commits.try_abort(
                [v for v in votes if self.random.random() < 0.7] or [build_empty_vote(lease)]
            )
            raise

    def tasks(self, lease: BatchLease, batch_id: int, ids: range) -> Iterator[Told]:
        rows = list(ids)
        self.random.shuffle(rows)
        cut = self.random.randint(0, len(rows))
        parts = (rows[:cut], rows[cut:])
        job = encode_lease(lease), self.query_id, batch_id
        begun = [self.attempts((*job, part)) for part in parts]
        for part, running in zip(parts, begun, strict=True):
            yield self.vote((*job, part), running)

    def attempts(self, task: tuple[Any, ...]) -> list[Connection]:
        # No races in a driver without faults: the leftovers of a loser that is killed after the last commit
        # are for the next driver to end, and there may be none.
        races = bool(self.folder.faults) and self.random.random() < RACES
        return [self.workers.run(task) for _ in range(1 + races)]

    def vote(self, task: tuple[Any, ...], running: list[Connection]) -> Told:
        """Return the vote of the attempt that finishes first; attempts that race with it are forgotten."""
        found: Told | str = ""
        for _ in range(ATTEMPTS):
            first = wait(running)[0]
            for each in running:
                if each is not first:
                    self.workers.forget(each)
            assert isinstance(first, Connection)
            found = self.workers.collect(first)
            if not isinstance(found, str):
                return found
            running = self.attempts(task)
        for each in running:
            self.workers.forget(each)
        raise TaskFailed(found)


def write(path: Path, text: str) -> None:
    fresh = path.with_name(f".{path.name}.{os.getpid()}")
    fresh.write_text(text)
    fresh.replace(path)


def main() -> None:
    logging.basicConfig(level=logging.DEBUG)  # What is logged is searched for secrets.
    folder = Folder(Path(os.environ[FOLDER]))
    spec = json.loads((folder.path / "spec").read_text())
    folder.say("pids", str(os.getpid()))
    folder.say("stopped")
    workers = Workers(spec)
    for _ in range(spec["runs"]):
        folder.say("started")
        try:
            outcome = BareQuery(spec, folder, workers).run()
        except (TallystickError, SQLAlchemyError, TaskFailed) as exc:
            outcome = f"failed: {type(exc).__name__}: {exc}".replace("\n", " ")
        with (folder.path / "outcome").open("a") as told:
            told.write(f"{outcome}\n")
        if outcome == "done":
            break


if __name__ == "__main__":
    _processes.set_forkserver_preload(["spark_torture_bare"])
    main()
