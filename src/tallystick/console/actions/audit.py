"""The audit log of actions: one JSON object a line, to the log and to a file.

The intent is on the disk before anything is sent [ACT-5], the result is added afterwards. An intent without a
result means that the console has ended meanwhile: the outcome is unknown, and the line says of what.
"""

import json
import logging
import os
from enum import Enum
from pathlib import Path
from typing import Final

import msgspec

from tallystick.kernel.settings import BadConfig
from tallystick.kernel.value import Value

AUDIT_LOGGER: Final = "tallystick.audit"
_log = logging.getLogger(AUDIT_LOGGER)

_MODE: Final = 0o640
_FLAGS: Final = os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC


class AuditEvent(Enum):
    """The kind of a line."""

    INTENT = "intent"
    RESULT = "result"
    REFUSED = "refused"


class AuditLine(Value, kw_only=True):
    """One line.

    user     the name of the login, or where the request came from without one
    state    what was true in each side before
    digest   of the dry run that the user has confirmed
    outcome  of a result, with what was done or the error in `text`
    """

    event: AuditEvent
    at: str
    user: str
    action: str
    subject: str
    state: str
    digest: str
    command: str
    reason: str = ""
    outcome: str = ""
    text: str = ""


class AuditLog:
    """Writes lines. Its file is opened for each, so that it may be moved away meanwhile."""

    def __init__(self, path: Path | None) -> None:
        """Check that the file can be written. Raises: BadConfig."""
        self._path = path
        if path is None:
            return
        try:
            os.close(_open(path))
        except OSError as exc:
            raise BadConfig(f"--audit-log: {path}: {exc.strerror or exc}") from exc

    def write(self, line: AuditLine) -> None:
        """Write a line, and wait until it is on the disk. Raises: OSError."""
        text = json.dumps(msgspec.to_builtins(line))  # escapes whatever a terminal would obey
        _log.warning("%s", text)
        if self._path is None:
            return
        file = _open(self._path)
        try:
            _append(file, text.encode() + b"\n")
            os.fsync(file)
        finally:
            os.close(file)


def _open(path: Path) -> int:
    """Open the file; a new one is made known to the disk with its folder."""
    is_new = not path.exists()
    file = os.open(path, _FLAGS, _MODE)
    if is_new:
        folder = os.open(path.parent, os.O_RDONLY | os.O_CLOEXEC)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)
    return file


def _append(file: int, data: bytes) -> None:
    """Append to a file, whose last line may have been cut off by a full disk."""
    size = os.fstat(file).st_size
    if size and os.pread(file, 1, size - 1) != b"\n":
        data = b"\n" + data
    while data:
        data = data[os.write(file, data) :]
