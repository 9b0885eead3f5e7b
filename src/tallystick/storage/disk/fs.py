"""Every file access of the broker's data directories, behind one protocol (style R14).

`RealFileSystem` is a thin layer over system calls; `harness.memory_fs.MemoryFileSystem` models what a crash
may lose. The layer adds no guarantee of its own: bytes are durable after `File.sync`, a name after
`FileSystem.sync_dir` of its directory, and neither before.
"""

import errno
import fcntl
import os
from collections.abc import Callable, Sequence
from typing import Final, Protocol

from tallystick.kernel.errors import TallystickError

Buffer = bytes | bytearray | memoryview

# Records are nobody's but the broker's and its group's, whatever the umask of the shell that starts it.
_FILE_MODE: Final = 0o640
_FOLDER_MODE: Final = 0o750


class StorageFailure(TallystickError):
    """A disk operation failed. Attributes: path, reason."""

    def __init__(self, path: str, reason: str) -> None:
        super().__init__(path, reason)
        self.path, self.reason = path, reason

    def __str__(self) -> str:
        return f"{self.path}: {self.reason}"


class CorruptLog(StorageFailure):
    """Synced bytes have changed or are missing. Attributes: file, position, expected, found."""

    def __init__(self, file: str, position: int, expected: str, found: str) -> None:
        super().__init__(
            file,
            f"corrupt at byte {position}: expected {expected}, found {found}. Nothing was changed; restore"
            " this partition from a backup, and check the disk",
        )
        self.args = (file, position, expected, found)
        self.file, self.position, self.expected, self.found = file, position, expected, found


class DiskFull(StorageFailure):
    """The disk has no room for these bytes. Nothing was appended; reads still work."""

    def __str__(self) -> str:
        return f"{super().__str__()}. Nothing was changed; free space on this disk"


class OutOfDescriptors(DiskFull):
    """The process ran out of file descriptors or memory. Nothing was done, and the disk is sound."""

    def __str__(self) -> str:
        return f"{self.path}: {self.reason}. Nothing was changed; raise the limit of open files or of memory"


class LogOffline(StorageFailure):
    """A sync or repair failed, so the file's state is unknown: its data directory is finished [LOG-4]."""

    def __str__(self) -> str:
        return (
            f"{super().__str__()}. Batches that were not synced may be lost; check the disk and start the"
            " broker again"
        )


class File(Protocol):
    """One open file. Writes go to the end; reads name their position."""

    @property
    def path(self) -> str: ...

    def write(self, buffers: Sequence[Buffer]) -> int:
        """Append all of `buffers`; return their size. After an OSError any prefix may be in the file."""
        ...

    def pread(self, size: int, at: int) -> bytes:
        """Read up to `size` bytes at position `at`; fewer only at the end of the file."""
        ...

    def sync(self) -> None:
        """Block until every byte written is on disk. After an OSError the state is unknown (never retry)."""
        ...

    def truncate(self, size: int) -> None: ...

    def size(self) -> int: ...

    def drop_page_cache(self) -> None:
        """Drop clean pages from the page cache, so that the next read comes from disk."""
        ...

    def close(self) -> None: ...


class Lock(Protocol):
    """A held lock, freed by `release` or at the end of the process."""

    def release(self) -> None: ...


class FileSystem(Protocol):
    """A tree of files named by plain strings with `/`. Raises OSError, as the system does."""

    def open_append(self, path: str) -> File:
        """Open for reading and appending, creating an empty file if there is none."""
        ...

    def open_read(self, path: str) -> File: ...

    def read_bytes(self, path: str) -> bytes: ...

    def exists(self, path: str) -> bool: ...

    def size(self, path: str) -> int: ...

    def listdir(self, path: str) -> list[str]:
        """Return sorted names, files and directories alike."""
        ...

    def is_dir(self, path: str) -> bool: ...

    def mkdir(self, path: str) -> None:
        """Make a directory and its parents; not an error if it exists."""
        ...

    def rename(self, old: str, new: str) -> None:
        """Rename atomically, replacing `new`."""
        ...

    def remove(self, path: str) -> None: ...

    def rmdir(self, path: str) -> None: ...

    def sync_dir(self, path: str) -> None:
        """Block until the names in this directory are on disk."""
        ...

    def free_bytes(self, path: str) -> int: ...

    def preallocate(self, path: str, size: int) -> None:
        """Make or resize a file of `size` bytes whose blocks are allocated."""
        ...

    def lock(self, path: str) -> Lock | None:
        """Take an exclusive lock on a file; return None if another process holds it."""
        ...


