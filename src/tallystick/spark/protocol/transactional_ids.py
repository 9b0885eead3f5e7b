"""Transactional ids of the Spark sink. Pure.

    P/coordinator           of the driver, which writes decisions; the last driver to claim it owns prefix P
    P/w/<worker>/<number>   of a task; no two live Python processes have the same random `worker`
    P/database/...          the same, where the decisions are in a database

An id names no task, attempt, stage or batch. A process runs one task at a time, so two live attempts never
share an id, whatever Spark retries, speculates or repeats. Later batches reuse the ids (`worker_ids`), and
later processes the names (`worker_names`), so their number does not grow with the number of batches [SPK-20].

Source: docs/design/spark-sink.md.
"""

import re
from collections.abc import Iterator
from typing import Final

from tallystick.kernel.value import Value

PREFIX_LENGTH_MAX: Final = 200
WORKER_DIGITS: Final = 16

_PREFIX_PATTERN: Final = re.compile(r"[A-Za-z0-9._-]+(?:/[A-Za-z0-9._-]+)*", re.ASCII)
_WORKER_ID_PATTERN: Final = re.compile(
    rf"(.+)/w/([0-9a-f]{{{WORKER_DIGITS}}})/(0|[1-9][0-9]{{0,8}})", re.ASCII
)
_COORDINATOR_SUFFIX: Final = "/coordinator"

DATABASE_SUFFIX: Final = "/database"
"""Suffix of the prefix where decisions are in a database.

It keeps a driver or `resolve` that reads the decision topic from ending such transactions.
"""


class WorkerTransactionalId(Value):
    """One transactional id of one Python worker process."""

    prefix: str
    worker: str
    number: int

    def __str__(self) -> str:
        return f"{self.prefix}/w/{self.worker}/{self.number}"


def find_prefix_problems(prefix: str) -> Iterator[str]:
    """Yield the problems of a `transactional.id.prefix`.

    It may have the characters of topic names, and `/` between parts. None of them needs quoting in an ACL
    with a prefixed pattern, a regular expression or a shell.
    """
    if not prefix:
        yield "transactional.id.prefix: is missing: a name for this query that stays over restarts"
    elif len(prefix) > PREFIX_LENGTH_MAX:
        yield f"transactional.id.prefix: {len(prefix)} characters, and {PREFIX_LENGTH_MAX} are allowed"
    elif not _PREFIX_PATTERN.fullmatch(prefix):
        yield f"transactional.id.prefix: {prefix!r} is not letters, digits, `.`, `_`, `-`, `/` between them"
    elif prefix.endswith(DATABASE_SUFFIX):
        yield f"transactional.id.prefix: {DATABASE_SUFFIX!r} at its end is for decisions in a database"


def format_coordinator_id(prefix: str) -> str:
    return prefix + _COORDINATOR_SUFFIX


def parse_worker_id(text: str) -> WorkerTransactionalId | None:
    """Parse a worker's transactional id; None for any other transactional id."""
    match = _WORKER_ID_PATTERN.fullmatch(text)
    if match is None or not _PREFIX_PATTERN.fullmatch(match[1]):
        return None
    return WorkerTransactionalId(match[1], match[2], int(match[3]))


def is_worker_id(prefix: str, text: str) -> bool:
    """Return whether this id is a worker's, of exactly this prefix: prefix `a/w/b` is not part of `a`."""
    worker_id = parse_worker_id(text)
    return worker_id is not None and worker_id.prefix == prefix
