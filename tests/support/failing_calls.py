"""An in-memory disk with one or several failing calls: each call is numbered as it is made.

The metadata's transactions are calls of it, too, and effects after which power can fail.
"""

import errno as errors
import os
import sqlite3
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from types import MappingProxyType
from typing import Final, Literal, TypeVar

from harness.memory_fs import DirectoryTree, MemoryFile, MemoryFileSystem
from harness.sim.machine import InMemoryMetadataStore
from tallystick.storage.disk.fs import Buffer

T = TypeVar("T")

When = Literal["before", "after"]
"""Whether the disk has carried out the failing call: an error does not tell."""

CHANGES: Final = frozenset(
    {"create", "write", "sync", "truncate", "mkdir", "rename", "remove", "rmdir", "sync_dir", "metadata"}
)
METADATA: Final = "metadata"
# Calls that take a file descriptor: only these can run out of them.
OPENS: Final = frozenset({"create", "open", "read", "listdir", "sync_dir", METADATA})
# How SQLite reports an error of the system.
SQLITE_CODES: Final = MappingProxyType(
    {
        errors.ENOSPC: sqlite3.SQLITE_FULL,
        errors.EMFILE: sqlite3.SQLITE_CANTOPEN,
        errors.EIO: sqlite3.SQLITE_IOERR,
    }
)

Fails = Callable[[int, str, str], bool]


def never(number: int, name: str, path: str) -> bool:
    return False


class FailingCalls(MemoryFileSystem):
    """A disk with failing calls.

    `calls` are the names and paths of all calls since `count`, `failed` those that failed.
    """

    def __init__(self, tree: DirectoryTree | None = None) -> None:
        super().__init__(tree)
        self.calls: list[tuple[str, str]] = []
        self.failed: list[tuple[str, str]] = []
        self._fails: Fails = never
        self._error = errors.EIO
        self._when: When = "before"

    def count(self) -> None:
        """Start numbering calls from 0 again, with no call failing."""
        self.calls.clear()
        self.failed.clear()
        self.heal()

    def heal(self) -> None:
        self._fails = never

    def fail(self, error: int, fails: Fails, when: When = "before") -> None:
        """Make the calls fail that `fails` selects by number, name and path."""
        self._error, self._fails, self._when = error, fails, when

    def call(self, name: str, path: str, do: Callable[[], T]) -> T:
        number = len(self.calls)
        self.calls.append((name, path))
        if not self._fails(number, name, path):
            return do()
        self.failed.append((name, path))
        if self._when == "after" and name in CHANGES:
            do()
        if name == METADATA:
            failure = sqlite3.OperationalError(os.strerror(self._error))
            failure.sqlite_errorcode = SQLITE_CODES[self._error]
            raise failure
        raise OSError(self._error, os.strerror(self._error), path)

    # -- FileSystem

    def open_append(self, path: str) -> MemoryFile:
        return FailingFile(
            self, self.call("create", path, lambda: super(FailingCalls, self).open_append(path))
        )

    def open_read(self, path: str) -> MemoryFile:
        return FailingFile(self, self.call("open", path, lambda: super(FailingCalls, self).open_read(path)))

    def read_bytes(self, path: str) -> bytes:
        return self.call("read", path, lambda: super(FailingCalls, self).read_bytes(path))

    def listdir(self, path: str) -> list[str]:
        return self.call("listdir", path, lambda: super(FailingCalls, self).listdir(path))

    def mkdir(self, path: str) -> None:
        self.call("mkdir", path, lambda: super(FailingCalls, self).mkdir(path))

    def rename(self, old: str, new: str) -> None:
        self.call("rename", old, lambda: super(FailingCalls, self).rename(old, new))

    def remove(self, path: str) -> None:
        self.call("remove", path, lambda: super(FailingCalls, self).remove(path))

    def rmdir(self, path: str) -> None:
        self.call("rmdir", path, lambda: super(FailingCalls, self).rmdir(path))

    def sync_dir(self, path: str) -> None:
        self.call("sync_dir", path, lambda: super(FailingCalls, self).sync_dir(path))


class FailingFile(MemoryFile):
    """An open file of the failing disk."""

    def __init__(self, fs: FailingCalls, file: MemoryFile) -> None:
        super().__init__(fs, file.path, file._node)
        self._calls = fs

    def write(self, buffers: Sequence[Buffer]) -> int:
        return self._calls.call("write", self.path, lambda: super(FailingFile, self).write(buffers))

    def pread(self, size: int, at: int) -> bytes:
        return self._calls.call("pread", self.path, lambda: super(FailingFile, self).pread(size, at))

    def sync(self) -> None:
        self._calls.call("sync", self.path, super().sync)

    def truncate(self, size: int) -> None:
        self._calls.call("truncate", self.path, lambda: super(FailingFile, self).truncate(size))


class FailingStore(InMemoryMetadataStore):
    """The metadata on such a disk: a transaction is one call, and one effect."""

    def __init__(self, fs: FailingCalls, cluster_id: str, content: bytes | None = None) -> None:
        self._fs = fs
        super().__init__(cluster_id, content)

    def _transaction(self) -> "AbstractContextManager[None]":  # type: ignore[override]
        self._make_room()
        return _Transaction(self._fs, self._db)


class _Transaction(AbstractContextManager[None]):
    def __init__(self, fs: FailingCalls, db: sqlite3.Connection) -> None:
        self._fs, self._db = fs, db

    def __enter__(self) -> None:
        self._db.execute("BEGIN IMMEDIATE")

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        try:
            if kind is None:
                self._fs.call(METADATA, "", self._commit)
        finally:
            if self._db.in_transaction:
                self._db.execute("ROLLBACK")

    def _commit(self) -> None:
        self._fs.apply_effect(METADATA, "", lambda: self._db.execute("COMMIT"))
