"""Interface between the rules and a table format. `delta` and `iceberg` implement it."""

from collections.abc import Collection, Mapping, Sequence
from typing import ClassVar, Protocol, runtime_checkable

from tallystick.kernel.value import Value
from tallystick.lake.entries import CommitOutcome, LakeEntry
from tallystick.lake.schema import TableDefinition


class DataFile(Value, kw_only=True):
    """A finished data file that no commit names yet.

    path        relative to the table
    partition   the value of each partition field as the format writes it; None is null
    statistics  of its columns, as the format writes them
    """

    path: str
    size_bytes: int
    row_count: int
    partition: Mapping[str, str | None]
    statistics: str
    written_ms: int


class TableState(Value, kw_only=True):
    """State of a table at one version: the entry of one key, and the table's definition.

    Versions only grow, and each commit makes a new one.
    """

    version: int
    entry: LakeEntry | None
    definition: TableDefinition


class ListedFile(Value):
    """A file of a table's storage; `modified_ms` is None where the storage does not tell."""

    size_bytes: int
    modified_ms: int | None = None


class TableFiles(Value, kw_only=True):
    """Files that a table names, and the owners of its keys.

    identity     of the table
    referenced   the files of its last version, and all that its kept log has added or removed
    owners       the last owner of each key, from the kept log
    past_owners  all owners of each key that the kept log tells of
    """

    identity: str
    referenced: Collection[str]
    owners: Mapping[str, str]
    past_owners: Mapping[str, Collection[str]]


class LakeTable(Protocol):
    """One table. Its calls block; a table belongs to one process and may be used by several threads.

    keeps_upserted_files  the data files of an upsert become part of the table
    """

    keeps_upserted_files: ClassVar[bool]

    @property
    def url(self) -> str: ...

    def read(self, key: str, *, accepts_loss: bool = False) -> TableState:
        """Read the newest version. What its entry says is durable when this returns.

        Args:
            accepts_loss: a lost entry is none.
        Raises: UnusableTable, EntryLost, BadEntry; errors of the storage.
        """

    def read_definition(self) -> TableDefinition:
        """Read the newest definition of the table. Raises: UnusableTable; errors of the storage."""

    def commit(
        self, version: int, entry: LakeEntry, files: Sequence[DataFile], keys: Sequence[str] = ()
    ) -> CommitOutcome:
        """Commit entry and files as the version after `version`, or not at all [LAK-1].

        With keys, the rows of the files replace those of the table with the same keys. The files themselves
        stay outside of the table then, unless it `keeps_upserted_files`.

        Durable when this returns COMMITTED. Raises nothing that leaves the outcome open.
        """

    def check_fence(self) -> None:
        """Check, once in a process, that the storage keeps writers apart. `commit` does so otherwise.

        Apart from it, so that the time that it takes is not between a deadline and its commit.
        Raises: UnusableTable; errors of the storage.
        """

    def find_key_problem(self, files: Sequence[DataFile], keys: Sequence[str]) -> str | None:
        """Return why the rows of an upsert cannot be told apart by their keys; None if they can."""

    def find_missing(self, files: Sequence[DataFile]) -> Sequence[str]:
        """Return the paths of files that are not there with their size."""

    def add_columns(self, wanted: TableDefinition) -> None:
        """Add the columns that the table lacks, in a commit of its own."""

    def list_data_files(self) -> Mapping[str, ListedFile]:
        """Return the files in the folder of the table's data files, which may have those of another table."""

    def read_files(self) -> TableFiles:
        """Read which files the table names. Raises: UnusableTable; errors of the storage."""

    def remove(self, path: str) -> None:
        """Remove a file that no commit names."""


@runtime_checkable
class ListsKeys(Protocol):
    """A table that can list its keys without reading all of its kept log. Optional."""

    def list_keys(self) -> Collection[str]:
        """Return every key that has an entry, also one that the kept log has lost. Raises: UnusableTable."""