def replace_file(fs: FileSystem, path: str, data: Buffer) -> None:
    """Write a small file so that a crash leaves the whole old or the whole new content.

    Order: temporary file, sync, rename, sync of the directory; durable when it returns.
    """
    temporary = f"{path}.tmp"
    if fs.exists(temporary):
        fs.remove(temporary)
    file = fs.open_append(temporary)
    try:
        file.write([data])
        file.sync()
    finally:
        file.close()
    fs.rename(temporary, path)
    fs.sync_dir(path.rpartition("/")[0])


def make_directory(fs: FileSystem, path: str) -> None:
    """Make a directory and its parents, each with its name on disk when this returns."""
    if fs.exists(path):
        return
    parent = path.rpartition("/")[0] or ("/" if path.startswith("/") else "")
    if parent:
        make_directory(fs, parent)
    fs.mkdir(path)
    fs.sync_dir(parent)


def is_disk_full(error: OSError) -> bool:
    """Return True if a write failed for lack of space, so that a later one may succeed."""
    return error.errno in (errno.ENOSPC, errno.EDQUOT)


def is_process_exhausted(error: OSError) -> bool:
    """Return True if the process, not the disk, ran out of file descriptors or memory."""
    return error.errno in (errno.EMFILE, errno.ENFILE, errno.ENOMEM)


def is_out_of_descriptors(error: OSError) -> bool:
    """Return True if only an open can have failed.

    ENOMEM does not count: it may come from a sync, and then the state of the disk is unknown.
    """
    return error.errno in (errno.EMFILE, errno.ENFILE)


def is_transient(error: OSError) -> bool:
    """Return True if a later attempt may succeed, and the state of the disk is still known."""
    return is_disk_full(error) or is_process_exhausted(error)


def make_disk_full(path: str, operation: str, error: OSError) -> DiskFull:
    """Return the exception to raise for a passing error."""
    return (DiskFull if is_disk_full(error) else OutOfDescriptors)(path, f"{operation}: {error}")


def is_disk_failure(error: BaseException) -> bool:
    """Return True if the disk failed in a way that will fail a log's next sync, too."""
    return isinstance(error, OSError) and error.errno in (errno.EIO, errno.EROFS)


class Syscalls:
    """The system calls that change a disk, in one place where a test can record them [FS-1]."""

    def __init__(self) -> None:
        self.open: Callable[[str, int, int], int] = os.open
        self.writev: Callable[[int, Sequence[Buffer]], int] = os.writev
        self.fdatasync: Callable[[int], None] = os.fdatasync
        self.fsync: Callable[[int], None] = os.fsync
        self.ftruncate: Callable[[int, int], None] = os.ftruncate
        self.close: Callable[[int], None] = os.close
        self.rename: Callable[[str, str], None] = os.replace
        self.unlink: Callable[[str], None] = os.unlink
        self.mkdir: Callable[[str, int], None] = os.mkdir
        self.rmdir: Callable[[str], None] = os.rmdir


# The kernel accepts at most this many buffers per call (IOV_MAX).
_IOV_MAX: Final = 1024


