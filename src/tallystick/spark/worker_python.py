"""The Python that Spark's workers are: this one, with the PySpark that is installed beside it.

Spark puts its `pyspark.zip` first on the PYTHONPATH of its workers, for machines without PySpark. Of what is
imported from a zip nothing stays compiled, so every process does that anew: half a second of each, and a
first query starts a dozen. Where PySpark is installed, a script of ours leaves the zip out: docs/adr/0198.

`python -m tallystick.spark.worker_python` makes it and says where it is, for PYSPARK_PYTHON.
"""

import hashlib
import logging
import shlex
import sys
import sysconfig
from importlib.util import find_spec
from pathlib import Path
from typing import Final

from tallystick.spark.user_cache import keep_script, user_cache

_log = logging.getLogger("tallystick.spark")

_SCRIPT: Final = """\
#!/bin/sh
# PySpark is installed beside this Python: its zip, of which nothing stays compiled, is left out.
set -f
rest=
IFS=:
for entry in $PYTHONPATH; do
  case $entry in
    */python/lib/pyspark.zip | */python/lib/py4j-*-src.zip) ;;
    *) rest=$rest${{rest:+:}}$entry ;;
  esac
done
PYTHONPATH=$rest
exec {python} "$@"
"""
_INSTALLED: Final = ("pyspark", "py4j")


def worker_python(cache: Path | None = None) -> str:
    """What to start a worker with, on this machine and no other.

    Args:
        cache: where the script is put; the user's cache directory unless given.
    Returns: the script; or this Python itself, if PySpark is elsewhere or the script cannot be kept.
    """
    if not all(map(_is_installed, _INSTALLED)):
        return sys.executable
    # Each Python has one of its own: Spark's workers outlive whoever started them.
    name = hashlib.sha256(sys.executable.encode()).hexdigest()[:16]
    file = (cache or user_cache() / "python") / f"python-{name}"
    try:
        keep_script(file, _SCRIPT.format(python=shlex.quote(sys.executable)))
    except OSError as exc:
        _log.info("Spark's workers start slowly, %s cannot be kept: %s", file, exc)
        return sys.executable
    return str(file)


def _is_installed(package: str) -> bool:
    """Is it in this Python's own folder, where every process of it finds it without being told?"""
    spec = find_spec(package)
    origin = None if spec is None else spec.origin
    return origin is not None and Path(origin).parents[1] == Path(sysconfig.get_path("purelib"))


if __name__ == "__main__":
    print(worker_python())
