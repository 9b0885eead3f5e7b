"""Protection of open transactions across fork(): a child neither uses nor ends its parent's [DW-11].

A writer belongs to the process that first used it. The child has copies of its sockets and file descriptors:
a ROLLBACK, a COMMIT or a protocol-level close sent by the child would take effect for the parent.
"""

import ctypes
import os

from tallystick.client.forks import get_process_token
from tallystick.dualwrite.errors import NotYours


class OwningProcess:
    """The process that an object belongs to: the first one to use it."""

    def __init__(self) -> None:
        self._process: object = None
        self._pid = 0

    @property
    def is_forked_child(self) -> bool:
        """Whether this process is a fork of the one that used the object first."""
        return self._process is not None and self._process is not get_process_token()

    def check_process(self, subject: str) -> None:
        """Raise NotYours in a forked child."""
        if self.is_forked_child:
            raise NotYours(
                f"{subject} was in use in process {self._pid}, and this is a fork of it, {os.getpid()}: what "
                "is open there is the parent's to commit, and nothing was done here. Make a writer in each "
                "process, after the fork"
            )

    def claim_process(self, subject: str) -> None:
        """Record this process as the owner. Raises: NotYours in a forked child."""
        self.check_process(subject)
        self._process, self._pid = get_process_token(), os.getpid()


def leak_reference(resource: object) -> None:
    """Leak a reference, so that the object is never finalized in this process.

    Finalization may end the parent's transaction. No variable outlives the interpreter's exit, when drivers
    close collected connections: SQLite's would roll back the transaction in the file that the parent uses.
    """
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(resource))
