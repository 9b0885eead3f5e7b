"""Disk space reserved for writes that must succeed on a full disk.

A decided transaction needs its markers, a group its offsets, deletion its checkpoints: a disk filled by data
must not stop them. So a file preallocates `log.reserve.bytes` of the disk. While the reserve is whole, data
appends fail when the disk is full; an internal append that meets a full disk releases a piece of the reserve
and retries. While a piece is missing, data is refused immediately, so that the released space goes to
internal writes [RSV-1]; when deletion has freed space the reserve is refilled, and data is accepted again.

Not Kafka's: a Kafka broker stops at the first failed append. See docs/adr/0006.
"""

import threading
from typing import Final, Protocol

from tallystick.kernel.limits import MIB
from tallystick.storage.disk.fs import FileSystem, is_disk_full

RESERVE_FILE: Final = ".reserve"
# Released per internal append that meets a full disk; a larger append gets several pieces.
CHUNK_BYTES: Final = MIB


class SpaceGuard(Protocol):
    """Decides whether bytes may be written, and releases the reserve for internal writes."""

    def may_write(self, size: int, internal: bool) -> bool: ...

    def release(self, size: int) -> None:
        """Free room for `size` bytes for an internal append that met a full disk; it is retried once."""
        ...


class UnlimitedSpace:
    """A guard for directories without a reserve."""

    def may_write(self, size: int, internal: bool) -> bool:
        return True

    def release(self, size: int) -> None:
        return None


class DiskReserve:
    """The reserve of one data directory: the `SpaceGuard` of its logs. Used by any thread."""

    def __init__(
        self, fs: FileSystem, directory: str, size_bytes: int, chunk_bytes: int = CHUNK_BYTES
    ) -> None:
        self._fs = fs
        self._directory = directory
        self._path = f"{directory}/{RESERVE_FILE}"
        self._size_bytes = size_bytes
        self._chunk_bytes = chunk_bytes
        self._resize_lock = threading.Lock()
        self.reserved_bytes = fs.size(self._path) if fs.exists(self._path) else 0

    @property
    def size_bytes(self) -> int:
        """The configured size of the reserve."""
        return self._size_bytes

    @property
    def is_whole(self) -> bool:
        """Whether data may be written."""
        return self.reserved_bytes >= self._size_bytes

    def may_write(self, size: int, internal: bool) -> bool:
        """Return whether these bytes may be written. Asked before every append.

        Cost: negligible.
        """
        return internal or self.reserved_bytes >= self._size_bytes

    def release(self, size: int) -> None:
        """Release room for `size` bytes, in whole pieces, as far as any are left. Raises OSError."""
        with self._resize_lock:
            if self.reserved_bytes:
                pieces = -(-size // self._chunk_bytes)
                self._resize(max(0, self.reserved_bytes - pieces * self._chunk_bytes))

    def ensure_free(self, size: int) -> None:
        """Make room for `size` bytes of a write that cannot be retried. Raises OSError."""
        if self._fs.free_bytes(self._directory) < size:
            self.release(size)

    def restore(self) -> bool:
        """Refill the reserve if there is room for it and one more piece; return True if it is whole then.

        The extra piece keeps it from taking the room that the next internal append would ask back.
        Called at the start and periodically. Raises OSError, other than for a full disk.
        """
        with self._resize_lock:
            return self._restore()

    def _restore(self) -> bool:
        missing_bytes = self._size_bytes - self.reserved_bytes
        if missing_bytes <= 0:
            if missing_bytes:
                self._resize(self._size_bytes)  # the setting was lowered
            return True
        if self._fs.free_bytes(self._directory) < missing_bytes + self._chunk_bytes:
            return False
        size_before = self.reserved_bytes
        try:
            self._resize(self._size_bytes)
        except OSError as exc:
            if not is_disk_full(exc):
                raise
            self._resize(size_before)
        return self.is_whole

    def _resize(self, size_bytes: int) -> None:
        self._fs.preallocate(self._path, size_bytes)
        self.reserved_bytes = size_bytes