class RealFile:
    """A file descriptor. Sync may run in another thread than write; close must wait for both."""

    __slots__ = ("_fd", "_sys", "_writev", "path")

    def __init__(self, path: str, fd: int, sys: Syscalls) -> None:
        self.path = path
        self._fd = fd
        self._sys = sys
        self._writev = sys.writev

    def write(self, buffers: Sequence[Buffer]) -> int:
        total = 0
        for buffer in buffers:
            total += len(buffer)
        bytes_written = self._writev(self._fd, buffers) if len(buffers) <= _IOV_MAX else 0
        if bytes_written != total:
            self._write_rest(buffers, bytes_written)
        return total

    def _write_rest(self, buffers: Sequence[Buffer], bytes_written: int) -> None:
        # A short write is no error: a signal, or a disk that fills up. The next write tells which.
        rest = memoryview(b"".join(buffers))[bytes_written:]
        while rest:
            count = self._writev(self._fd, [rest])
            if count == 0:
                raise OSError(errno.EIO, "a write wrote no bytes", self.path)
            rest = rest[count:]

    def pread(self, size: int, at: int) -> bytes:
        data = os.pread(self._fd, size, at)
        if len(data) == size or not data:
            return data
        parts = [data]
        at += len(data)
        size -= len(data)
        while size and (data := os.pread(self._fd, size, at)):
            parts.append(data)
            at += len(data)
            size -= len(data)
        return b"".join(parts)

    def sync(self) -> None:
        self._sys.fdatasync(self._fd)

    def truncate(self, size: int) -> None:
        self._sys.ftruncate(self._fd, size)

    def size(self) -> int:
        return os.fstat(self._fd).st_size

    def drop_page_cache(self) -> None:
        if hasattr(os, "posix_fadvise"):
            os.posix_fadvise(self._fd, 0, 0, os.POSIX_FADV_DONTNEED)

    def close(self) -> None:
        if self._fd >= 0:
            fd, self._fd = self._fd, -1
            self._sys.close(fd)


class RealLock:
    """An flock on an open descriptor."""

    def __init__(self, fd: int) -> None:
        self._fd = fd

    def release(self) -> None:
        if self._fd >= 0:
            fd, self._fd = self._fd, -1
            os.close(fd)


class RealFileSystem:
    """The machine's file systems."""

    def __init__(self, sys: Syscalls | None = None) -> None:
        self._sys = sys or Syscalls()

    def open_append(self, path: str) -> RealFile:
        flags = os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
        return RealFile(path, self._sys.open(path, flags, _FILE_MODE), self._sys)

    def open_read(self, path: str) -> RealFile:
        return RealFile(path, self._sys.open(path, os.O_RDONLY | os.O_CLOEXEC, 0), self._sys)

    def read_bytes(self, path: str) -> bytes:
        with open(path, "rb") as file:
            return file.read()

    def exists(self, path: str) -> bool:
        return os.path.exists(path)

    def size(self, path: str) -> int:
        return os.stat(path).st_size

    def listdir(self, path: str) -> list[str]:
        return sorted(os.listdir(path))

    def is_dir(self, path: str) -> bool:
        return os.path.isdir(path)

    def mkdir(self, path: str) -> None:
        parent = os.path.dirname(path)
        if parent and not os.path.isdir(parent):
            self.mkdir(parent)
        try:
            self._sys.mkdir(path, _FOLDER_MODE)
        except FileExistsError:
            if not os.path.isdir(path):
                raise

    def rename(self, old: str, new: str) -> None:
        self._sys.rename(old, new)

    def remove(self, path: str) -> None:
        self._sys.unlink(path)

    def rmdir(self, path: str) -> None:
        self._sys.rmdir(path)

    def sync_dir(self, path: str) -> None:
        fd = self._sys.open(path or ".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, 0)
        try:
            self._sys.fsync(fd)
        finally:
            self._sys.close(fd)

    def free_bytes(self, path: str) -> int:
        facts = os.statvfs(path)
        return facts.f_bavail * facts.f_frsize

    def preallocate(self, path: str, size: int) -> None:
        fd = self._sys.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, _FILE_MODE)
        try:
            if os.fstat(fd).st_size > size:
                self._sys.ftruncate(fd, size)
            if size:
                os.posix_fallocate(fd, 0, size)
            self._sys.fsync(fd)
        finally:
            self._sys.close(fd)

    def lock(self, path: str) -> RealLock | None:
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, _FILE_MODE)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(fd)
            return None
        return RealLock(fd)
