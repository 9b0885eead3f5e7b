"""An exception that lands at any line of the dual-write library, as out of a signal's handler."""

import linecache
import sys
from pathlib import Path
from types import FrameType

import tallystick.dualwrite

OURS = str(Path(tallystick.dualwrite.__file__).parent)


class TimeIsUp(Exception):
    """What a signal's handler raises, in whatever is running: as Celery's SoftTimeLimitExceeded."""


class Strike:
    """Raises at the n-th line of the dual-write library that this thread runs, once it is armed."""

    def __init__(self, at: int, what: type[BaseException]) -> None:
        self._left = at
        self._what = what
        self.where: str | None = None

    def __enter__(self) -> None:
        sys.settrace(self._trace)

    def __exit__(self, *_: object) -> None:
        sys.settrace(None)

    def _trace(self, frame: FrameType, event: str, _: object) -> object:
        if not frame.f_code.co_filename.startswith(OURS) or self.where is not None:
            return None
        if event == "line" and _can_be_interrupted(frame):
            self._left -= 1
            if self._left < 0:
                self.where = f"{Path(frame.f_code.co_filename).name}:{frame.f_lineno}"
                raise self._what
        return self._trace


def _can_be_interrupted(frame: FrameType) -> bool:
    """May a handler run here? Not at a bare `try:`, and a lock's `with` gives it back first; a tracer may."""
    line = linecache.getline(frame.f_code.co_filename, frame.f_lineno).strip()
    return line != "try:" and "with self._lock" not in line
