"""A disk whose calls fail for a while: EIO as on a worn-out disk, EMFILE for lack of descriptors."""

import errno
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from random import Random
from typing import Final

from harness.sim.faults import FailingCalls

# The calls that each error can come from.
CALLS_BY_ERRNO: Final = {
    errno.EMFILE: frozenset({"open"}),
    errno.EIO: frozenset({"read", "write", "sync", "truncate", "sync_dir", "rename", "remove"}),
}


class FailingDisk:
    """Decides before every call whether it fails. `is_quiet` ends the failures.

    Args:
        met: called at each failure.
    """

    def __init__(
        self,
        plan: Sequence[FailingCalls],
        now_s: Callable[[], float],
        random: Random,
        on_failure: Callable[[], None],
    ) -> None:
        self._is_suspended = False
        self.is_quiet = False
        self._plan = plan
        self._now_s = now_s
        self._random = random
        self._on_failure = on_failure

    @contextmanager
    def suspend(self) -> Iterator[None]:
        """Let every call succeed while a checker reads the broker's own files."""
        self._is_suspended = True
        try:
            yield
        finally:
            self._is_suspended = False

    def __call__(self, name: str, path: str) -> OSError | None:
        if self._is_suspended or self.is_quiet:
            return None
        now_s = self._now_s()
        for each in self._plan:
            is_concerned = each.begins_s <= now_s < each.ends_s and name in CALLS_BY_ERRNO[each.error]
            if is_concerned and self._random.random() < each.chance:
                self._on_failure()
                return OSError(each.error, os.strerror(each.error), path)
        return None
