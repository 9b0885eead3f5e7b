"""Shares tests out to pytest-xdist workers: by file, and all that use the Spark session to one worker.

A fixture of a file or of the session is set up by every worker that needs it. For most that is cheap, but a
Spark session is a Java process that takes a gigabyte, and ten seconds to start.
"""

import re
from functools import cache
from pathlib import Path

from xdist.scheduler import LoadFileScheduling

USES_SPARK = re.compile(r"\bspark: \"?SparkSession\b")


class ByFileAndSpark(LoadFileScheduling):  # type: ignore[misc]
    """Schedules like `--dist loadfile`, except that the files with the fixture `spark` stay together."""

    def _split_scope(self, nodeid: str) -> str:
        path = nodeid.partition("::")[0]
        return "spark" if uses_spark(Path(self.config.rootpath, path)) else path


@cache
def uses_spark(path: Path) -> bool:
    """Return whether a test of the file uses the fixture, from its text: the scheduler does not import it."""
    return USES_SPARK.search(path.read_text()) is not None
