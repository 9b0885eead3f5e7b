"""Names of transactions in Spark's sink. Pure.

    P/coordinator           the driver's: it writes decisions, and whoever claims it last owns the prefix P
    P/w/<worker>/<number>   a task's: `worker` is drawn at random by a Python process and belongs to it alone
    P/database/...          the same, where a database decides

No task, attempt, stage or batch is in a name. A process runs one task at a time, so no two live attempts can
have the same id, whatever Spark retries, speculates or repeats; and the ids of a batch are used again by a
later one (`worker_ids`), so their number does not grow with the batches [SPK-20].

Source: docs/adr/0036.
"""

import re
from collections.abc import Iterator
from typing import Final

from tallystick.kernel.value import frozen

PREFIX_LENGTH_MAX: Final = 200
WORKER_DIGITS: Final = 16

_PREFIX: Final = re.compile(r"[A-Za-z0-9._-]+(?:/[A-Za-z0-9._-]+)*", re.ASCII)
_WORKER: Final = re.compile(rf"(.+)/w/([0-9a-f]{{{WORKER_DIGITS}}})/(0|[1-9][0-9]{{0,8}})", re.ASCII)
_COORDINATOR: Final = "/coordinator"

IN_DATABASE: Final = "/database"
"""Behind the prefix of a query whose decisions are in a database: nobody who reads the topic ends those."""


@frozen
class WorkerId:
    """One transactional id of one Python worker process."""

    prefix: str
    worker: str
    number: int

    def __str__(self) -> str:
        return f"{self.prefix}/w/{self.worker}/{self.number}"


def prefix_problems(prefix: str) -> Iterator[str]:
    """What is wrong with a `transactional.id.prefix`.

    Its characters are those of topic names, and `/` between parts: what an ACL with a prefixed pattern, a
    regular expression and a shell take as they are.
    """
    if not prefix:
        yield "transactional.id.prefix: is missing: a name for this query that stays over restarts"
    elif len(prefix) > PREFIX_LENGTH_MAX:
        yield f"transactional.id.prefix: {len(prefix)} characters, and {PREFIX_LENGTH_MAX} are allowed"
    elif not _PREFIX.fullmatch(prefix):
        yield f"transactional.id.prefix: {prefix!r} is not letters, digits, `.`, `_`, `-`, `/` between them"
    elif prefix.endswith(IN_DATABASE):
        yield f"transactional.id.prefix: {IN_DATABASE!r} at its end is for decisions in a database"


def coordinator_id(prefix: str) -> str:
    return prefix + _COORDINATOR


def parse_worker_id(text: str) -> WorkerId | None:
    """The worker's id that `text` is, or None for any other transactional id."""
    found = _WORKER.fullmatch(text)
    if found is None or not _PREFIX.fullmatch(found[1]):
        return None
    return WorkerId(found[1], found[2], int(found[3]))


def is_of_workers(prefix: str, text: str) -> bool:
    """Is this the id of a worker of exactly this prefix? `a/w/b` is a prefix of its own, not part of `a`."""
    found = parse_worker_id(text)
    return found is not None and found.prefix == prefix
