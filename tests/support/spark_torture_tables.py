"""The lake tables of the torture, a format each: what creates them, other writers, and what reads them.

A new format is one more value of `FORMATS`. The torture itself asks for nothing else, and reads a table with
the format's own library, not with what wrote it.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, Protocol

import pyarrow as pa

SCHEMA: Final = pa.schema([("id", pa.string())])
RIVAL: Final = "rival"
"""The id of every row that another writer appends."""


class LakeFormat(Protocol):
    """What the torture does with a table of one format, apart from its own query."""

    def create(self, folder: Path) -> str:
        """Create an empty table with `SCHEMA` in this folder; return its URL."""

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


FORMATS: Final[Mapping[str, LakeFormat]] = {"delta": DeltaFormat()}
"""Every format, by the scheme of its URLs."""


def is_lake(url: str | None) -> bool:
    """Tell a lake table from a database."""
    return url is not None and url.partition(":")[0] in FORMATS


def find_format(url: str) -> LakeFormat:
    """Return the format of a table's URL."""
    return FORMATS[url.partition(":")[0]]
