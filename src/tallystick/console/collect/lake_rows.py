"""Decisions of Spark's queries in a lake table, each the last commit of its prefix.

A table's log has the commits of other writers, too. It is searched for prefixes only when the table has a new
version; one whose commits were all cleaned up (`delta.logRetentionDuration`) is not found.
"""

from pathlib import Path

from tallystick.console.collect.failures import describe_failure, limit_sentences
from tallystick.console.snapshot import PartStatus, PrefixFacts, StoreFacts, StoreKind
from tallystick.kernel.errors import TallystickError
from tallystick.lake.names import parse_table_url
from tallystick.lake.opening import LakeLocation, open_table
from tallystick.spark.decisions.lake_row import LakeRow

_NO_KEY = ""
"""No query has it: reading it tells the version of the table, and nothing else."""


def open_lake_rows(url: str, name: str, limit_ms: int) -> "LakeRows":
    """Prepare to read the table of a URL. Raises: BadConfig, MissingLibrary."""
    return LakeRows(LakeLocation(url=parse_table_url(url)), name)


class LakeRows:
    """`RowSource` of a lake table."""

    def __init__(self, location: LakeLocation, name: str) -> None:
        self._table, self._name = open_table(location), name
        self.folder: Path | None = Path(location.url.folder)
        self._version: int | None = None
        self._keys: frozenset[str] = frozenset()

    def read(self) -> StoreFacts:
        version = self._table.read(_NO_KEY).version
        if version != self._version:
            self._keys |= frozenset(self._table.read_files().owners)
            self._version = version
        failures: list[str] = []
        prefixes = [facts for key in sorted(self._keys) if (facts := self._read_prefix(key, failures))]
        return StoreFacts(
            status=PartStatus(failures=limit_sentences(failures)),
            name=self._name,
            kind=StoreKind.LAKE,
            engine="Delta Lake",
            prefixes=tuple(prefixes),
        )

    def close(self) -> None:
        """Do nothing: nothing stays open."""

    def _read_prefix(self, key: str, failures: list[str]) -> PrefixFacts | None:
        try:
            state = LakeRow(self._table, key).read()
        except TallystickError as exc:  # lost, or of a later version
            failures.append(f"{key}: {describe_failure(exc)}")
            return None
        return PrefixFacts(
            prefix=key, source=self._name, decision=state.decision, is_complete=state.is_complete
        )
