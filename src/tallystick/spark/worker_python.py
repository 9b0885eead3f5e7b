"""Python executable for Spark's workers: this one, with the installed PySpark.

Spark puts its `pyspark.zip` first on the PYTHONPATH of its workers, for machines without PySpark. Python does
not cache the bytecode of modules in a zip, so every process compiles them again: half a second for each, and
a first query starts a dozen. If PySpark is installed, a script of ours removes the zip from the path:
docs/notes/spark-start.md.

`python -m tallystick.spark.worker_python` makes the script and prints its path, for PYSPARK_PYTHON.
"""

import hashlib
import logging
import os
import re
import sys
import sysconfig
from importlib.util import find_spec
from pathlib import Path
from typing import Final

from tallystick.spark.runtime.user_cache import find_user_cache_dir, write_script_once

_log = logging.getLogger("tallystick.spark")

# Not a shell script: Debian's shell drops environment variables whose names are not valid in the shell.
_SCRIPT: Final = """\
#!{python} -IS
# PySpark is installed beside this Python: its zip, of which nothing stays compiled, is left out.
import os
import sys

def is_zip(entry):
    folder, _, name = entry.rpartition("/")
    zipped = name == "pyspark.zip" or name.startswith("py4j-") and name.endswith("-src.zip")
    return zipped and folder.endswith("/python/lib")


path = os.environ.get("PYTHONPATH", "").split(":")
os.environ["PYTHONPATH"] = ":".join(entry for entry in path if not is_zip(entry))
os.execv({python!r}, [{python!r}, *sys.argv[1:]])
"""
_INSTALLED: Final = ("pyspark", "py4j")
# Paths that are valid in a script's first line (`#!`).
_SHEBANG_PATH: Final = re.compile(r"[!-~]{1,120}")


def find_worker_python(cache: Path | None = None) -> str:
    """Return the executable to start workers with, on this machine only.

    Args:
        cache: the folder for the script; by default the user's cache directory.
    Returns: the script; or this Python itself, if another PySpark is wanted or the script cannot be kept.
    """
    if not _is_own_pyspark() or not _SHEBANG_PATH.fullmatch(sys.executable):
        return sys.executable
    # Each Python has its own script, since Spark's workers outlive the process that started them.
    name = hashlib.sha256(sys.executable.encode()).hexdigest()[:16]
    file = (cache or find_user_cache_dir() / "python") / f"python-{name}"
    try:
        write_script_once(file, _SCRIPT.format(python=sys.executable))
    except OSError as exc:
        _log.info("Spark's Python workers start slowly: %s cannot be written: %s", file, exc)
        return sys.executable
    return str(file)


def _is_own_pyspark() -> bool:
    """Return whether Spark's PySpark is in this Python's site-packages, where every process finds it."""
    folders = []
    for package in _INSTALLED:
        spec = find_spec(package)
        if spec is None or spec.origin is None:
            return False
        folders.append(Path(spec.origin).parent)
    of_spark = os.environ.get("SPARK_HOME")
    if of_spark and Path(of_spark).resolve() != folders[0].resolve():
        return False
    return {folder.parent for folder in folders} == {Path(sysconfig.get_path("purelib"))}


if __name__ == "__main__":
    print(find_worker_python())
