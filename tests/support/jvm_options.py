"""Options of the JVMs that tests start: a fast start, as a test ends before it gains from more."""

from pathlib import Path
from typing import Final

ARCHIVE: Final = Path(__file__).parents[2] / ".cache" / "spark-classes.jsa"
"""Spark's classes (`class_archive`)."""

FAST_START: Final = "-XX:+UseSerialGC -XX:TieredStopAtLevel=1"
# An archive that does not fit is ignored without a warning; errors are still logged.
QUIET: Final = "-Xlog:disable -Xlog:all=error:stderr"


def list_jvm_options() -> str:
    return f"{FAST_START} {QUIET} -XX:SharedArchiveFile={ARCHIVE}" if ARCHIVE.exists() else FAST_START
