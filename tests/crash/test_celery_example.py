"""The Celery example as it is run, its processes killed in the middle: each task is paid once."""

import contextlib
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random

import psutil
import psycopg
import pytest
from celery import Celery
from tests.support.effort import LONG
from tests.support.reading import committed_records
from tests.support.servers import PostgreSQL
from tests.support.services import EXAMPLES

from tallystick.testing import EmbeddedBroker, eventually

pytestmark = [pytest.mark.server, pytest.mark.slow]

TASKS, PROCESSES = 30, 2
KILLS = 3 if LONG else 1


class Workers:
    """A queue in a folder, and the workers of the example on it."""

    def __init__(self, folder: Path, broker: EmbeddedBroker, database: str) -> None:
        self.broker, self.database, self.log = broker, database, folder / "log"
        self.queue = folder / "queue"
        self.queue.mkdir()
        options = {
            "data_folder_in": str(self.queue),
            "data_folder_out": str(self.queue),
            "control_folder": str(folder / "control"),
            "polling_interval": 0.05,
        }
        self.env = {
            "BROKER": "filesystem://",
            "BROKER_OPTIONS": json.dumps(options),
            "KAFKA": broker.bootstrap_servers,
            "DATABASE": database.replace("://", "+psycopg://"),
        }
        self.client = Celery("payments", broker="filesystem://")
        self.client.conf.broker_transport_options = options

    def send(self, number: int) -> None:
        """Send a task; the same number has the same id, as in a message that is delivered again."""
        self.client.send_task("payments.pay", [f"customer-{number}", 350], task_id=f"task-{number}")

    @contextlib.contextmanager
    def worker(self, pool: str) -> Iterator[psutil.Process]:
        command = [sys.executable, "-m", "celery", "--workdir", str(EXAMPLES), "--app", "celery_payments"]
        command += ["worker", "--pool", pool, "--concurrency", str(PROCESSES), "--loglevel", "INFO"]
        command += ["--without-gossip", "--without-mingle", "--without-heartbeat"]
        with self.log.open("ab") as output:
            process = subprocess.Popen(command, stdout=output, stderr=output, env={**os.environ, **self.env})
        started = psutil.Process(process.pid)
        family = [started]
        try:
            yield started
            with contextlib.suppress(psutil.NoSuchProcess):
                family += started.children(recursive=True)
        finally:
            for each in family:
                with contextlib.suppress(psutil.NoSuchProcess):
                    each.kill()
            process.wait()

    def paid(self) -> list[str]:
        with contextlib.suppress(psycopg.errors.UndefinedTable), psycopg.connect(self.database) as connection:
            return [row[0] for row in connection.execute("SELECT customer FROM payments ORDER BY 1")]
        return []

    @contextlib.contextmanager
    def hold_tasks(self) -> Iterator[Callable[[], int]]:
        """Keep every task from paying; yields how to count the tasks that wait for that.

        A process that waits for a task has the lock of the pool's queue, and takes it along if it is killed
        then: Celery goes on with no task at all (billiard, with a queue that has no file descriptor).
        """
        with psycopg.connect(self.database) as holder, psycopg.connect(self.database) as looker:
            looker.autocommit = True
            holder.execute("LOCK TABLE payments IN SHARE MODE")

            def count_waiting() -> int:
                row = looker.execute(
                    "SELECT count(*) FROM pg_locks WHERE relation = 'payments'::regclass AND NOT granted"
                ).fetchone()
                return row[0] if row else 0

            yield count_waiting

    def check(self, numbers: range) -> None:
        """All of these are paid, each of them once, and both halves say so."""
        expected = sorted(f"customer-{number}" for number in numbers)
        assert self.paid() == expected

        def read() -> list[str]:
            config = {"bootstrap.servers": self.broker.bootstrap_servers}
            return sorted(each.key.decode() for each in committed_records(config, "payments") if each.key)

        eventually(lambda: read() == expected)


@pytest.fixture
def workers(postgresql: PostgreSQL, tmp_path: Path) -> Iterator[Workers]:
    with EmbeddedBroker(config={"auto.create.topics.enable": True}) as broker:
        yield Workers(tmp_path, broker, postgresql.url(postgresql.new_database()))


@pytest.mark.gate(0)
def test_a_task_whose_process_was_killed_is_paid_once(workers: Workers) -> None:
    """[DW-16] The worker delivers it again, to a process that has the number of the dead one."""
    draw = Random(939)
    shares = [range(TASKS)[at :: KILLS + 1] for at in range(KILLS + 1)]
    with workers.worker("prefork") as started:
        for number in shares[0]:
            workers.send(number)
        eventually(workers.paid, 120)  # whoever pays first creates the table
        for share in shares[1:]:
            with workers.hold_tasks() as count_waiting:
                for number in share:  # sent now: tasks that were sent before may all be paid already
                    workers.send(number)
                eventually(lambda count=count_waiting: count() == PROCESSES, 60)
                draw.choice(started.children()).kill()
        eventually(lambda: len(workers.paid()) >= TASKS, 120)
        eventually(lambda: not list(workers.queue.iterdir()), 60)
        workers.check(range(TASKS))


@pytest.mark.gate(0)
def test_tasks_that_are_delivered_again_to_a_new_worker_are_paid_once(workers: Workers) -> None:
    """[DW-16] The whole worker is killed, and its queue delivers every message another time."""
    with workers.worker("threads"):
        for number in range(TASKS):
            workers.send(number)
        eventually(lambda: len(workers.paid()) >= TASKS // 3, 120)
    with workers.worker("solo"):
        for number in range(TASKS + 1):
            workers.send(number)
        eventually(lambda: "customer-30" in workers.paid(), 120)
        eventually(lambda: len(workers.paid()) >= TASKS + 1, 120)
        workers.check(range(TASKS + 1))


@pytest.mark.gate(0)
def test_the_script_of_the_example_sends_a_task_that_the_worker_knows(workers: Workers) -> None:
    """Run as its docstring says: there the module is `__main__`, after which Celery would name the task."""
    script = [sys.executable, str(EXAMPLES / "celery_payments.py"), "customer-0", "350"]
    with workers.worker("solo"):
        subprocess.run(script, check=True, env={**os.environ, **workers.env}, timeout=60)
        eventually(lambda: workers.paid() == ["customer-0"], 120)
    workers.check(range(1))
