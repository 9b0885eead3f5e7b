"""Open a lake table, or its data files, by its URL: the adapter of its format is loaded for the first one."""

import os
from typing import Final

from tallystick import lake
from tallystick.kernel.value import Value
from tallystick.lake.data_files import AttemptName, DataFileWriter
from tallystick.lake.names import NO_OPTIONS, StorageOptions, TableUrl
from tallystick.lake.ports import LakeTable
from tallystick.lake.schema import TableDefinition
from tallystick.lake.storage import open_storage

_TABLES: Final[dict[tuple[object, ...], LakeTable]] = {}


class LakeLocation(Value, kw_only=True):
    """Address of a table, and the options of its storage."""

    url: TableUrl
    storage_options: StorageOptions = NO_OPTIONS


def open_table(location: LakeLocation) -> LakeTable:
    """Return this process's table at a location. Raises: BadConfig, MissingLibrary."""
    key = (os.getpid(), location)
    if key not in _TABLES:
        # Formats are those of `TABLE_FORMATS`; a URL of another one is not parsed.
        is_iceberg = location.url.format == "iceberg"
        kind = lake.iceberg.IcebergLakeTable if is_iceberg else lake.delta.DeltaLakeTable
        table: LakeTable = kind(location.url, dict(location.storage_options))
        _TABLES[key] = table
    return _TABLES[key]


def open_file_writer(
    location: LakeLocation, definition: TableDefinition, name: AttemptName, *, is_source: bool
) -> DataFileWriter:
    """Return the writer of an attempt's data files. Args: is_source: as DataFileWriter takes it."""
    if location.url.format == "iceberg":
        return lake.iceberg_files.IcebergFileWriter(definition, name)
    storage = open_storage(location.url, dict(location.storage_options))
    return DataFileWriter(storage, definition, name, is_source=is_source)
