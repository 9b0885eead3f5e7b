"""Reads the rows of one store: a thread for each store, whose connection is kept while it works.

Nothing is created or changed in a store. Each kind of database has a module of its own, because each needs a
library of its own: `sql_rows`, `rocksdb_rows`, `zookeeper_rows`, `lake_rows`.
"""

import asyncio
import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Final, Protocol
from urllib.parse import unquote, urlsplit

from tallystick.console import collect
from tallystick.console.collect.failures import describe_failure
from tallystick.console.collect.store_thread import StoreThread
from tallystick.console.model.snapshot import StoreFacts, StoreKind, Volume
from tallystick.dualwrite.stores.by_url import describe_url
from tallystick.kernel.clock import Clock
from tallystick.kernel.errors import TallystickError
from tallystick.kernel.ids import is_table_url
from tallystick.kernel.value import Value, replace

CLOSE_TIMEOUT_S: Final = 2.0
_MOUNT_TABLE: Final = Path("/proc/self/mountinfo")


class StoreAddress(Value):
    """The URL of a store. `name` is the same without its password, and means the same in every folder."""

    url: str

    @property
    def name(self) -> str:
        text = describe_url(self.url)
        kind, sign, place = text.partition(":///")
        is_relative = kind.partition("+")[0] == "sqlite" and place[:1] not in ("", "/", ":", "?")
        if not is_relative or place.startswith("file:"):
            return text
        return f"{kind}{sign}{Path(place).absolute()}"

    @property
    def kind(self) -> StoreKind:
        if is_table_url(self.url):
            return StoreKind.LAKE
        match self.url.partition(":")[0]:
            case "rocksdb":
                return StoreKind.ROCKSDB
            case "zookeeper":
                return StoreKind.ZOOKEEPER
            case _:
                return StoreKind.SQL


class NotRead(TallystickError):
    """A store could not be read. The text does not contain the URL's password."""


class RowSource(Protocol):
    """An open store. Its methods are called by one thread."""

    @property
    def folder(self) -> Path | None:
        """The folder of an embedded database on this host."""

    def read(self) -> StoreFacts:
        """Read everything; rows that cannot be read are failures in the status."""

    def close(self) -> None:
        """Close its connection."""


def open_source(address: StoreAddress, limit_ms: int) -> RowSource:
    """Open a store to read it. Raises: BadConfig, BadStore, MissingLibrary; errors of the driver."""
    match address.kind:
        case StoreKind.ROCKSDB:
            return collect.open_rocksdb_rows(address.url, address.name, limit_ms)
        case StoreKind.ZOOKEEPER:
            return collect.open_zookeeper_rows(address.url, address.name, limit_ms)
        case StoreKind.LAKE:
            return collect.open_lake_rows(address.url, address.name, limit_ms)
        case StoreKind.SQL:
            return collect.open_sql_rows(address.url, address.name, limit_ms)


def measure_volume(folder: Path) -> Volume:
    """Return the room that is left below a folder. Raises: OSError."""
    volume = os.statvfs(folder)
    return Volume(
        path=str(folder),
        total_bytes=volume.f_blocks * volume.f_frsize,
        usable_bytes=volume.f_bavail * volume.f_frsize,
        is_read_only=is_read_only(folder),
    )


def is_read_only(folder: Path, mount_table: Path = _MOUNT_TABLE) -> bool:
    """Return whether a folder's file system is read only for every process, as far as the system shows it.

    That of a console in a container may be mounted so for it alone, and is none of its writers' concern.

    Source: proc_pid_mountinfo(5): field 3 is the device, the last one has the options of the file system.
    """
    with suppress(OSError):
        device = os.stat(folder).st_dev
        for line in mount_table.read_text().splitlines():
            fields = line.split()
            if fields[2] == f"{os.major(device)}:{os.minor(device)}":
                return "ro" in fields[-1].split(",")
    return False


class StoreReader:
    """Reads one store, again and again. Belongs to one event loop."""

    def __init__(
        self,
        address: StoreAddress,
        limit_ms: int,
        clock: Clock,
        open_rows: Callable[[StoreAddress, int], RowSource] = open_source,
    ) -> None:
        self._address, self._limit_ms = address, limit_ms
        self._open_rows = open_rows
        self._thread = StoreThread(address.name, clock)
        self._source: RowSource | None = None

    async def read(self) -> StoreFacts:
        """Read the store. Raises: NotRead; StillBusy while an earlier reading has not returned."""
        return await self._thread.run(self._read)

    async def close(self) -> None:
        """Close the connection, if the store lets it be closed soon."""
        with suppress(Exception):
            async with asyncio.timeout(CLOSE_TIMEOUT_S):
                await self._thread.run(self._close_source)
        self._thread.close(self._close_source)  # if it was busy with a reading that was given up

    def _read(self) -> StoreFacts:
        try:
            if self._source is None:
                self._source = self._open_rows(self._address, self._limit_ms)
            facts = self._source.read()
            folder = self._source.folder
            return facts if folder is None else replace(facts, volume=measure_volume(folder))
        except Exception as exc:  # drivers have no common base class
            self._close_source()
            raise NotRead(self._hide_secrets(describe_failure(exc))) from exc

    def _close_source(self) -> None:
        source, self._source = self._source, None
        if source is not None:
            with suppress(Exception):  # it is closed because it does not work
                source.close()

    def _hide_secrets(self, text: str) -> str:
        address = self._address
        text = text.replace(address.url, address.name)
        with suppress(ValueError):
            password = urlsplit(address.url).netloc.rpartition("@")[0].partition(":")[2]
            for secret in {password, unquote(password)} - {""}:
                text = text.replace(secret, "***")
        return text
