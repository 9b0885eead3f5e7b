"""A writer is of the process that first used it: a forked child neither uses nor ends what is open [DW-11].

The child has copies of sockets and of file descriptors: a ROLLBACK, a COMMIT or a polite goodbye from it
would be its parent's.
"""

import ctypes
import os

from tallystick.client.forks import this_process
from tallystick.dualwrite.errors import NotYours


class Home:
    """The process in which something is used: the first one that does so."""

    def __init__(self) -> None:
        self._process: object = None
        self._pid = 0

    @property
    def is_elsewhere(self) -> bool:
        """Was it used before this process was forked off?"""
        return self._process is not None and self._process is not this_process()

    def check(self, what: str) -> None:
        """Raises: NotYours in a forked child."""
        if self.is_elsewhere:
            raise NotYours(
                f"{what} was in use in process {self._pid}, and this is a fork of it, {os.getpid()}: what is "
                "open there is the parent's to commit, and nothing was done here. Make a writer in each "
                "process, after the fork"
            )

    def enter(self, what: str) -> None:
        """It is used here. Raises: NotYours in a forked child."""
        self.check(what)
        self._process, self._pid = this_process(), os.getpid()


def leave_to_parent(what: object) -> None:
    """Keep it from ever being finalized here: that may end it, too.

    No variable lasts beyond the interpreter's exit, where drivers close what is collected: SQLite's rolls the
    transaction back, in the file that the parent writes to.
    """
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(what))
