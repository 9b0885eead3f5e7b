"""A broker as a child process: start it, wait until it answers, measure it, stop it or kill it.

tallystick's broker and Apache Kafka's share this interface, so that tests and measurements treat both the
same.
"""

import os
import shutil
import signal
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from random import SystemRandom
from types import TracebackType
from typing import Self

# ApiVersions v0, correlation id 0, no client id: every broker answers it as soon as it serves.
_PING = struct.pack(">ihhih", 10, 18, 0, 0, -1)
_POLL_S = 0.002
# Below the ephemeral ports of Linux (32768), macOS and Windows (49152).
_PORTS = (10_000, 32_768)


def find_free_port() -> int:
    """Return a free loopback port below the ephemeral range.

    No outgoing connection takes such a port, so a killed broker finds it free again.
    """
    while True:
        # Not from a test's seed: two runs on one machine would try the same ports in the same order.
        port = SystemRandom().randrange(*_PORTS)
        with socket.socket() as probe, suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port


def is_answering(port: int, timeout_s: float = 5.0) -> bool:
    """Return whether a broker on this loopback port answers ApiVersions."""
    try:
        with socket.create_connection(("127.0.0.1", port), timeout=timeout_s) as connection:
            connection.sendall(_PING)
            return len(connection.recv(4)) == 4
    except OSError:
        return False


def _tie_to_parent(command: list[str]) -> list[str]:
    """Wrap the command so that the kernel kills it when its parent thread ends, for whatever reason.

    The parent is the thread that starts it (prctl(2), PR_SET_PDEATHSIG).
    """
    return ["setpriv", "--pdeathsig", "KILL", *command] if shutil.which("setpriv") else command


class BrokerFailed(Exception):
    """The process ended, or did not answer in time; the text ends with the tail of its log."""


class BrokerProcess:
    """One broker process on a loopback port. It can be started again after stop or kill."""

    def __init__(
        self, name: str, command: list[str], *, port: int, log: Path, env: Mapping[str, str] | None = None
    ) -> None:
        self.name = name
        self.command = command
        self.port = port
        self.log = log
        self.env = {**os.environ, **(env or {})}
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def bootstrap(self) -> str:
        """Address as host:port, as `bootstrap.servers` takes it."""
        return f"127.0.0.1:{self.port}"

    @property
    def pid(self) -> int:
        """Process id of the running process; it is an error to ask when there is none."""
        if self._process is None:
            raise BrokerFailed(f"{self.name} is not running")
        return self._process.pid

    @property
    def is_running(self) -> bool:
        """Whether the process is alive."""
        return self._process is not None and self._process.poll() is None

    def start(self, *, wait_s: float = 60.0) -> float:
        """Start the process, wait until it answers, and return the seconds this took.

        Raises:
            BrokerFailed: it ended, or did not answer for `wait_s` seconds.
        """
        self.launch()
        return self.wait_ready(wait_s)

    def launch(self) -> None:
        """Start the process without waiting.

        Not to be called from a worker thread: the process dies with the thread that starts it.
        """
        if self.is_running:
            raise BrokerFailed(f"{self.name} runs already")
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                _tie_to_parent(self.command),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env=self.env,
                start_new_session=True,  # Ctrl-C goes to the parent program, which then stops the broker
            )
        self._launched_at_s = time.monotonic()

    def wait_ready(self, wait_s: float = 60.0) -> float:
        """Wait until the launched process answers, and return the seconds since its launch."""
        while not is_answering(self.port):
            if not self.is_running:
                raise BrokerFailed(f"{self.name} ended while it was starting:\n{self.read_log_tail()}")
            if time.monotonic() > self._launched_at_s + wait_s:
                self.kill()
                raise BrokerFailed(f"{self.name} did not answer in {wait_s:g} s:\n{self.read_log_tail()}")
            time.sleep(_POLL_S)
        return time.monotonic() - self._launched_at_s

    def stop(self, wait_s: float = 30.0) -> int:
        """Terminate the process (SIGTERM), kill it after `wait_s`, and return its exit code."""
        if self._process is None:
            return 0
        if self.is_running:
            self._process.terminate()
        try:
            code = self._process.wait(wait_s)
        except subprocess.TimeoutExpired:
            code = self.kill()
        self._process = None
        return code

    def kill(self) -> int:
        """Kill the process (SIGKILL), wait until it is gone, and return its exit code."""
        if self._process is None:
            return 0
        self._process.send_signal(signal.SIGKILL)
        code = self._process.wait()
        self._process = None
        return code

    def read_rss_bytes(self) -> int:
        """Return the process's resident memory in bytes."""
        pages = int(Path(f"/proc/{self.pid}/statm").read_text().split()[1])
        return pages * os.sysconf("SC_PAGE_SIZE")

    def read_cpu_seconds(self) -> float:
        """Return the processor time used so far, user and system, in steps of a clock tick."""
        fields = Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def read_log_tail(self, lines: int = 30) -> str:
        """Return the last lines the process printed."""
        return "\n".join(self.log.read_text(errors="replace").splitlines()[-lines:])

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, _type: type[BaseException] | None, _exc: BaseException | None, _tb: TracebackType | None
    ) -> None:
        self.stop()


def make_tallystick_process(
    directory: Path, settings: Mapping[str, str] | None = None, *, port: int | None = None
) -> BrokerProcess:
    """Return a `tallystick broker` process with its data, log and settings file in `directory`."""
    directory.mkdir(parents=True, exist_ok=True)
    port = port or find_free_port()
    program = Path(sys.executable).with_name("tallystick")
    command = [str(program), "broker", "--data-dir", str(directory / "data")]
    command += ["--listen", f"127.0.0.1:{port}"]
    if settings:
        config = directory / "server.properties"
        config.write_text("".join(f"{name}={value}\n" for name, value in settings.items()))
        command += ["--config", str(config)]
    return BrokerProcess("tallystick", command, port=port, log=directory / "broker.log")
