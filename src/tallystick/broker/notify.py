"""The state of this process, as systemd asks for it with `Type=notify`.

Source: sd_notify(3). Without `NOTIFY_SOCKET`, nothing is sent.
"""

import logging
import os
import socket
import time
from typing import Final

_log = logging.getLogger("tallystick.broker")

_VARIABLE: Final = "NOTIFY_SOCKET"
READY: Final = "READY=1"
STOPPING: Final = "STOPPING=1"


class Notifier:
    """Sends states to a service manager, or to none."""

    def __init__(self, path: str = "") -> None:
        """Take the path of the manager's socket; empty: nothing is ever sent."""
        self._path = path

    @classmethod
    def take(cls) -> "Notifier":
        """Return the one of this process's manager, whose child processes are then not told of it."""
        return cls(os.environ.pop(_VARIABLE, ""))

    def send(self, *lines: str) -> None:
        """Send a state, as assignments; a manager that does not take it is warned of, and nothing else."""
        if not self._path:
            return
        # unix(7): the name of an abstract socket begins with a null byte; the variable has "@" for it.
        address = f"\0{self._path[1:]}" if self._path.startswith("@") else self._path
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
                manager.sendto("\n".join(lines).encode(), address)
        except OSError as exc:
            _log.warning("the service manager is not told %s: %s", lines[0], exc)

    def send_reloading(self) -> None:
        """Say that settings are being read again; `READY` says that this is over.

        "MONOTONIC_USEC=... the monotonic timestamp in µs ... when the notification message was generated".
        """
        self.send("RELOADING=1", f"MONOTONIC_USEC={time.clock_gettime_ns(time.CLOCK_MONOTONIC) // 1_000}")
