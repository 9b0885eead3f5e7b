"""The Python that Spark's workers are: this one, with the PySpark that is installed beside it.

Spark puts its `pyspark.zip` first on the PYTHONPATH of its workers, for machines without PySpark. Of what is
imported from a zip nothing stays compiled, so every process does that anew: half a second of each, and a
first query starts a dozen. Where PySpark is installed, a script of ours leaves the zip
out: docs/notes/spark-start.md.

`python -m tallystick.spark.worker_python` makes it and says where it is, for PYSPARK_PYTHON.
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

from tallystick.spark.runtime.user_cache import keep_script, user_cache

_log = logging.getLogger("tallystick.spark")

# Not of the shell: Debian's drops what its environment has under names that are none of the shell's.
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
# A path that the first line of a program can name.
_FITS: Final = re.compile(r"[!-~]{1,120}")


def worker_python(cache: Path | None = None) -> str:
    """What to start a worker with, on this machine and no other.

    Args:
        cache: where the script is put; the user's cache directory unless given.
    Returns: the script; or this Python itself, where another PySpark is wanted or the script cannot be kept.
    """
    if not _is_wanted() or not _FITS.fullmatch(sys.executable):
        return sys.executable
    # Each Python has one of its own: Spark's workers outlive whoever started them.
    name = hashlib.sha256(sys.executable.encode()).hexdigest()[:16]
    file = (cache or user_cache() / "python") / f"python-{name}"
    try:
        keep_script(file, _SCRIPT.format(python=sys.executable))
    except OSError as exc:
        _log.info("Spark's workers start slowly, %s cannot be kept: %s", file, exc)
        return sys.executable
    return str(file)


def _is_wanted() -> bool:
    """Is the PySpark of this Spark in this Python's own folder, where each process finds it unasked?"""
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
    print(worker_python())
