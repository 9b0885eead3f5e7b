"""CRC-32C, the checksum of record batches, snapshots and our own files.

Importing the package `crc32c` takes 35 ms, because it looks up its own version and prepares a command line.
That is a tenth of a start, so its extension module is loaded without them (docs/notes/performance.md).
"""

from collections.abc import Callable
from importlib.machinery import PathFinder
from importlib.util import module_from_spec

Crc = Callable[..., int]


def _load_crc32c() -> Crc:
    package = PathFinder.find_spec("crc32c")
    spec = package and PathFinder.find_spec("crc32c._crc32c", package.submodule_search_locations)
    if not spec or not spec.loader:
        raise ImportError("the package crc32c has no module _crc32c")
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    crc32c: Crc = module.crc32c
    return crc32c


try:
    crc32c = _load_crc32c()
except (ImportError, AttributeError):  # a version with another layout
    pass
