"""Shares tests out to pytest-xdist workers: by file, slow ones first, and Spark's to one worker.

A fixture of a file or of the session is set up by every worker that needs it. For most that is cheap, but a
Spark session is a Java process that takes a gigabyte, and ten seconds to start.

What is long must begin early: a file is run by one worker, and the others have nothing to do while it ends.
"""

import re
from functools import cache
from pathlib import Path

from xdist.scheduler import LoadFileScheduling

SPARK = "spark"
USES_SPARK = re.compile(r"\bspark: \"?SparkSession\b")
IS_SLOW = re.compile(r"\bmark\.(gate|slow|server|kafka|mount)\b")


class SlowFilesFirst(LoadFileScheduling):  # type: ignore[misc]
    """Schedules like `--dist loadfile`; files with the fixture `spark` are one, slow ones go first."""

    def _split_scope(self, nodeid: str) -> str:
        path = nodeid.partition("::")[0]
        return SPARK if uses_spark(Path(self.config.rootpath, path)) else path

    def _assign_work_unit(self, node: object) -> None:
        self.workqueue.move_to_end(max(self.workqueue, key=self._rank), last=False)
        super()._assign_work_unit(node)

    def _rank(self, scope: str) -> tuple[bool, bool, int]:
        spark = scope == SPARK
        return spark, spark or is_slow(Path(self.config.rootpath, scope)), len(self.workqueue[scope])


@cache
def uses_spark(path: Path) -> bool:
    """Return whether a test of the file uses the fixture, from its text: the scheduler does not import it."""
    return USES_SPARK.search(path.read_text()) is not None


@cache
def is_slow(path: Path) -> bool:
    """Return whether a test of the file is left out of `make check`, from its text."""
    return IS_SLOW.search(path.read_text()) is not None
