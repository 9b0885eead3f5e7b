"""Room kept for what must still be written on a full disk.

A transaction that was decided needs its markers, a group its offsets, deletion its checkpoints: a disk
filled by data must not stop them. So a file takes `log.reserve.bytes` of the disk in advance. Data meets the
end of the disk while the reserve is whole; an internal append that meets it gives a piece of the reserve
back and tries again. While a piece is missing, data is refused at once, so that what was given back goes
to those it was kept for [RSV-1]; when deletion has made room the reserve is made whole, and data flows again.

Not Kafka's: a Kafka broker stops at the first failed append. See docs/adr/0010.
"""

import threading
from typing import Final, Protocol

from tallystick.kernel.limits import MIB
from tallystick.storage.fs import FileSystem, is_full

RESERVE_FILE: Final = ".reserve"
# What one internal append that meets a full disk is given back; a larger one asks again.
CHUNK_BYTES: Final = MIB


class SpaceGuard(Protocol):
    """Says whether bytes may still be written, and lets go of the reserve for those that must be."""

    def may_write(self, size: int, internal: bool) -> bool: ...

    def release(self, size: int) -> None:
        """An internal append met a full disk: give back room for so many bytes; it is tried once more."""
        ...


class Unlimited:
    """A guard for directories without a reserve."""

    def may_write(self, size: int, internal: bool) -> bool:
        return True

    def release(self, size: int) -> None:
        return None


class Reserve:
    """The reserve of one data directory: the `SpaceGuard` of its logs. Used by any thread."""

    def __init__(
        self, fs: FileSystem, directory: str, size_bytes: int, chunk_bytes: int = CHUNK_BYTES
    ) -> None:
        self._fs = fs
        self._directory = directory
        self._path = f"{directory}/{RESERVE_FILE}"
        self._size_bytes = size_bytes
        self._chunk_bytes = chunk_bytes
        self._resizing = threading.Lock()
        self.held_bytes = fs.size(self._path) if fs.exists(self._path) else 0

    @property
    def size_bytes(self) -> int:
        """What is to be held."""
        return self._size_bytes

    @property
    def whole(self) -> bool:
        """Whether data may be written."""
        return self.held_bytes >= self._size_bytes

    def may_write(self, size: int, internal: bool) -> bool:
        """Cost: none to speak of; asked before every append."""
        return internal or self.held_bytes >= self._size_bytes

    def release(self, size: int) -> None:
        """Give back room for `size` bytes, in whole pieces; nothing where nothing is left. Raises OSError."""
        with self._resizing:
            if self.held_bytes:
                pieces = -(-size // self._chunk_bytes)
                self._resize(max(0, self.held_bytes - pieces * self._chunk_bytes))

    def ensure(self, size: int) -> None:
        """Have room for `size` bytes of what cannot be tried twice. Raises OSError."""
        if self._fs.free_bytes(self._directory) < size:
            self.release(size)

    def restore(self) -> bool:
        """Make the reserve whole if there is room for it and a piece more; True if it is whole then.

        The piece more keeps it from taking the room that the next internal append would ask back.
        Called at the start and every so often. Raises OSError, other than for a full disk.
        """
        with self._resizing:
            return self._restore()

    def _restore(self) -> bool:
        missing = self._size_bytes - self.held_bytes
        if missing <= 0:
            if missing:
                self._resize(self._size_bytes)  # the setting was lowered
            return True
        if self._fs.free_bytes(self._directory) < missing + self._chunk_bytes:
            return False
        held = self.held_bytes
        try:
            self._resize(self._size_bytes)
        except OSError as exc:
            if not is_full(exc):
                raise
            self._resize(held)
        return self.whole

    def _resize(self, size_bytes: int) -> None:
        self._fs.preallocate(self._path, size_bytes)
        self.held_bytes = size_bytes
