"""Allocator tuning that keeps freed memory in the process, so that a fetch does not fault its pages in again.

glibc returns the top of the heap after every free of some hundred KiB, and the next answer of a few megabytes
pays for the same pages again: that was two thirds of a fetch's CPU time. Called once, by a broker that owns
its process; an embedding program keeps its own allocator settings.

Cost: up to `RETAINED_BYTES` more resident memory after large answers (docs/notes/performance.md).
"""

import ctypes
from typing import Final

from tallystick.kernel.limits import MIB

RETAINED_BYTES: Final = 32 * MIB
# Source: glibc malloc.h. Setting either disables glibc's own adjustment of both, so both are set.
_M_TRIM_THRESHOLD: Final = -1
_M_MMAP_THRESHOLD: Final = -3


def keep_freed_memory() -> bool:
    """Set the two thresholds; return False where the C library has no `mallopt` (musl, macOS)."""
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError):
        return False
    return bool(mallopt(_M_TRIM_THRESHOLD, RETAINED_BYTES)) and bool(
        mallopt(_M_MMAP_THRESHOLD, RETAINED_BYTES)
    )
