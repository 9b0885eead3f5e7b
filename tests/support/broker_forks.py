"""Broker processes that are forks of one that has loaded the broker.

Most of the processor time of a broker that lives for one test goes into its imports: 0.25 s, and a run of
`make test` starts hundreds. Here one process imports, and forks a broker each time that an `EmbeddedBroker`
starts one. It is a process as any other: with pipes, an environment, a working directory and a process group
of its own, to be killed and waited for.

`python -m tests.support.broker_forks N` is the process that forks; N is its end of a socket.
"""

import contextlib
import gc
import json
import os
import select
import signal
import socket
import subprocess
import sys
import threading
from pathlib import Path
from typing import cast

import tests.support.small_units  # noqa: F401  # before what it changes

from tallystick.broker import __main__ as broker_main

ROOT = Path(__file__).parents[2]
REQUEST_BYTES_MAX = 1 << 20
STDERR = 2


class ForkedBroker:
    """What `subprocess.Popen` is to its user, for a fork."""

    def __init__(self, forker: socket.socket) -> None:
        request = json.dumps({"cwd": os.getcwd(), "environ": dict(os.environ)})
        (their_in, our_in), (our_out, their_out), (status_out, status_in) = (os.pipe() for _ in range(3))
        socket.send_fds(forker, [request.encode()], [their_in, their_out, STDERR, status_in])
        for fd in (their_in, their_out, status_in):
            os.close(fd)
        self.stdin, self.stdout = os.fdopen(our_in, "wb"), os.fdopen(our_out, "rb")
        self._status = os.fdopen(status_out, "rb", buffering=0)
        self._lock = threading.Lock()
        self.returncode: int | None = None
        self.pid = int(self._status.readline())

    def poll(self) -> int | None:
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.wait(0)
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        with self._lock:
            if self.returncode is None:
                if not select.select([self._status], [], [], timeout)[0]:
                    raise subprocess.TimeoutExpired("a forked broker", timeout or 0)
                self.returncode = os.waitstatus_to_exitcode(int(self._status.readline()))
                self._status.close()
            return self.returncode

    def kill(self) -> None:
        if self.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGKILL)


class BrokerForks:
    """Starts brokers; the process that forks them is started by the first."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._forker: tuple[socket.socket, subprocess.Popen[bytes]] | None = None

    def start_process(self) -> subprocess.Popen[bytes]:
        """Do what `tallystick.broker.embedded.start_process` does."""
        with self._lock:
            self._forker = self._forker or self._start_forker()
        return cast(subprocess.Popen[bytes], ForkedBroker(self._forker[0]))

    def close(self) -> None:
        """End the process that forks, if there is one."""
        if self._forker is not None:
            forker, process = self._forker
            forker.shutdown(socket.SHUT_RDWR)  # a fork of the tests may have it open as well
            forker.close()
            process.wait()

    def _start_forker(self) -> tuple[socket.socket, subprocess.Popen[bytes]]:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        ours.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, REQUEST_BYTES_MAX)
        with theirs:
            command = [sys.executable, "-m", "tests.support.broker_forks", str(theirs.fileno())]
            fds = (theirs.fileno(),)
            # Ctrl-C at a terminal is for the tests alone, which stop their brokers.
            process = subprocess.Popen(
                command, cwd=ROOT, pass_fds=fds, process_group=0, stdin=subprocess.DEVNULL
            )
        return ours, process


def _serve(forker: socket.socket) -> int:
    """Fork for every request, until the other end is closed."""
    gc.freeze()  # keep the brokers' garbage collectors away from the pages they share with this process
    while True:
        request, fds, _, _ = socket.recv_fds(forker, REQUEST_BYTES_MAX, 4)
        if not request:
            return 0
        with contextlib.suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        if not os.fork():
            forker.close()
            return _keep(json.loads(request), *fds)
        for fd in fds:
            os.close(fd)


def _keep(request: dict[str, dict[str, str]], *fds: int) -> int:
    """Fork the broker, say what its pid is, and how it ended."""
    *standard, status = fds
    pid = os.fork()
    if not pid:
        os.close(status)
        return _run(request, *standard)
    for fd in standard:
        os.close(fd)
    os.write(status, b"%d\n" % pid)
    _, code = os.waitpid(pid, 0)
    os.write(status, b"%d\n" % code)
    os._exit(0)


def _run(request: dict[str, dict[str, str]], *standard: int) -> int:
    """Be `python -m tallystick.broker`."""
    os.setpgid(0, 0)
    for number, fd in enumerate(standard):
        os.dup2(fd, number)
        os.close(fd)
    os.chdir(str(request["cwd"]))
    os.environ.clear()
    os.environ.update(request["environ"])
    sys.argv[1:] = []
    return broker_main.main()


if __name__ == "__main__":
    sys.exit(_serve(socket.socket(fileno=int(sys.argv[1]))))
