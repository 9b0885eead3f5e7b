"""Which tests run on the same pytest-xdist worker: those of a file, and all that use the Spark session.

A fixture of a file or of the session is set up by every worker that needs it. For most that is cheap; a Spark
session is a Java process that takes a gigabyte, and ten seconds to start: one worker runs all that use it.
"""

from collections.abc import Iterable

import pytest
from xdist.scheduler import LoadGroupScheduling

SPARK = "spark"


class ByFileAndGroup(LoadGroupScheduling):  # type: ignore[misc]
    """What `--dist loadgroup` does, except that tests without a group stay together with their file's."""

    def _split_scope(self, nodeid: str) -> str:
        scope = str(super()._split_scope(nodeid))
        return nodeid.partition("::")[0] if scope == nodeid else scope


def group_spark_files(items: Iterable[pytest.Item]) -> None:
    """Put every file with a test that uses the fixture `spark` into one group."""
    items = list(items)
    files = {item.path for item in items if SPARK in getattr(item, "fixturenames", ())}
    for item in items:
        if item.path in files:
            item.add_marker(pytest.mark.xdist_group(SPARK))
