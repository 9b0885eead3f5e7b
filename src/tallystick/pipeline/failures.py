"""User-facing text for a failed query: what happened, what is safe, what to do. Pure.

Spark passes a Python error on as text inside a Java error: a traceback whose last line is the error itself,
then the query's state and plan. Those details belong in the log.
"""

import re
from typing import Final

from tallystick.kernel.value import frozen

_STATE: Final = "\n=== Streaming Query ==="
# The last line of a traceback and its continuation lines, up to Java's frames.
_RAISED: Final = re.compile(
    r"^(?:\S*: )?((?:\w+\.)+\w+|\w+(?:Error|Exception)): (.+(?:\n(?!\s*at |Caused by|\s*$).+)*)", re.MULTILINE
)
_OURS: Final = "tallystick."

_SAFE: Final = (
    "A batch is decided as a whole. The next start finds out whether the last one was, and completes it or "
    "writes it again: nothing is lost, and nothing is there twice."
)
_AGAIN: Final = "Put right what is said above, and start the pipeline again with the same checkpoint."
_BROKERS: Final = "See that the brokers are up, and start the pipeline again with the same checkpoint."
_BY_KIND: Final = {
    "UnknownCheckpoint": "With `tallystick run`, onNewCheckpoint is --on-new-checkpoint.",
    "DecisionsMissing": "With `tallystick run`, onNewPrefix is --on-new-prefix.",
    "DataLoss": 'If the records are not wanted, set failOnDataLoss = "false" in [sources.NAME.options].',
    "TimedOut": _BROKERS,
    "Unreachable": _BROKERS,
    "PrefixTaken": "See that the pipeline runs in one place only, and start it there again.",
}
_MALFORMED: Final = (
    'Correct the schema, or let such values go to a topic with malformed = "dead-letter" and dead-letter = '
    '"TOPIC"; then start the pipeline again with the same checkpoint.'
)


@frozen(kw_only=True)
class Failure:
    """The description of one failed query."""

    what: str
    safe: str
    todo: str


def failure_of(said: str) -> Failure:
    """Describe a failed query.

    Args:
        said: text of Spark's StreamingQueryException.
    """
    head = said.split(_STATE)[0].strip()
    raised = _RAISED.findall(head)
    kind, text = next(
        (each for each in reversed(raised) if each[0].startswith(_OURS)), raised[-1] if raised else ("", "")
    )
    what = text or re.sub(r"^\[[\w.]+\] ", "", head.splitlines()[0] if head else "it ended without a word")
    what = re.sub(r"\s*SQLSTATE: \w+$", "", what.strip())
    if "does not fit the schema" in what:
        return Failure(what=what, safe=_SAFE, todo=_MALFORMED)
    return Failure(what=what, safe=_SAFE, todo=_BY_KIND.get(kind.rpartition(".")[2], _AGAIN))
