"""Open a lake table by its URL: the adapter of its format is loaded when a table of it is opened."""

import os
from collections.abc import Mapping
from typing import Final, cast

from tallystick import _lazy
from tallystick.kernel.value import Value
from tallystick.lake.names import TableUrl
from tallystick.lake.ports import LakeTable

_TABLES: Final[dict[tuple[object, ...], LakeTable]] = {}


class LakeLocation(Value, kw_only=True):
    """Where a table is, and how its storage is reached."""

    url: TableUrl
    storage_options: tuple[tuple[str, str], ...] = ()


def open_table(location: LakeLocation) -> LakeTable:
    """Return this process's table at a location. Raises: BadConfig, MissingLibrary."""
    key = (os.getpid(), location)
    if key not in _TABLES:
        adapter = _lazy.load(f"tallystick.lake.{location.url.format}")
        options: Mapping[str, str] = dict(location.storage_options)
        _TABLES[key] = cast(LakeTable, adapter.open_table(location.url, options))
    return _TABLES[key]
