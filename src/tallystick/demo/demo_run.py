"""Demo run: send data, kill parts of the pipeline as it runs, and compare committed data with the input.

Every kill happens while transactions of a batch are open, when it can do harm: they are then neither
committed nor aborted, and the next batch or the next start must decide them.
"""

import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

import psycopg

from tallystick import Admin
from tallystick.admin.topics import NewTopic
from tallystick.broker.embedded import EmbeddedBroker
from tallystick.demo import Audience, ContentCheck, Crash, DemoSettings, flights
from tallystick.demo.postgres import TemporaryPostgres
from tallystick.demo.processes import PipelineProcess
from tallystick.demo.verification import check_lake_table, check_table, check_topics
from tallystick.kernel.errors import TallystickError
from tallystick.kernel.value import Value

_CRASH_CLOCK_OUTPUT: Final = "by_flight"
_POLL_S: Final = 0.02
_FAILURES_MAX: Final = 3


class PipelineFailed(TallystickError):
    """The pipeline failed repeatedly; the text names its log."""


class DemoResult(Value, kw_only=True):
    """The result of a demo.

    survived           parts that were killed, in order
    failures           number of drivers that failed and were restarted
    in_doubt           number of transactions that were open at a kill
    open_transactions  number of transactions that are still open
    """

    checks: Sequence[ContentCheck]
    survived: Sequence[Crash]
    failures: int
    in_doubt: int
    open_transactions: int
    seconds: float

    @property
    def is_exactly_once(self) -> bool:
        return all(verdict.is_exact for verdict in self.checks) and self.open_transactions == 0


class DemoRun:
    """A demo run in one folder."""

    def __init__(
        self,
        folder: Path,
        setting: DemoSettings,
        say: Callable[[str], None],
        audience: Audience[DemoResult] | None = None,
    ) -> None:
        """Prepare a demo.

        Args:
            folder: an existing, empty folder.
            say: prints one line for the user.
        """
        self._folder, self._settings, self._say = folder, setting, say
        self._audience = audience
        self._broker = EmbeddedBroker(
            folder / "broker", config={"flush.policy": "ack", "num.partitions": flights.PARTITIONS}
        )
        self._pending_crashes = list(enumerate(setting.crashes))
        self._rows_a_batch = 0
        self._batch, self._in_doubt, self._failures = -1, 0, 0

    def run(self) -> DemoResult:
        """Run the demo and return its result. Raises: NoJava, PipelineFailed, ReadTimedOut, client errors."""
        started_at = time.monotonic()
        self._say("the flights are read, and a broker and PostgreSQL started")
        data = flights.load_flights(self._settings.rows)
        with TemporaryPostgres() as postgres, self._broker:
            bootstrap = self._broker.bootstrap_servers
            self._say(f"a broker listens at {bootstrap}, PostgreSQL at {postgres.url}")
            with psycopg.connect(postgres.url) as connection:
                connection.execute(flights.CREATE_TABLE)
            self._database = postgres.url
            flights.create_lake_table(self._lake)
            self._say(
                "a Delta table is there, too: a query fills each table, together with a topic, because one "
                "place decides a batch; in between, one table may be ahead of the other"
            )
            if self._audience is not None:
                self._audience.begin(bootstrap, postgres.url)
            with Admin({"bootstrap.servers": bootstrap}) as admin:
                topics = (flights.FLIGHTS, *data.expected_topics)
                admin.create_topics(NewTopic(name=topic) for topic in topics).all()
                flights.send_flights(bootstrap, data.input_rows)
                self._say(f"{len(data.input_rows) - 1:,} flights are in the topic {flights.FLIGHTS}")
                # A batch before each kill, and one in which the last of them strikes.
                self._rows_a_batch = len(data.input_rows) // (len(self._settings.crashes) + 1) + 1
                self._run_to_end(admin)
                open_count = len(self._list_open_transactions(admin))
            self._say("an independent reader compares what is committed with the input")
            verdicts = check_topics(bootstrap, data.expected_topics)
            verdicts.append(check_table(postgres.url, flights.TABLE, data.expected_table))
            verdicts.append(check_lake_table(self._lake, data.expected_table))
            result = DemoResult(
                checks=verdicts,
                survived=self._settings.crashes[: len(self._settings.crashes) - len(self._pending_crashes)],
                failures=self._failures,
                in_doubt=self._in_doubt,
                open_transactions=open_count,
                seconds=time.monotonic() - started_at,
            )
            if self._audience is not None:
                self._audience.end(result)
        return result

    def _run_to_end(self, admin: Admin) -> None:
        """Run the pipeline to its end, restarting it after each failure or kill."""
        driver = self._start()
        try:
            while driver.exit_code != 0:
                self._report_batches(driver)
                if driver.exit_code is not None:
                    self._say(f"the pipeline failed, exit code {driver.exit_code}; it is started again")
                    self._failures += 1
                    if self._failures > _FAILURES_MAX:
                        raise PipelineFailed(f"the pipeline failed {self._failures} times; see {self._log}")
                    driver = self._start()
                elif (
                    self._pending_crashes
                    and self._batch >= self._pending_crashes[0][0]
                    and self._list_open_transactions(admin)
                ):
                    driver = self._crash(admin, driver, self._pending_crashes.pop(0)[1])
                time.sleep(_POLL_S)
            self._report_batches(driver)
        finally:
            driver.stop()

    @property
    def _lake(self) -> Path:
        return self._folder / "lake" / flights.TABLE

    @property
    def _log(self) -> Path:
        return self._folder / "pipeline.log"

    def _start(self) -> PipelineProcess:
        file = self._folder / "flights.toml"
        file.write_text(flights.PIPELINE)
        self._say(f"the pipeline starts: tallystick run {file}")
        return PipelineProcess(
            file,
            flights.pipeline_variables(
                self._broker.bootstrap_servers,
                self._database,
                str(self._lake),
                self._settings.master,
                self._rows_a_batch,
            ),
            self._log,
        )

    def _report_batches(self, driver: PipelineProcess) -> None:
        for batch in driver.new_batches():
            self._say(
                f"{batch['output']}: batch {batch['batch']}, {batch['rows']:,} rows in "
                f"{batch['duration_ms']:,} ms"
            )
            if batch["output"] == _CRASH_CLOCK_OUTPUT:
                self._batch = int(str(batch["batch"]))

    def _list_open_transactions(self, admin: Admin) -> list[str]:
        """Return the pipeline's transactions that are neither committed nor aborted."""
        listings_by_broker = admin.list_transactions(states=("Ongoing",)).all()
        names = (each.transactional_id for listings in listings_by_broker.values() for each in listings)
        return [name for name in names if "/w/" in name]

    def _crash(self, admin: Admin, driver: PipelineProcess, crash: Crash) -> PipelineProcess:
        """Kill one part; return the driver that continues."""
        match crash:
            case Crash.TASK:
                self._say(f"KILLED {driver.kill_tasks()} Python workers in the middle of their tasks")
            case Crash.EXECUTOR:
                self._say(f"KILLED {driver.kill_executor()} executor")
            case Crash.BROKER:
                before = len(self._list_open_transactions(admin))
                self._broker.kill()
                self._say(f"KILLED the broker, with {before} transactions open")
                self._broker.start()
                self._in_doubt += before
                self._say("the broker is back, on the same files")
            case Crash.DRIVER:
                driver.kill()
                open_count = len(self._list_open_transactions(admin))
                self._in_doubt += open_count
                self._say(f"KILLED the driver; {open_count} transactions are in doubt")
                return self._start()
        return driver
