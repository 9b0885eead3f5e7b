"""Names of worker processes, handed on from a process that has ended to the next one on the same host.

Spark may end its Python workers after every batch (`spark.python.worker.reuse=false`, triggers further apart
than a minute, dynamic allocation). If each drew a name of its own, the transactional ids would grow with the
number of batches [SPK-20].

A name is a file, which its process holds with flock(2): the lock ends with the process, however it ends. The
file has the nonce under which each id of the name was last used, written before the id is initialised, so
the next process keeps to the hold rule of `worker_ids` as the former one would have.

A file is believed only where its last write cannot be missing or a copy: on the same host, since the same
boot. Where there are no such files (no flock, no usable folder), a name lives as long as its process.

Source: docs/design/spark-sink.md.
"""

import json
import logging
import os
import socket
import stat
import tempfile
from collections.abc import Callable
from contextlib import suppress
from hashlib import sha256
from pathlib import Path
from typing import Final, Protocol
from weakref import finalize

try:
    from fcntl import LOCK_EX, LOCK_NB, flock
except ImportError:  # Windows
    _HAS_FLOCK = False
else:
    _HAS_FLOCK = True

_log = logging.getLogger("tallystick.spark")

_VERSION: Final = 1
_SUFFIX: Final = ".worker"
_BOOT_ID: Final = Path("/proc/sys/kernel/random/boot_id")
_BYTES_MAX: Final = 1 << 20


class WorkerName(Protocol):
    """The name of a worker process, which no other live process has.

    text         the name, as it is in transactional ids
    last_nonces  for each id, by its number, the nonce of the lease that it was last used under
    """

    text: str
    last_nonces: list[str]

    def save(self) -> None:
        """Save `last_nonces` for the next process. Raises: OSError."""


class UnsharedName:
    """A name that ends with its process."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.last_nonces: list[str] = []

    def save(self) -> None:
        """Do nothing: no process comes after this one."""


class NameFile:
    """A name in a file that this process has locked. Closed when collected."""

    def __init__(self, path: Path, descriptor: int, host: str, last_nonces: list[str]) -> None:
        self.text = path.name.removesuffix(_SUFFIX)
        self.last_nonces = last_nonces
        self._descriptor = descriptor
        self._host = host
        self.close: Callable[[], object] = finalize(self, os.close, descriptor)

    def save(self) -> None:
        message = {"v": _VERSION, "host": self._host, "nonces": self.last_nonces}
        line = json.dumps(message, separators=(",", ":")).encode() + b"\n"
        if os.pwrite(self._descriptor, line, 0) != len(line):
            raise OSError(f"{self.text}{_SUFFIX} was written in part")
        os.ftruncate(self._descriptor, len(line))


def acquire_name(cluster_and_prefix: str, draw: Callable[[], str]) -> WorkerName:
    """Take the name of a process that has ended, or else a new one.

    Args:
        cluster_and_prefix: names are handed on only between processes with the same one.
        draw: draws a random name.
    """
    host = identify_host()
    if host is None or not _HAS_FLOCK:
        return UnsharedName(draw())
    home = Path(tempfile.gettempdir(), f"tallystick-workers-{os.getuid()}")
    folder = home / sha256(cluster_and_prefix.encode()).hexdigest()[:32]
    try:
        home.mkdir(mode=0o700, exist_ok=True)
        _check_folder(home)
        folder.mkdir(mode=0o700, exist_ok=True)
        return _lock_free_file(folder, host) or _create_file(folder, host, draw())
    except OSError as exc:
        _log.info("names of worker processes are not handed on: %s", exc)
        return UnsharedName(draw())


def identify_host() -> str | None:
    """Identify this host since its last boot; None if that is not possible."""
    try:
        return f"{socket.gethostname()} {_BOOT_ID.read_text().strip()}"
    except OSError:
        return None


def _check_folder(folder: Path) -> None:
    """Raise OSError if another user may write into the folder."""
    status = folder.lstat()
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.getuid() or status.st_mode & 0o022:
        raise OSError(f"{folder} belongs to another user, or others may write to it")


def _lock_free_file(folder: Path, host: str) -> NameFile | None:
    """Lock the file of a process that has ended; remove those that cannot be believed."""
    for path in sorted(folder.glob(f"*{_SUFFIX}")):
        with suppress(FileNotFoundError):
            descriptor = _open_locked(path, os.O_RDWR)
            if descriptor is None:
                continue
            nonces = _read_nonces(descriptor, host)
            if nonces is not None:
                return NameFile(path, descriptor, host, nonces)
            try:
                path.unlink()
            finally:
                os.close(descriptor)
    return None


def _create_file(folder: Path, host: str, text: str) -> NameFile:
    path = folder / (text + _SUFFIX)
    descriptor = _open_locked(path, os.O_RDWR | os.O_CREAT | os.O_EXCL)
    if descriptor is None:
        raise OSError(f"{path} was taken as it was made")
    name = NameFile(path, descriptor, host, [])
    name.save()
    return name


def _open_locked(path: Path, flags: int) -> int | None:
    """Open and lock a file; None if another process has it, or it was removed meanwhile."""
    descriptor = os.open(path, flags | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        flock(descriptor, LOCK_EX | LOCK_NB)
        if os.fstat(descriptor).st_ino == path.stat().st_ino:
            return descriptor
    except BlockingIOError:
        pass
    except BaseException:
        os.close(descriptor)
        raise
    os.close(descriptor)
    return None


def _read_nonces(descriptor: int, host: str) -> list[str] | None:
    """Read the nonces of a file; None if it is of another host or boot, or was not written to its end."""
    line = os.pread(descriptor, _BYTES_MAX, 0).partition(b"\n")[0]
    try:
        match json.loads(line):
            case {"v": 1, "host": where, "nonces": list(nonces)} if where == host:
                return [each for each in nonces if isinstance(each, str)]
    except ValueError:
        pass
    return None
