"""Protection of open transactions across fork(): a child neither uses nor ends its parent's [DW-11].

A writer belongs to the process that first used it. The child has copies of its sockets and file descriptors:
a ROLLBACK, a COMMIT or a protocol-level close sent by the child would take effect for the parent.

A store belongs to no writer. What is open at a fork, of the store or of others, the child either replaces by
its own (connections of a pool), or refuses (RocksDB, a ZooKeeper session, SQLite): `watch_forks`.
"""

import ctypes
import logging
import os
from typing import Final, Protocol
from weakref import WeakSet

from tallystick.client.net.waits import get_process_token
from tallystick.dualwrite.errors import ManagedByWriter

_log: Final = logging.getLogger("tallystick.dualwrite")
_OWN_WRITER: Final = "Make a writer in each process, after the fork"


class OwningProcess:
    """The process that an object belongs to: the first one to use it."""

    def __init__(self) -> None:
        self._process: object = None
        self._pid = 0

    @property
    def is_forked_child(self) -> bool:
        """Whether this process is a fork of the one that used the object first."""
        return self._process is not None and self._process is not get_process_token()

    def check_process(self, subject: str, remedy: str = _OWN_WRITER) -> None:
        """Raise ManagedByWriter in a forked child."""
        if self.is_forked_child:
            raise ManagedByWriter(
                f"{subject} was in use in process {self._pid}, and this is a fork of it, {os.getpid()}: what "
                f"is open there is the parent's to commit, and nothing was done here. {remedy}"
            )

    def claim_process(self, subject: str, remedy: str = _OWN_WRITER) -> None:
        """Record this process as the owner. Raises: ManagedByWriter in a forked child."""
        self.check_process(subject, remedy)
        self._process, self._pid = get_process_token(), os.getpid()


def leak_reference(resource: object) -> None:
    """Leak a reference, so that the object is never finalized in this process.

    Finalization may end the parent's transaction. No variable outlives the interpreter's exit, when drivers
    close collected connections: SQLite's would roll back the transaction in the file that the parent uses.
    """
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(resource))


class OpenAtFork(Protocol):
    """Something that may be open when the process forks."""

    def leave_to_parent(self) -> None:
        """Leave what is open to the parent. Called in the child, at the fork; may wait for nothing."""


_watched: Final[WeakSet[OpenAtFork]] = WeakSet()


def watch_forks(opened: OpenAtFork) -> None:
    """Call `opened.leave_to_parent` in every child, before code there can use what the parent has open."""
    _watched.add(opened)


def _leave_all_to_parent() -> None:
    for opened in list(_watched):
        try:
            opened.leave_to_parent()
        except Exception:
            _log.exception("%r: what the parent has open may be shared with it", opened)


os.register_at_fork(after_in_child=_leave_all_to_parent)
