"""Which tests run on the same pytest-xdist worker: those of a file, and all that use the Spark session.

A fixture of a file or of the session is set up by every worker that needs it. For most that is cheap; a Spark
session is a Java process that takes a gigabyte, and ten seconds to start: one worker runs all that use it.
"""

import re
from functools import cache
from pathlib import Path

from xdist.scheduler import LoadFileScheduling

USES_SPARK = re.compile(r"\bspark: \"?SparkSession\b")


class ByFileAndSpark(LoadFileScheduling):  # type: ignore[misc]
    """What `--dist loadfile` does, except that the files with the fixture `spark` stay together."""

    def _split_scope(self, nodeid: str) -> str:
        path = nodeid.partition("::")[0]
        return "spark" if uses_spark(Path(self.config.rootpath, path)) else path


@cache
def uses_spark(path: Path) -> bool:
    """Whether a test of the file takes the fixture; what shares the tests out has not imported them."""
    return USES_SPARK.search(path.read_text()) is not None
