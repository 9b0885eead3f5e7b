"""Open a lake table by its URL: the adapter of its format is loaded when a table of it is opened."""

import os
from typing import Final

from tallystick import lake
from tallystick.kernel.value import Value
from tallystick.lake.names import NO_OPTIONS, StorageOptions, TableUrl
from tallystick.lake.ports import LakeTable

_TABLES: Final[dict[tuple[object, ...], LakeTable]] = {}


class LakeLocation(Value, kw_only=True):
    """Where a table is, and how its storage is reached."""

    url: TableUrl
    storage_options: StorageOptions = NO_OPTIONS


def open_table(location: LakeLocation) -> LakeTable:
    """Return this process's table at a location. Raises: BadConfig, MissingLibrary."""
    key = (os.getpid(), location)
    if key not in _TABLES:
        # Formats are those of `names.FORMATS`; a URL of another one is not parsed.
        is_iceberg = location.url.format == "iceberg"
        kind = lake.iceberg.IcebergLakeTable if is_iceberg else lake.delta.DeltaLakeTable
        table: LakeTable = kind(location.url, dict(location.storage_options))
        _TABLES[key] = table
    return _TABLES[key]
