"""A broker for use inside a program, as a child process or a thread.

    with EmbeddedBroker() as broker:
        Producer({"bootstrap.servers": broker.bootstrap_servers})

Without a data directory it gets a temporary one, removed at the end. `flush.policy` is `os` unless given: a
test needs no protection from power loss, and a program that does can set it. Two-phase commit (KIP-939) is
on: the owner of an embedded broker may leave transactions open in it.
"""

import asyncio
import json
import shutil
import subprocess
import sys
import tempfile
import threading
from collections.abc import Mapping
from concurrent.futures import Future
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from tallystick.broker.config.broker_config import BrokerConfig
from tallystick.broker.serve import Hooks, Service, serve
from tallystick.kernel.check import require
from tallystick.kernel.errors import TallystickError

_STOP_TIMEOUT_S: Final = 15.0
DEFAULTS: Final = {
    "listeners": "PLAINTEXT://127.0.0.1:0",
    "flush.policy": "os",
    "group.initial.rebalance.delay.ms": "0",
    "log.reserve.bytes": "0",
    "transaction.two.phase.commit.enable": "true",
}


class BrokerDidNotStart(TallystickError):
    """The embedded broker ended before it was ready; the message is its own."""


class EmbeddedBroker:
    """One broker, running from `start` (or `with`) to `stop`.

    After `kill` or `stop` it may be started again on the same data, at the same address.
    """

    def __init__(
        self,
        data_dir: str | Path | None = None,
        *,
        in_process: bool = False,
        config: Mapping[str, object] | None = None,
        **settings: object,
    ) -> None:
        """Create a broker that is not started.

        Args:
            data_dir: kept when given; a temporary one is removed by `stop`.
            in_process: a thread instead of a child process; then there is no `kill`.
            config: settings by Kafka's dotted names.
            settings: the same with underscores: `num_partitions=3`.
        """
        keyword_settings = {name.replace("_", "."): value for name, value in settings.items()}
        texts = {**(config or {}), **keyword_settings}
        self._config_texts = DEFAULTS | {name: _format_setting(value) for name, value in texts.items()}
        self._temporary = data_dir is None
        self.data_dir = Path(data_dir or tempfile.mkdtemp(prefix="tallystick-"))
        self._config_texts["log.dirs"] = str(self.data_dir)
        self._in_process = in_process
        self._runner: _ChildProcessBroker | _ThreadBroker | None = None
        self._address = ""

    @property
    def bootstrap_servers(self) -> str:
        """Address as `host:port`, for clients; stays the same across restarts."""
        return self._address

    @property
    def pid(self) -> int | None:
        """Process id of the child process; None without one."""
        return self._runner.pid if isinstance(self._runner, _ChildProcessBroker) else None

    @property
    def running(self) -> bool:
        """Whether the broker runs: False before `start`, after `stop`, and when it ended by itself."""
        return self._runner is not None and self._runner.is_alive

    def start(self) -> Self:
        """Start, and return when clients can connect. Raises: BrokerDidNotStart, BadConfig."""
        if self._runner is None:
            BrokerConfig.parse(self._config_texts)
            self.data_dir.mkdir(parents=True, exist_ok=True)
            runner = (
                _ThreadBroker(self._config_texts)
                if self._in_process
                else _ChildProcessBroker(self._config_texts)
            )
            self._address = runner.address
            self._runner = runner
            self._config_texts["listeners"] = runner.listeners
        return self

    def stop(self) -> int:
        """Stop cleanly, remove a temporary data directory, and return the exit code."""
        code = self._stop_runner()
        if self._temporary:
            shutil.rmtree(self.data_dir, ignore_errors=True)
        return code

    def kill(self) -> None:
        """Send SIGKILL, to simulate a crash. The data stays for `start`."""
        if not isinstance(self._runner, _ChildProcessBroker):
            raise TallystickError("only a broker in a child process can be killed; this one runs in a thread")
        self._runner.kill()
        self._runner = None

    def restart(self) -> Self:
        """Stop cleanly if it runs, and start on the same data at the same address."""
        self._stop_runner()
        return self.start()

    def _stop_runner(self) -> int:
        runner, self._runner = self._runner, None
        return 0 if runner is None else runner.stop()

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()


def start_process() -> "subprocess.Popen[bytes]":
    """Start a process that waits for the settings on its standard input."""
    # Ctrl-C at a terminal must reach only the program, which stops its clients before its broker.
    return subprocess.Popen(
        [sys.executable, "-m", "tallystick.broker"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        process_group=0,
    )


class _ChildProcessBroker:
    """The broker in a child process."""

    address: str

    def __init__(self, settings: Mapping[str, str]) -> None:
        self._process = start_process()
        self._stdin = require(self._process.stdin, "it is a pipe")
        self._stdout = require(self._process.stdout, "it is a pipe")
        self._stdin.write(json.dumps(dict(settings)).encode() + b"\n")
        self._stdin.flush()
        line = self._stdout.readline()
        answer = json.loads(line) if line else {"error": "the broker process ended without an error message"}
        if "error" in answer:
            self.kill()
            raise BrokerDidNotStart(answer["error"])
        self.address = f"{answer['host']}:{answer['port']}"
        self.listeners: str = answer["listeners"]

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def is_alive(self) -> bool:
        return self._process.poll() is None

    def stop(self) -> int:
        self._stdin.close()
        try:
            code = self._process.wait(_STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self.kill()
            raise
        self._close()
        return code

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()
        self._close()

    def _close(self) -> None:
        self._stdin.close()
        self._stdout.close()


class _ThreadBroker:
    """The broker on a loop in a daemon thread."""

    def __init__(self, settings: Mapping[str, str]) -> None:
        self._config = BrokerConfig.parse(settings)
        self._start_future: Future[tuple[asyncio.AbstractEventLoop, Service]] = Future()
        self._exit_code = 0
        self._thread = threading.Thread(target=self._run, name="tallystick-broker", daemon=True)
        self._thread.start()
        try:
            self._loop, self._service = self._start_future.result()
        except Exception as exc:
            raise BrokerDidNotStart(str(exc)) from exc
        self.address = str(self._service.broker.address)
        self.listeners = self._service.describe_listeners()

    @property
    def is_alive(self) -> bool:
        return self._thread.is_alive()

    def _run(self) -> None:
        failure: BaseException = TallystickError("the broker process ended without an error message")
        try:
            self._exit_code = asyncio.run(serve(self._config, Hooks(ready=self._on_started)))
        except Exception as exc:
            failure = exc
        finally:
            if not self._start_future.done():
                self._start_future.set_exception(failure)

    def _on_started(self, service: Service) -> None:
        self._start_future.set_result((asyncio.get_running_loop(), service))

    def stop(self) -> int:
        if self._thread.is_alive():
            self._loop.call_soon_threadsafe(self._service.stop_requested.set)
        self._thread.join(_STOP_TIMEOUT_S)
        return self._exit_code


def _format_setting(value: object) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    return str(value)
