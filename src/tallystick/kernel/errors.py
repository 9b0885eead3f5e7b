"""The root of our exceptions, the effect an error may have had, and rejections as values.

State machines return a `Reject`; I/O shells raise an exception (style R11).
Every exception here must survive pickling: Spark sends them between processes.
"""

from enum import Enum

from msgspec.structs import force_setattr

from tallystick.kernel.codes import ErrorCode
from tallystick.kernel.limits import REASON_LENGTH_MAX
from tallystick.kernel.secret import hide_logins
from tallystick.kernel.value import Value


class TallystickError(Exception):
    """Root of every exception this package raises on purpose. Its texts show no login of a URL."""

    def __init__(self, *args: object) -> None:
        super().__init__(*(hide_logins(each) if isinstance(each, str) else each for each in args))


class Conflict(TallystickError):
    """Others were faster, again and again. Nothing was decided, and a repetition may succeed."""


class Effect(Enum):
    """The possible effect on the cluster of a request that failed."""

    NONE = "nothing happened"
    UNKNOWN = "it may have happened"  # look it up before a retry

    def worst(self, other: "Effect") -> "Effect":
        """Combine two attempts at the same request: once one is unknown, the result stays unknown [CLI-1]."""
        return Effect.UNKNOWN if Effect.UNKNOWN in (self, other) else Effect.NONE


class Remedy(Enum):
    """The remedy for an error; the value is the text shown with the error."""

    RETRY = "try the same again"
    REFRESH = "try again"
    FIND_COORDINATOR = "look the coordinator up and try again"
    ABORT = "abort the transaction"
    STOP = "close this client, it cannot go on"
    LOOK_UP = "find out what happened before doing anything else"
    REPORT = "trying again does not help until something is changed"

    @property
    def repeats(self) -> bool:
        """Whether the same request is sent again."""
        return self in (Remedy.RETRY, Remedy.REFRESH, Remedy.FIND_COORDINATOR)


class InDoubt(TallystickError):
    """A decision was sent and its outcome could not be learned.

    Never start over. Run recovery, which asks the cluster (and the other system) and reaches the same verdict
    however often it runs. Only recovery may catch this.
    """

    effect = Effect.UNKNOWN


class Reject(Value):
    """A command was refused and nothing changed.

    `reason` names both compared values and where they come from, for the log line and, if the protocol has
    room, for the response. A reason that quotes a name of 32 KB would not fit there, so its middle is left
    out. `record_errors` are the faulty records of a batch: index in the batch, and reason.
    """

    code: ErrorCode
    reason: str
    record_errors: tuple[tuple[int, str], ...] = ()

    def __post_init__(self) -> None:
        if len(self.reason) > REASON_LENGTH_MAX:
            force_setattr(self, "reason", shorten(self.reason))


def shorten(text: str) -> str:
    """Leave out the middle of a text that is longer than `REASON_LENGTH_MAX`."""
    if len(text) <= REASON_LENGTH_MAX:
        return text
    length = REASON_LENGTH_MAX // 2
    return f"{text[:length]} [{len(text) - 2 * length} characters left out] {text[-length:]}"
