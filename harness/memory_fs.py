"""An in-memory file system that loses what a real one may lose when power fails (style R14, R17).

It keeps the view of programs apart from the content of the disk. `sync` of a file puts its bytes on the disk,
`sync_dir` of a directory its names. At a crash each change since then may or may not have happened: a file
keeps any prefix of its unsynced writes, the last one torn anywhere, or any subset of them with holes of
zeros between; a directory keeps any prefix of its unsynced changes or, on a file system that does not order
them, any subset.

Effects are numbered and recorded, so that a test can crash after each of them. To try every state that a
crash could leave, call `crash_choosing` with the choices of `iter_choosers`.
"""

import errno
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Final, Literal

from tallystick.storage.disk.fs import Buffer

SurvivingChanges = Literal["nothing", "everything", "prefix", "subset", "unordered"]
"""The unsynced changes that survive a crash; the last three are drawn from the seed.

`subset` applies to the writes to a file, while names keep their order; `unordered` applies to both.
"""


Chooser = Callable[[int], int]
"""Picks one of the given number of possibilities, counted from 0."""

FaultHook = Callable[[str, str], OSError | None]
"""Takes a system call's name and path; returns the error it fails with, or None to let it succeed."""


class PowerLost(BaseException):
    """Raised at the point where the process dies.

    Not an Exception, so that no handler catches it and carries on.
    """


