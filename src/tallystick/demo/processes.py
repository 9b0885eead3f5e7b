"""Pipeline process of the demo and its descendants, so that they can be killed."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from queue import Empty, SimpleQueue
from threading import Thread
from typing import IO, Final, cast

from tallystick.kernel.value import Value

_STOP_TIMEOUT_S: Final = 10.0
# Spark forks one of these for each concurrent task; planners and sinks run other modules.
_TASK_COMMAND: Final = "pyspark.daemon pyspark.worker"
_EXECUTOR_COMMAND: Final = "CoarseGrainedExecutorBackend"


class ProcessInfo(Value):
    """One line of `ps`."""

    pid: int
    parent: int
    command: str


class PipelineProcess:
    """`tallystick run FILE --once --output json` in its own process group: Python and Spark's JVM."""

    def __init__(self, file: Path, variables: Mapping[str, str], log: Path) -> None:
        """Start the process; its log and stderr go to `log`."""
        words = [str(file), "--once", "--output", "json", "--log-file", str(log)]
        with log.open("ab") as log_file:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "tallystick.cli.main", "run", *words],
                stdout=subprocess.PIPE,
                stderr=log_file,
                env={**os.environ, **variables},
                process_group=0,
            )
        self._lines: SimpleQueue[str] = SimpleQueue()
        Thread(target=self._read_lines, args=(self._process.stdout,), daemon=True).start()

    def _read_lines(self, stdout: IO[bytes]) -> None:
        with stdout:
            for line in stdout:
                self._lines.put(line.decode())

    def new_batches(self) -> Iterator[Mapping[str, object]]:
        """Yield the batch reports printed since the last call."""
        while True:
            try:
                yield cast(Mapping[str, object], json.loads(self._lines.get_nowait()))
            except Empty:
                return

    @property
    def exit_code(self) -> int | None:
        """The exit code; None while the process runs."""
        return self._process.poll()

    def kill(self) -> None:
        """Send SIGKILL to Python and Java together. Their workers notice and exit on their own."""
        os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()

    def stop(self) -> None:
        """Terminate the process if it still runs. Idempotent."""
        if self.exit_code is None:
            self._process.terminate()
            try:
                self._process.wait(_STOP_TIMEOUT_S)
            except subprocess.TimeoutExpired:
                self.kill()

    def kill_tasks(self) -> int:
        """Send SIGKILL to the Python workers that run tasks; return how many were killed."""
        descendants = find_descendants(self._process.pid)
        daemons = {each.pid for each in descendants if _TASK_COMMAND in each.command}
        return _kill_all(
            each for each in descendants if _TASK_COMMAND in each.command and each.parent in daemons
        )

    def kill_executor(self) -> int:
        """Send SIGKILL to one executor; return 0 if the driver runs its tasks itself."""
        executors = [
            each for each in find_descendants(self._process.pid) if _EXECUTOR_COMMAND in each.command
        ]
        return _kill_all(iter(executors[:1]))


def _kill_all(processes: Iterator[ProcessInfo]) -> int:
    killed = 0
    for each in processes:
        try:
            os.kill(each.pid, signal.SIGKILL)
        except ProcessLookupError:  # it has already exited
            continue
        killed += 1
    return killed


def find_descendants(pid: int) -> list[ProcessInfo]:
    """Return all direct and indirect child processes of `pid`."""
    listing = subprocess.run(
        ["ps", "-A", "-ww", "-o", "pid=,ppid=,command="], capture_output=True, text=True, check=True
    )
    split = (line.split(None, 2) for line in listing.stdout.splitlines())
    everyone = [ProcessInfo(int(words[0]), int(words[1]), words[2]) for words in split if len(words) == 3]
    descendants, family = list[ProcessInfo](), {pid}
    has_new = True
    while has_new:
        new = [each for each in everyone if each.parent in family and each.pid not in family]
        descendants += new
        family |= {each.pid for each in new}
        has_new = bool(new)
    return descendants
