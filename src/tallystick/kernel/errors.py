"""The root of our exceptions, and refusals as values.

Inside machines a refusal is a `Reject`; in shells it is an exception (style R11).
Every exception here must survive pickling: Spark sends them between processes.
"""

from tallystick.kernel.codes import ErrorCode
from tallystick.kernel.value import frozen


class TallystickError(Exception):
    """Root of every exception this package raises on purpose."""


@frozen
class Reject:
    """A command was refused and nothing changed.

    `reason` names both values compared and where, for the log line and, where the
    protocol has room, for the answer. `records` are those of a batch that are at fault:
    index in the batch, and why.
    """

    code: ErrorCode
    reason: str
    records: tuple[tuple[int, str], ...] = ()
