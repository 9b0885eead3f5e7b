"""Storage of an Iceberg table's files: a folder of this host, or a pyarrow file system of pyiceberg.

Options of the storage are the properties of the table's catalog, by their names in pyiceberg (`s3.endpoint`).
The catalog fences here, so that the storage has to promise nothing but that a finished file is there.
"""

from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

from pyarrow.fs import FileInfo, FileSelector, FileType
from pyiceberg.io import FileIO, load_file_io
from pyiceberg.io.pyarrow import PyArrowFileIO

from tallystick.lake.names import StorageOptions
from tallystick.lake.ports import ListedFile
from tallystick.lake.storage import LocalStorage, Storage, open_folder

# Of a FileIO, and no others: other properties of a catalog may be its own login, or no text.
_FILE_OPTIONS: Final = ("py-io-impl", "s3.", "gcs.", "adls.", "oss.", "hdfs.", "hf.", "client.")
_STREAM_BYTES: Final = 8 * 1024 * 1024


def find_path(uri: str) -> Path | None:
    """Return the path of a file of this host; None for one elsewhere."""
    parts = urlsplit(uri)
    if parts.scheme == "":
        return Path(uri).absolute()
    # Not unquoted: pyiceberg takes the path as it is.
    return Path(parts.path) if parts.scheme == "file" else None


def find_storage_problem(uri: str, io: FileIO) -> str | None:
    """Return why files cannot be written at a place; None if they can, as far as their URI tells."""
    if find_path(uri) is not None or isinstance(io, PyArrowFileIO):
        return None
    return (
        f"has its files at {uri}, which pyiceberg reaches through {type(io).__name__}: this writer needs "
        "pyarrow's file systems. Set py-io-impl to pyiceberg.io.pyarrow.PyArrowFileIO"
    )


def open_files(uri: str, io: FileIO) -> Storage:
    """Return the files below a URI, of a table that is open."""
    path = find_path(uri)
    return FileIoStorage(uri, io) if path is None else LocalStorage(path)


def select_file_options(properties: Mapping[str, object]) -> StorageOptions:
    """Return those properties of a table's FileIO by which another process reaches its files."""
    return StorageOptions.build(
        {n: t for n, t in properties.items() if isinstance(t, str) and n.startswith(_FILE_OPTIONS)}
    )


def open_task_files(uri: str, properties: Mapping[str, str]) -> Storage:
    """Return the files below a URI, without the table; a folder is made if it is not there."""
    path = find_path(uri)
    if path is not None:
        return open_folder(path)
    return FileIoStorage(uri, load_file_io(dict(properties), uri))


class FileIoStorage:
    """The files below one URI."""

    # pyarrow keeps the part of an upload that is not full.
    buffer_bytes = _STREAM_BYTES

    def __init__(self, uri: str, io: FileIO) -> None:
        self._uri, self._io = uri, io

    def _locate(self, path: str) -> str:
        return f"{self._uri}/{path}" if path else self._uri

    def create(self, path: str) -> Any:
        return self._io.new_output(self._locate(path)).create(overwrite=True)

    def finish(self, path: str, sink: Any) -> int:
        size_bytes: int = sink.tell()
        sink.close()
        return size_bytes

    def abandon(self, sink: Any) -> None:
        sink.close()

    def read(self, path: str) -> bytes | None:
        try:
            with self._io.new_input(self._locate(path)).open() as file:
                return bytes(file.read())
        except FileNotFoundError:
            return None

    def size(self, path: str) -> int | None:
        try:
            return len(self._io.new_input(self._locate(path)))
        except FileNotFoundError:
            return None

    def list(self, folder: str) -> Mapping[str, ListedFile]:
        assert isinstance(self._io, PyArrowFileIO)  # `find_storage_problem`
        scheme, authority, place = PyArrowFileIO.parse_location(self._locate(folder), self._io.properties)
        system = self._io.fs_by_scheme(scheme, authority)
        files = system.get_file_info(FileSelector(place, allow_not_found=True))
        return {
            f"{folder}/{each.base_name}".lstrip("/"): ListedFile(each.size, _read_time(each))
            for each in files
            if each.type is FileType.File
        }

    def sync(self, path: str) -> None:
        """Do nothing: an object is durable once it is there."""

    def try_remove(self, path: str) -> None:
        with suppress(OSError):
            self._io.delete(self._locate(path))

    def find_fence_problem(self) -> str | None:
        return None


def _read_time(file: FileInfo) -> int | None:
    return None if file.mtime_ns is None else int(file.mtime_ns) // 1_000_000
