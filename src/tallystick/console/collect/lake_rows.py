"""Reads a lake table: rows of dual writes, and decisions of Spark's queries. Nothing is kept open.

Each of them is the last commit of its key. Those commits are among the commits of other writers, so keys are
looked for only when the table has a new version.
"""

from collections.abc import Iterable
from pathlib import Path

from tallystick.console.collect.failures import describe_failure, limit_sentences
from tallystick.console.model.snapshot import PartStatus, PrefixFacts, StoreFacts, StoreKind
from tallystick.dualwrite.rules.model import StoredState
from tallystick.kernel.errors import TallystickError
from tallystick.lake.dual_writes.store import LakeStore
from tallystick.lake.names import parse_table_url, parse_writer_key
from tallystick.lake.opening import LakeLocation, open_table
from tallystick.lake.ports import ListsKeys
from tallystick.spark.decisions.lake_row import LakeRow

_NO_KEY = ""
"""No writer has it: reading it tells the version of the table, and nothing else."""
_ENGINES = {"delta": "Delta Lake", "iceberg": "Apache Iceberg"}


def open_lake_rows(url: str, name: str, limit_ms: int) -> "LakeRows":
    """Prepare to read the table of a URL. Raises: BadConfig, MissingLibrary."""
    return LakeRows(LakeLocation(url=parse_table_url(url)), name)


class LakeRows:
    """`RowSource` of a lake table."""

    def __init__(self, location: LakeLocation, name: str) -> None:
        self._table, self._store, self._name = open_table(location), LakeStore(location), name
        self._engine = _ENGINES[location.url.format]
        self.folder: Path | None = None
        # Of Iceberg, the catalog knows the folder.
        if location.url.format == "delta" and not location.url.is_in_object_store:
            self.folder = Path(location.url.folder)
        self._version: int | None = None
        self._keys: frozenset[str] = frozenset()

    def read(self) -> StoreFacts:
        version = self._table.read(_NO_KEY).version
        if version != self._version:
            self._keys |= frozenset(self._list_keys())
            self._version = version
        failures: list[str] = []
        rows: dict[str, StoredState] = {}
        prefixes: list[PrefixFacts] = []
        for key in sorted(self._keys):
            transactional_id = parse_writer_key(key)
            try:
                if transactional_id is None:
                    prefixes.append(self._read_prefix(key))
                elif (row := self._store.read_state(transactional_id)) is not None:
                    rows[transactional_id] = row
            except TallystickError as exc:  # lost, or of a later version
                failures.append(f"{transactional_id or key}: {describe_failure(exc)}")
        return StoreFacts(
            status=PartStatus(failures=limit_sentences(failures)),
            name=self._name,
            kind=StoreKind.LAKE,
            engine=self._engine,
            rows=rows,
            prefixes=tuple(prefixes),
        )

    def close(self) -> None:
        """Do nothing: nothing stays open."""

    def _list_keys(self) -> Iterable[str]:
        return (
            self._table.list_keys() if isinstance(self._table, ListsKeys) else self._table.read_files().owners
        )

    def _read_prefix(self, key: str) -> PrefixFacts:
        state = LakeRow(self._table, key).read()
        return PrefixFacts(
            prefix=key, source=self._name, decision=state.decision, is_complete=state.is_complete
        )
