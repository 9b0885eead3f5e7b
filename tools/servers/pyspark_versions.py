"""Older versions of PySpark, each in a folder below `.cache/`: `python -m tools.servers.pyspark_versions`.

A process uses one of them if its folder comes first on PYTHONPATH; all else is that of this environment.
"""

import subprocess
import sys
from pathlib import Path
from typing import Final

CACHE: Final = Path(__file__).parents[2] / ".cache" / "pyspark"

# The newest of each minor version that docs/spark.md speaks of, apart from the installed one.
VERSIONS: Final = ("3.5.9", "4.0.5", "4.1.4", "4.2.1")


def find_folder(version: str) -> Path | None:
    """Return the folder of a version; None if it has not been taken."""
    folder = CACHE / version
    return folder if (folder / "pyspark" / "jars").is_dir() else None


def take(version: str) -> Path:
    """Take a version from the package index, unless it is there: 350 to 500 MB."""
    folder = find_folder(version)
    if folder is None:
        folder = CACHE / version
        pip = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
        subprocess.run([*pip, "--target", str(folder), f"pyspark=={version}"], check=True)
    return folder


if __name__ == "__main__":
    for each in VERSIONS:
        print(f"PySpark {each}: {take(each)}")
