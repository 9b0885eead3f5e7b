"""Rows of a RocksDB store, which its own process may have open at the same time.

RocksDB lets one process write a database. Opened for reading alone it takes no lock, so that neither a live
process is disturbed nor one that is about to start; what is read is what was written at that moment, the log
included. So the database is opened anew for each reading.
"""

from collections.abc import Iterator
from contextlib import closing, suppress
from pathlib import Path
from typing import Final

from rocksdict import AccessType, Rdict

from tallystick.console.collect.failures import limit_sentences
from tallystick.console.model.snapshot import PartStatus, StoreFacts, StoreKind
from tallystick.dualwrite.errors import BadStore, CorruptRow
from tallystick.dualwrite.rules.model import TABLE, StoredState, from_bytes
from tallystick.dualwrite.stores.by_url import find_rocksdb_folder

_LOCK_TABLE: Final = Path("/proc/locks")


def open_rocksdb_rows(url: str, name: str, limit_ms: int) -> "RocksRows":
    """Prepare to read the database of a URL. Raises: BadConfig, BadStore."""
    return RocksRows(find_rocksdb_folder(url), name)


class RocksRows:
    """`RowSource` of a RocksDB database."""

    def __init__(self, folder: Path, name: str) -> None:
        self.folder, self._name = folder, name

    def read(self) -> StoreFacts:
        failures: list[str] = []
        rows: dict[str, StoredState] = {}
        for name, data in self._read_family():
            try:
                rows[name] = from_bytes(name, data)
            except CorruptRow as exc:
                failures.append(str(exc))
        return StoreFacts(
            status=PartStatus(failures=limit_sentences(failures)),
            name=self._name,
            kind=StoreKind.ROCKSDB,
            engine="RocksDB",
            opened_by=find_lock_holder(self.folder / "LOCK"),
            rows=rows,
        )

    def close(self) -> None:
        """Do nothing: nothing stays open."""

    def _read_family(self) -> Iterator[tuple[str, bytes]]:
        if TABLE not in Rdict.list_cf(str(self.folder)):
            raise BadStore(f"{self.folder}: no column family {TABLE}; create() makes it")
        with (
            closing(Rdict(str(self.folder), access_type=AccessType.read_only())) as database,
            closing(database.get_column_family(TABLE)) as family,
        ):
            for key, value in family.items():
                yield key.decode() if isinstance(key, bytes) else str(key), value


def find_lock_holder(lock: Path, lock_table: Path = _LOCK_TABLE) -> str:
    """Return the process that has a lock on a file, as far as the system shows it; "" for none."""
    with suppress(OSError):
        inode = lock.stat().st_ino
        for line in lock_table.read_text().splitlines():
            # 1: POSIX  ADVISORY  WRITE 1234 08:01:5678 0 EOF
            words = line.split()
            if "->" not in words and any(word.endswith(f":{inode}") for word in words):
                return f"process {words[4]}"
    return ""