@dataclass(eq=False, slots=True)
class _FileNode:
    """A file's content.

    `pending` holds the changes since the last sync: (position, bytes) for a write, (size, None) for a
    truncation.
    """

    data: bytearray = field(default_factory=bytearray)
    synced_data: bytes = b""
    pending: list[tuple[int, bytes | None]] = field(default_factory=list)

    def write(self, data: bytes) -> None:
        self.pending.append((len(self.data), data))
        self.data += data

    def truncate(self, size: int) -> None:
        self.pending.append((size, None))
        _resize(self.data, size)

    def sync(self) -> None:
        self.synced_data = bytes(self.data)
        self.pending.clear()

    def crash(self, keep: SurvivingChanges, random: Random) -> None:
        data = bytearray(self.synced_data)
        count = len(self.pending)
        kept_count = {"nothing": 0, "everything": count}.get(keep, random.randint(0, count))
        for number, (at, change) in enumerate(self.pending):
            is_torn = number == kept_count and keep == "prefix"
            is_lost = random.random() < 0.5 if keep in ("subset", "unordered") else number >= kept_count
            if change is None:
                if not is_lost:
                    _resize(data, at)
            elif is_torn or not is_lost:
                part = change[: random.randint(0, len(change))] if is_torn else change
                if len(data) < at:
                    _resize(data, at)  # a hole: the size reached the disk, the bytes did not
                data[at : at + len(part)] = part
        self.data = data
        self.sync()

    def crash_choosing(self, choose: Chooser) -> None:
        """Keep each unsynced change in full or not at all, or only the first half of a write."""
        data = bytearray(self.synced_data)
        for at, change in self.pending:
            if change is None:
                if choose(2):
                    _resize(data, at)
            elif (is_kept := choose(3)) > 0:
                part = change if is_kept == 1 else change[: len(change) // 2]
                if len(data) < at:
                    _resize(data, at)
                data[at : at + len(part)] = part
        self.data = data
        self.sync()


def _resize(data: bytearray, size: int) -> None:
    del data[size:]
    data += bytes(size - len(data))


# A change of one directory: each path and the node it names afterwards (None: the name is removed).
_Change = tuple[tuple[str, "_FileNode | None"], ...]


class DirectoryTree:
    """The directories and the names in them: as programs see them, and as the disk has them.

    A change of names is durable when its directory is synced. A crash keeps some of the changes since.
    """

    def __init__(self) -> None:
        self._dirs: dict[str, bool] = {"": True}  # path -> whether its name is on the disk
        self._names: dict[str, _FileNode] = {}
        self._durable_names: dict[str, _FileNode] = {}
        self._unsynced_changes: dict[str, list[_Change]] = {}

    @classmethod
    def synced(cls, directories: Sequence[str], files: Mapping[str, bytes]) -> "DirectoryTree":
        """Return a tree of these directories and files, all of them on the disk."""
        tree = cls()
        tree._dirs.update(dict.fromkeys(directories, True))
        tree._names = {path: _FileNode(bytearray(data), data) for path, data in files.items()}
        tree._durable_names = dict(tree._names)
        return tree

    @property
    def nodes(self) -> Mapping[str, _FileNode]:
        """Every file by its path, as programs see it."""
        return self._names

    @property
    def directories(self) -> Collection[str]:
        return self._dirs.keys()

    def get(self, path: str) -> _FileNode:
        if path not in self._names:
            raise FileNotFoundError(errno.ENOENT, "no such file", path)
        return self._names[path]

    def require_dir(self, path: str) -> None:
        if path not in self._dirs:
            raise FileNotFoundError(errno.ENOENT, "no such directory", path)

    def list_names(self, path: str) -> list[str]:
        """Return the names in a directory, sorted."""
        self.require_dir(path)
        start = f"{path}/"
        names = (each[len(start) :] for each in (*self._names, *self._dirs) if each.startswith(start))
        return sorted(name for name in names if name and "/" not in name)

    def change(self, *name_changes: tuple[str, _FileNode | None]) -> None:
        """Let each path name a file, or none, in one step."""
        for path, node in name_changes:
            if node is None:
                self._names.pop(path, None)
            else:
                self._names[path] = node
        self._unsynced_changes.setdefault(parent_of(name_changes[0][0]), []).append(name_changes)

    def add_dir(self, path: str) -> None:
        self._dirs[path] = False

    def rename_dir(self, old: str, new: str) -> None:
        # Modelled as durable at once: recovery treats either name the same.
        for names in (self._names, self._durable_names):
            for path in [path for path in names if path.startswith(f"{old}/")]:
                names[new + path[len(old) :]] = names.pop(path)
        self._unsynced_changes.pop(old, None)
        self._dirs[new] = self._dirs.pop(old)

    def remove_dir(self, directory: str) -> None:
        """Remove a directory and everything in it, durably."""
        for names in (self._durable_names, self._names):
            for path in [path for path in names if path.startswith(f"{directory}/")]:
                del names[path]
        for path in [path for path in self._dirs if path == directory or path.startswith(f"{directory}/")]:
            del self._dirs[path]

    def sync_dir(self, path: str) -> None:
        for change in self._unsynced_changes.pop(path, []):
            self._apply_durably(change)
        for each in self._dirs:
            if each and parent_of(each) == path:
                self._dirs[each] = True

    def crash(self, keep: SurvivingChanges, random: Random) -> None:
        """Keep of the unsynced changes, to names and to files, what `keep` and the draws decide."""
        for changes in self._unsynced_changes.values():
            count = len(changes)
            kept_count = {"nothing": 0, "everything": count}.get(keep, random.randint(0, count))
            for number, change in enumerate(changes):
                if random.random() < 0.5 if keep == "unordered" else number < kept_count:
                    self._apply_durably(change)
        self._keep_dirs(lambda: keep != "nothing" and (keep == "everything" or random.random() >= 0.5))
        for node in dict.fromkeys(self._names.values()):
            node.crash(keep, random)

    def crash_choosing(self, choose: Chooser, derived_names: tuple[str, ...]) -> None:
        """Ask about each unsynced change whether it is kept; see `MemoryFileSystem.crash_choosing`."""
        names_of_derived: int | None = None
        for change in (each for changes in self._unsynced_changes.values() for each in changes):
            if all(path.endswith(derived_names) for path, _ in change):
                is_kept = names_of_derived = choose(2) if names_of_derived is None else names_of_derived
            else:
                is_kept = choose(2)
            if is_kept:
                self._apply_durably(change)
        self._keep_dirs(lambda: bool(choose(2)))
        of_derived: int | None = None
        for path, node in self._names.items():
            if not node.pending:
                node.sync()
            elif path.endswith(derived_names):
                of_derived = choose(3) if of_derived is None else of_derived
                keep: SurvivingChanges = ("nothing", "everything", "prefix")[of_derived]
                node.crash(keep, Random(0))
            else:
                node.crash_choosing(choose)

    def _keep_dirs(self, is_kept: Callable[[], bool]) -> None:
        """Keep some of the directories that are not on the disk, and show programs what the disk has."""
        self._unsynced_changes.clear()
        for path in [path for path, durable in self._dirs.items() if not durable]:
            if is_kept():
                self._dirs[path] = True
            else:
                self.remove_dir(path)
        self._names = dict(self._durable_names)

    def _apply_durably(self, change: _Change) -> None:
        for path, node in change:
            if node is None:
                self._durable_names.pop(path, None)
            else:
                self._durable_names[path] = node


class MemoryFile:
    """An open file.

    Calls after a crash raise PowerLost: a process that survives its power loss is a bug of the test.
    """

    def __init__(self, fs: "MemoryFileSystem", path: str, node: _FileNode) -> None:
        self.path = path
        self._fs = fs
        self._node = node
        self._life = fs.boot_count

    def write(self, buffers: Sequence[Buffer]) -> int:
        data = b"".join(buffers)
        self._check_alive()
        failure = self._fs.write_failure or self._fs.failure_of("write", self.path)
        room = self._fs.free_bytes()
        if failure is not None or len(data) > room:
            part = data[: min(room, len(data) // 2)] if failure else data[:room]
            self._fs.apply_effect("write", self.path, lambda: self._node.write(part))
            raise failure or OSError(errno.ENOSPC, "no space left on device", self.path)
        self._fs.apply_effect("write", self.path, lambda: self._node.write(data))
        return len(data)

    def pread(self, size: int, at: int) -> bytes:
        self._check_alive()
        self._fs.maybe_fail("read", self.path)
        return bytes(self._node.data[at : at + size])

    def sync(self) -> None:
        self._check_alive()
        failure = self._fs.sync_failure or self._fs.failure_of("sync", self.path)
        if failure is not None:
            # As the Linux kernel does: the pages count as clean now, but are not on the disk.
            self._fs.apply_effect("sync fails", self.path, lambda: None)
            raise failure
        self._fs.apply_effect("sync", self.path, self._node.sync)

    def truncate(self, size: int) -> None:
        self._check_alive()
        if self._fs.truncate_failure is not None:
            raise self._fs.truncate_failure
        self._fs.maybe_fail("truncate", self.path)
        self._fs.apply_effect("truncate", self.path, lambda: self._node.truncate(size))

    def size(self) -> int:
        self._check_alive()
        return len(self._node.data)

    def drop_page_cache(self) -> None:
        self._check_alive()

    def close(self) -> None:
        return None

    def _check_alive(self) -> None:
        if self._life != self._fs.boot_count:
            raise PowerLost


class _MemoryLock:
    def __init__(self, locks: set[str], path: str) -> None:
        self._locks, self._path = locks, path

    def release(self) -> None:
        self._locks.discard(self._path)


UNLIMITED: Final = 1 << 60


class MemoryFileSystem:
    """A file system in memory; see the module.

    Attributes to set: `capacity`, `write_failure`, `sync_failure`, `truncate_failure` (raised by the calls
    they name), `fault` (asked before every call that can fail), `crash_after` (the number of the effect after
    which power fails).
    """

    def __init__(
        self,
        tree: DirectoryTree | None = None,
        *,
        capacity: int = UNLIMITED,
        crash_after: int | None = None,
    ) -> None:
        self.capacity = capacity
        self.crash_after = crash_after
        self.write_failure: OSError | None = None
        self.sync_failure: OSError | None = None
        self.truncate_failure: OSError | None = None
        self.fault: FaultHook | None = None
        self.effects: list[tuple[str, str]] = []
        self.boot_count = 0
        self.has_lost_power = False  # from the loss of power until `crash`: calls have no effect
        self._tree = DirectoryTree() if tree is None else tree
        self._locks: set[str] = set()

    def failure_of(self, name: str, path: str) -> OSError | None:
        """Return the error the call is to fail with, if any; after a power loss always None."""
        return None if self.fault is None or self.has_lost_power else self.fault(name, path)

    def maybe_fail(self, name: str, path: str) -> None:
        """Raise the error the call is to fail with, if any."""
        failure = self.failure_of(name, path)
        if failure is not None:
            raise failure

    # -- crashing -----------------------------------------------------------------------------------------

    def apply_effect(self, name: str, path: str, do: Callable[[], None]) -> None:
        """Carry out an effect on the disk, record it, and lose power after number `crash_after`."""
        if self.has_lost_power:
            raise PowerLost(f"before {name} {path}: a dead process cleans nothing up")
        do()
        self.effects.append((name, path))
        if self.crash_after is not None and len(self.effects) > self.crash_after:
            self.has_lost_power = True
            self.boot_count += 1
            raise PowerLost(f"after {name} {path}")

    def crash(self, keep: SurvivingChanges = "nothing", seed: int = 0) -> None:
        """Lose power and leave the disk as the next process finds it."""
        self._begin_life()
        self._tree.crash(keep, Random(seed))

    def crash_choosing(self, choose: Chooser, derived_names: Sequence[str] = ()) -> None:
        """Lose power, and ask `choose` about each unsynced change on its own whether to keep it.

        Args:
            choose: answers each question with the number of a possibility.
            derived: endings of files that can be rebuilt from others. Their names are kept all or none, and
                their bytes in full, in part or not at all; otherwise there would be too many combinations.
        """
        self._begin_life()
        self._tree.crash_choosing(choose, tuple(derived_names))

    def _begin_life(self) -> None:
        self.boot_count += 1
        self.crash_after = None
        self.has_lost_power = False
        self.effects.clear()
        self._locks.clear()

    # -- for tests: what is there ---------------------------------------------------------------------------

    def node(self, path: str) -> _FileNode:
        """Return the content of a file, to be looked at or damaged."""
        return self._tree.get(path)

    def files(self) -> dict[str, bytes]:
        """Return every file with its bytes, for copying this disk to a real one."""
        return {path: bytes(node.data) for path, node in self._tree.nodes.items()}

    def directories(self) -> list[str]:
        return sorted(self._tree.directories)

    # -- FileSystem -----------------------------------------------------------------------------------------

    def open_append(self, path: str) -> MemoryFile:
        self.maybe_fail("open", path)
        if path not in self._tree.nodes:
            self._tree.require_dir(parent_of(path))
            node = _FileNode()
            self.apply_effect("create", path, lambda: self._tree.change((path, node)))
        return MemoryFile(self, path, self._tree.get(path))

    def open_read(self, path: str) -> MemoryFile:
        self.maybe_fail("open", path)
        return MemoryFile(self, path, self._tree.get(path))

    def read_bytes(self, path: str) -> bytes:
        self.maybe_fail("open", path)
        self.maybe_fail("read", path)
        return bytes(self._tree.get(path).data)

    def exists(self, path: str) -> bool:
        return path in self._tree.nodes or path in self._tree.directories

    def size(self, path: str) -> int:
        return len(self._tree.get(path).data)

    def listdir(self, path: str) -> list[str]:
        return self._tree.list_names(path)

    def is_dir(self, path: str) -> bool:
        return path in self._tree.directories

    def mkdir(self, path: str) -> None:
        if self.is_dir(path):
            return
        self.mkdir(parent_of(path))
        self.maybe_fail("mkdir", path)
        self.apply_effect("mkdir", path, lambda: self._tree.add_dir(path))

    def rename(self, old: str, new: str) -> None:
        self.maybe_fail("rename", old)
        if self.is_dir(old):
            self.apply_effect("rename", old, lambda: self._tree.rename_dir(old, new))
            return
        node = self._tree.get(old)
        self.apply_effect("rename", old, lambda: self._tree.change((old, None), (new, node)))

    def remove(self, path: str) -> None:
        self._tree.get(path)
        self.maybe_fail("remove", path)
        self.apply_effect("remove", path, lambda: self._tree.change((path, None)))

    def rmdir(self, path: str) -> None:
        if self.listdir(path):
            raise OSError(errno.ENOTEMPTY, "directory not empty", path)
        self.maybe_fail("remove", path)
        self.apply_effect("rmdir", path, lambda: self._tree.remove_dir(path))

    def sync_dir(self, path: str) -> None:
        if self.sync_failure is not None:
            raise self.sync_failure
        self._tree.require_dir(path)
        self.maybe_fail("open", path)
        self.maybe_fail("sync_dir", path)
        self.apply_effect("sync_dir", path, lambda: self._tree.sync_dir(path))

    def free_bytes(self, path: str = "") -> int:
        used_bytes = sum(len(node.data) for node in self._tree.nodes.values())
        return max(0, self.capacity - used_bytes)

    def preallocate(self, path: str, size: int) -> None:
        file = self.open_append(path)
        missing = size - file.size()
        if missing > 0:
            file.write([bytes(missing)])
        else:
            file.truncate(size)
        file.sync()

    def lock(self, path: str) -> _MemoryLock | None:
        if path in self._locks:
            return None
        self.open_append(path)
        self._locks.add(path)
        return _MemoryLock(self._locks, path)


def iter_choosers() -> Iterator[Chooser]:
    """Yield choosers that together give every combination of answers.

    Do a deterministic run once with each of them, to its end.
    """
    script: list[tuple[int, int]] = []  # each answer, and the number of possibilities
    while True:
        at = 0

        def choose(count: int) -> int:
            nonlocal at
            if at == len(script):
                script.append((0, count))
            answer, of = script[at]
            if of != count:
                raise ValueError(f"question {at} has {count} answers, it had {of}: the run is not the same")
            at += 1
            return answer

        yield choose
        while script and script[-1][0] + 1 == script[-1][1]:
            script.pop()
        if not script:
            return
        answer, of = script.pop()
        script.append((answer + 1, of))


def parent_of(path: str) -> str:
    return path.rpartition("/")[0]
