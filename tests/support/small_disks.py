"""A file system of a few MiB, which is full soon."""

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest


@contextmanager
def mount_small_disk(folder: Path, mebibytes: int) -> Iterator[Path]:
    """Mount a tmpfs on a folder while the context is open, or skip the test and say why."""
    if os.geteuid() != 0:
        pytest.skip("mounting a small file system needs root")
    options = f"size={mebibytes}m"
    mount = ["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(folder)]
    mounted = subprocess.run(mount, capture_output=True, text=True, check=False)
    if mounted.returncode:
        pytest.skip(f"a small file system cannot be mounted here: {mounted.stderr.strip()}")
    try:
        yield folder
    finally:
        subprocess.run(["umount", str(folder)], check=True)


def fill_disk(folder: Path) -> Path:
    """Fill a small disk to its last byte, and return the file to delete."""
    ballast = folder / "ballast"
    with ballast.open("wb", buffering=0) as file:
        piece = bytes(4096)
        try:
            while True:
                file.write(piece)
        except OSError:
            return ballast
