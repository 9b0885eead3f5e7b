"""Storage of a table's data files: a folder of this host, or an object store."""

import os
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any, Final, Protocol, TypeVar

from tallystick import lake
from tallystick.kernel.settings import BadConfig
from tallystick.lake.names import TableUrl, find_url_problem
from tallystick.lake.ports import ListedFile

T = TypeVar("T")

_REQUESTS_MAX: Final = 16


class Storage(Protocol):
    """The files of one table, by their path in it.

    buffer_bytes  what a file that is being written holds in memory, besides its writer; 0 if it is on a disk
    """

    buffer_bytes: int

    def create(self, path: str) -> Any:
        """Return a binary file to write to, with `tell`. A reader may not see it before `finish`."""

    def finish(self, path: str, sink: Any) -> int:
        """Close the file and make it durable; return its size in bytes."""

    def abandon(self, sink: Any) -> None:
        """Give up a file that is not finished; it may be there afterwards."""

    def read(self, path: str) -> bytes | None:
        """Return the content of a small file; None if there is none."""

    def size(self, path: str) -> int | None:
        """Return the size of a file in bytes; None if there is none."""

    def list(self, folder: str) -> Mapping[str, ListedFile]:
        """Return the files of a folder, not of those below it."""

    def sync(self, path: str) -> None:
        """Make a file that another library has written durable, with its name."""

    def try_remove(self, path: str) -> None:
        """Remove a file, if it is there and that is possible."""

    def find_fence_problem(self) -> str | None:
        """Return why a file that was created "only if absent" may still be overwritten; None if it cannot.

        What a file system promises, an object store has to show. Raises: OSError.
        """


class LocalStorage:
    """A folder of this host's file system."""

    buffer_bytes = 0

    def __init__(self, root: Path) -> None:
        self._root = root

    def create(self, path: str) -> Any:
        return (self._root / path).open("xb")

    def finish(self, path: str, sink: Any) -> int:
        try:
            sink.flush()
            os.fsync(sink.fileno())
            size_bytes: int = sink.tell()
        finally:
            sink.close()  # raises as well what the disk has refused
        _sync((self._root / path).parent)
        return size_bytes

    def abandon(self, sink: Any) -> None:
        sink.close()

    def read(self, path: str) -> bytes | None:
        try:
            return (self._root / path).read_bytes()
        except FileNotFoundError:
            return None

    def size(self, path: str) -> int | None:
        try:
            return (self._root / path).stat().st_size
        except FileNotFoundError:
            return None

    def list(self, folder: str) -> Mapping[str, ListedFile]:
        base = self._root / folder
        files = {}
        for entry in os.scandir(base):
            with suppress(FileNotFoundError):  # removed meanwhile
                if entry.is_file():
                    status = entry.stat()
                    modified_ms = status.st_mtime_ns // 1_000_000
                    files[f"{folder}/{entry.name}".lstrip("/")] = ListedFile(status.st_size, modified_ms)
        return files

    def sync(self, path: str) -> None:
        sync_file(self._root / path)

    def try_remove(self, path: str) -> None:
        with suppress(OSError):
            (self._root / path).unlink()

    def find_fence_problem(self) -> str | None:
        return None


def map_files(storage: Storage, act: Callable[[str], T], paths: Sequence[str]) -> list[T]:
    """Return what `act` returns for each file, in their order; of an object store several at once."""
    if not storage.buffer_bytes or len(paths) < 2:
        return [act(path) for path in paths]
    with ThreadPoolExecutor(_REQUESTS_MAX, "tallystick-files") as pool:
        return list(pool.map(act, paths))


def open_folder(folder: Path) -> LocalStorage:
    """Return the storage of a folder, which is made if it is not there."""
    if not folder.is_dir():
        folder.mkdir(parents=True, exist_ok=True)
        _sync(folder.parent)
    return LocalStorage(folder)


def sync_file(path: Path) -> None:
    """Make a file durable, with its name."""
    _sync(path)
    _sync(path.parent)


def _sync(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def open_storage(url: TableUrl, options: Mapping[str, str]) -> Storage:
    """Return where the data files of a table are. Raises: BadConfig; MissingLibrary for an object store.

    Args:
        options: the table's storage options; a folder needs none.
    """
    problem = find_url_problem(str(url))
    if problem is not None:
        raise BadConfig(problem)
    if url.is_in_object_store:
        return lake.object_storage.ObjectStorage(url.place, options)
    return LocalStorage(Path(url.folder))
