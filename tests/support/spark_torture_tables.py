"""The lake tables of the torture, a format each: what creates them, other writers, and what reads them.

A new format is one more value of `FORMATS`. The torture itself asks for nothing else, and reads a table with
the format's own library, not with what wrote it.
"""

import datetime as dt
import os
from collections.abc import Mapping
from pathlib import Path
from secrets import token_hex
from typing import Any, Final, Protocol

import pyarrow as pa

SCHEMA: Final = pa.schema([("id", pa.string())])
RIVAL: Final = "rival"
"""The id of every row that another writer appends."""


class LakeFormat(Protocol):
    """What the torture does with a table of one format, apart from its own query."""

    def create(self, folder: Path) -> str:
        """Create an empty table with `SCHEMA` in this folder; return its URL."""

    def read_options(self, place: str) -> dict[str, str]:
        """Return what a query has to be told to open the table, beside its URL."""

    def append_as_rival(self, place: str) -> None:
        """Append a row, in a commit of another writer."""

    def optimize(self, place: str) -> None:
        """Compact the table's files, and write what the format has for a shorter log."""

    def read_ids(self, place: str) -> list[str]:
        """Return the ids of the newest version, with those of other writers."""


class DeltaFormat:
    """Delta, through delta-rs."""

    def create(self, folder: Path) -> str:
        from deltalake import DeltaTable

        DeltaTable.create(folder, schema=SCHEMA)
        return f"delta:{folder}"

    def read_options(self, place: str) -> dict[str, str]:
        return {}

    def append_as_rival(self, place: str) -> None:
        from deltalake import write_deltalake

        write_deltalake(Path(place), pa.table({"id": [RIVAL]}, schema=SCHEMA), mode="append")

    def optimize(self, place: str) -> None:
        from deltalake import DeltaTable

        table = DeltaTable(Path(place))
        table.optimize.compact()
        table.create_checkpoint()

    def read_ids(self, place: str) -> list[str]:
        from deltalake import DeltaTable

        rows: Any = pa.table(DeltaTable(Path(place)).scan().read_all())
        ids: list[str] = rows["id"].to_pylist()
        return ids


class IcebergFormat:
    """Iceberg, through pyiceberg. The catalog is in the environment, so that all processes have it."""

    def create(self, folder: Path) -> str:
        name = f"lake{token_hex(4)}"
        folder.mkdir()
        settings = {"type": "sql", "uri": f"sqlite:///{folder}/catalog.db", "warehouse": f"file://{folder}"}
        os.environ.update({_catalog_prefix(name) + key.upper(): text for key, text in settings.items()})
        place = f"{name}.torture.rows"
        catalog = self._load_catalog(place)
        catalog.create_namespace("torture")
        catalog.create_table("torture.rows", schema=SCHEMA)
        return f"iceberg:{place}"

    def read_options(self, place: str) -> dict[str, str]:
        prefix = _catalog_prefix(place.partition(".")[0])
        return {
            name.removeprefix(prefix).lower(): text
            for name, text in os.environ.items()
            if name.startswith(prefix)
        }

    def append_as_rival(self, place: str) -> None:
        self._load_table(place).append(pa.table({"id": [RIVAL]}, schema=SCHEMA))

    def optimize(self, place: str) -> None:
        table = self._load_table(place)
        rows = table.scan().to_arrow()
        if rows.num_rows:  # pyiceberg warns of overwriting nothing
            table.overwrite(rows)
        tomorrow = dt.datetime.now(dt.UTC) + dt.timedelta(days=1)
        table.maintenance.expire_snapshots().older_than(tomorrow).commit()

    def read_ids(self, place: str) -> list[str]:
        ids: list[str] = self._load_table(place).scan().to_arrow()["id"].to_pylist()
        return ids

    def _load_table(self, place: str) -> Any:
        return self._load_catalog(place).load_table(place.partition(".")[2])

    def _load_catalog(self, place: str) -> Any:
        from pyiceberg.catalog import load_catalog

        return load_catalog(place.partition(".")[0], **self.read_options(place))


def _catalog_prefix(name: str) -> str:
    return f"PYICEBERG_CATALOG__{name.upper()}__"


FORMATS: Final[Mapping[str, LakeFormat]] = {"delta": DeltaFormat(), "iceberg": IcebergFormat()}
"""Every format, by the scheme of its URLs."""


def is_lake(url: str | None) -> bool:
    """Tell a lake table from a database."""
    return url is not None and url.partition(":")[0] in FORMATS


def find_format(url: str) -> LakeFormat:
    """Return the format of a table's URL."""
    return FORMATS[url.partition(":")[0]]
