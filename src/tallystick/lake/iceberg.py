"""An Iceberg table through pyiceberg: the adapter of its catalog.

The entry of a key is a property of the table, `tallystick:<key>`. It is set in the commit that also makes a
snapshot and moves the tag of the same name to it. The snapshot's summary has the name of the commit. Tag and
property are two halves of one register: the tag is what a catalog compares, the property is what it keeps.

    catalog.commit_table(table, requirements, updates)        one attempt, all or nothing
        requirements   this table; `main` and the tag are where they were read; schema and partitions too
        updates        snapshot with the data files, `main` and tag to it, the property

Summaries and properties are in every metadata file of a table, and a summary stays until its snapshot
expires. So the decision, which grows with the number of tasks, is in the place that each commit replaces.
Expiry of snapshots spares the one that has a tag. If one half is gone, reading raises EntryLost [LAK-2].

pyiceberg commits again if another writer was faster, on another parent than the one that was read, and
deletes manifests after a refusal (0.12, `Transaction.commit_transaction`). `_OneAttempt` stands between: it
sends the requirements of docs/design/lake-tables.md, once, and what it raises means nothing to pyiceberg.
"""

import logging
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from secrets import token_hex
from threading import Lock
from typing import Any, ClassVar, Final

import pyarrow as pa
from pyiceberg.catalog import Catalog, load_catalog
from pyiceberg.exceptions import CommitFailedException, NoSuchNamespaceError, NoSuchTableError
from pyiceberg.table import CommitTableResponse, Table
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.refs import MAIN_BRANCH, SnapshotRefType
from pyiceberg.table.snapshots import Snapshot
from pyiceberg.table.update import (
    AddSnapshotUpdate,
    AssertCurrentSchemaId,
    AssertDefaultSpecId,
    AssertRefSnapshotId,
    AssertTableUUID,
    SetSnapshotRefUpdate,
    TableRequirement,
    TableUpdate,
)
from pyiceberg.utils.properties import property_as_bool

from tallystick.kernel.secret import chain, hide_logins
from tallystick.kernel.settings import BadConfig
from tallystick.lake.data_files import AttemptName
from tallystick.lake.entries import (
    METADATA_KEY,
    CommitOutcome,
    LakeEntry,
    assess_outcome,
    choose_entry,
    decode_entry,
    encode_entry,
)
from tallystick.lake.errors import BadEntry, EntryLost, TableBusy, UnusableTable
from tallystick.lake.iceberg_files import (
    IcebergFileWriter,
    build_manifest_entry,
    encode_layout,
    find_layout_problems,
)
from tallystick.lake.iceberg_storage import (
    find_path,
    find_storage_problem,
    open_files,
    select_file_options,
)
from tallystick.lake.iceberg_upserts import read_keys, rewrite_files
from tallystick.lake.names import (
    NO_OPTIONS,
    TableUrl,
    format_application_id,
    parse_application_id,
    parse_data_file_name,
)
from tallystick.lake.ports import DataFile, ListedFile, TableFiles, TableState
from tallystick.lake.schema import TableDefinition, find_added_columns
from tallystick.lake.storage import Storage, map_files, sync_file
from tallystick.lake.upserts import find_key_problem

_log = logging.getLogger("tallystick.lake")

_COMMIT: Final = f"{METADATA_KEY}.commit"
_KEY: Final = f"{METADATA_KEY}.key"
_OWNER: Final = f"{METADATA_KEY}.owner"
_FORMAT_VERSION: Final = 2
# A tag without an age of its own has that of a property of the table.
_FOR_EVER_MS: Final = 2**63 - 1
_ADD_COLUMNS_ATTEMPTS: Final = 20
_REWRITE_BYTES: Final = 8


class _Refused(Exception):
    """The catalog has refused a commit. Not an exception of pyiceberg, which would try it again."""


class _OneAttempt:
    """The catalog of one commit: it adds requirements and tag, and sends the commit once [LAK-5]."""

    def __init__(self, table: Table, entry: LakeEntry) -> None:
        self._catalog, self._metadata = table.catalog, table.metadata
        self._reference = format_application_id(entry.key)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._catalog, name)

    def commit_table(
        self, table: Table, _: tuple[TableRequirement, ...], updates: tuple[TableUpdate, ...]
    ) -> CommitTableResponse:
        (snapshot,) = (each.snapshot for each in updates if isinstance(each, AddSnapshotUpdate))
        _sync_snapshot(table, snapshot)
        try:
            return self._catalog.commit_table(
                table, self._build_requirements(), (*updates, self._build_tag(snapshot.snapshot_id))
            )
        except CommitFailedException as exc:
            raise _Refused(str(exc)) from exc

    def _build_requirements(self) -> tuple[TableRequirement, ...]:
        metadata = self._metadata
        return (
            AssertTableUUID(uuid=metadata.table_uuid),
            _require_reference(MAIN_BRANCH, metadata),
            _require_reference(self._reference, metadata),
            AssertCurrentSchemaId.model_validate({"current-schema-id": metadata.current_schema_id}),
            AssertDefaultSpecId.model_validate({"default-spec-id": metadata.default_spec_id}),
        )

    def _build_tag(self, snapshot_id: int) -> TableUpdate:
        tag = {"ref-name": self._reference, "type": SnapshotRefType.TAG, "snapshot-id": snapshot_id}
        return SetSnapshotRefUpdate.model_validate({**tag, "max-ref-age-ms": _FOR_EVER_MS})


def _require_reference(name: str, metadata: TableMetadata) -> TableRequirement:
    """Return the requirement that a branch or tag is where it was read, or is still not there."""
    reference = metadata.refs.get(name)
    return AssertRefSnapshotId.model_validate(
        {"ref": name, "snapshot-id": None if reference is None else reference.snapshot_id}
    )


class IcebergLakeTable:
    """One Iceberg table of this process. Its version is the last sequence number of the table."""

    keeps_upserted_files: ClassVar[bool] = True

    def __init__(self, url: TableUrl, properties: Mapping[str, str]) -> None:
        """Bind to the table; nothing is read yet.

        Args:
            properties: of the catalog, in addition to those of pyiceberg's configuration.
        """
        self._url = url
        self._catalog_name, *names = url.place.split(".")
        self._identifier = tuple(names)
        self._properties = dict(properties)
        self._lock = Lock()
        self._catalog: Catalog | None = None
        self._table: Table | None = None
        self._durable_location = ""

    @property
    def url(self) -> str:
        return str(self._url)

    # ---- reading

    def read(self, key: str, *, accepts_loss: bool = False) -> TableState:
        with self._lock:
            table = self._refresh()
            try:
                entry = self._read_entry(table.metadata, key)
            except EntryLost:
                if not accepts_loss:
                    raise
                entry = None
            if entry is not None and table.metadata_location != self._durable_location:
                with suppress(FileNotFoundError):  # replaced and deleted since
                    _sync(table.metadata_location)  # its writer may have died before it was on the disk
                self._durable_location = table.metadata_location
            return TableState(version=_read_version(table.metadata), entry=entry, definition=_define(table))

    def read_definition(self) -> TableDefinition:
        with self._lock:
            return _define(self._refresh())

    def _refresh(self) -> Table:
        self._table = self._load()
        return self._table

    def _load(self) -> Table:
        """Load the table as it is now. Raises: BadConfig, UnusableTable; errors of the catalog."""
        try:
            if self._catalog is None:
                self._catalog = load_catalog(self._catalog_name, **self._properties)
        except Exception as exc:  # of pyiceberg, and of the client of this kind of catalog
            name = self._catalog_name.upper()
            raise BadConfig(
                f"table {self._url}: pyiceberg cannot open the catalog {self._catalog_name}: {exc} "
                f"({type(exc).__name__}). Configure it in .pyiceberg.yaml, with "
                f"PYICEBERG_CATALOG__{name}__URI and its like, or with storage options"
            ) from chain(exc)
        try:
            return self._catalog.load_table(self._identifier)
        except (NoSuchTableError, NoSuchNamespaceError) as exc:
            raise UnusableTable(
                f"table {self._url}: does not exist, and the sink does not create it. Create it first: "
                "catalog.create_table(...) of pyiceberg, or CREATE TABLE ... USING iceberg"
            ) from exc

    def _read_entry(self, metadata: TableMetadata, key: str) -> LakeEntry | None:
        """Return the entry of a key [LAK-2] [LAK-6]. Raises: EntryLost, BadEntry."""
        name = format_application_id(key)
        try:
            return choose_entry(metadata.properties.get(name), _read_mark(metadata, name))
        except EntryLost as exc:
            raise EntryLost(
                f"table {self._url}: {exc}: the tag or the property {name!r} was removed or moved, or "
                "the table was put together from a copy. Nothing was changed. Put it back. If it is gone, "
                "`tallystick transactions resolve --prefix ... --store ... --retire` accepts that and aborts "
                "what is open, so that rows of the last batch may be in the table and not in the topics: "
                "compare them, then begin with onNewPrefix=adopt"
            ) from exc

    # ---- committing

    def commit(
        self, version: int, entry: LakeEntry, files: Sequence[DataFile], keys: Sequence[str] = ()
    ) -> CommitOutcome:
        with self._lock:
            table = self._table
            if table is None or _read_version(table.metadata) != version:
                return CommitOutcome.BEATEN
            if not table.metadata.snapshots:
                return self._begin(table)
            self._table = None
            try:
                location = self._send(table, entry, files, keys)
            except Exception as exc:  # of pyiceberg, of the catalog's client, of the storage
                outcome, location = self._look_up(table.metadata, entry, is_refused=isinstance(exc, _Refused))
                level = logging.WARNING if outcome is CommitOutcome.UNKNOWN else logging.INFO
                why = hide_logins(str(exc))
                _log.log(level, "%s: commit %s: %s: %s", self._url, entry.commit, outcome.name, why)
                if outcome is not CommitOutcome.COMMITTED:
                    return outcome
            try:
                _sync(location)
            except OSError as exc:
                _log.warning("%s: commit %s may not be on the disk: %s", self._url, entry.commit, exc)
                return CommitOutcome.UNKNOWN
            self._durable_location = location
            return CommitOutcome.COMMITTED

    def _begin(self, table: Table) -> CommitOutcome:
        """Make the first snapshot of a table that has none, without an entry.

        Before it there is nothing that a tag could be compared in: pyiceberg refuses a requirement on any
        reference but `main` then. And a commit without a parent is not bound to a sequence number.
        """
        try:
            with table.transaction() as transaction, transaction.update_snapshot().fast_append():
                pass
        except CommitFailedException as exc:
            _log.info("%s: another writer has made the first snapshot: %s", self._url, exc)
        return CommitOutcome.BEATEN

    def _send(self, table: Table, entry: LakeEntry, files: Sequence[DataFile], keys: Sequence[str]) -> str:
        """Commit once; return where the table's metadata is then."""
        fence: Any = _OneAttempt(table, entry)
        slim = _take_head(table.metadata)
        bound = Table(table.name(), slim, table.metadata_location, table.io, fence, dict(table.config))
        replaced, rewritten = self._rewrite(table, entry, files, keys) if keys and files else ([], ())
        transaction = bound.transaction()
        update = transaction.update_snapshot({_KEY: entry.key, _OWNER: entry.owner, _COMMIT: entry.commit})
        merges = property_as_bool(table.properties, "commit.manifest-merge.enabled", False)
        producer: Any = update.merge_append() if files and merges else update.fast_append()
        if replaced:
            producer = update.overwrite()
        folder = _find_data_folder(table)
        with producer:
            for file in replaced:
                producer.delete_data_file(file)
            for each in (*files, *rewritten):
                producer.append_data_file(build_manifest_entry(each, folder, table.schema(), table.spec()))
        transaction.set_properties({format_application_id(entry.key): encode_entry(entry)})
        return transaction.commit_transaction().metadata_location

    def _rewrite(
        self, table: Table, entry: LakeEntry, files: Sequence[DataFile], keys: Sequence[str]
    ) -> tuple[list[Any], Sequence[DataFile]]:
        """Rewrite the files of the table that have the batch's keys; they are orphans until the commit."""
        name = AttemptName(key=entry.key, owner=entry.owner, attempt=token_hex(_REWRITE_BYTES))
        writer = IcebergFileWriter(_define(table), name)
        return rewrite_files(table, read_keys(self._open_storage(table), files, keys), writer)

    def _look_up(
        self, before: TableMetadata, entry: LakeEntry, *, is_refused: bool
    ) -> tuple[CommitOutcome, str]:
        """Find out what became of a commit whose answer was an error, by its random name.

        A snapshot that was added since has taken the sequence number that the commit would have, so that it
        can no longer arrive; and the catalog's refusal says so too, unless the commit is there.
        """
        try:
            table = self._load()
            kept = table.metadata.properties.get(format_application_id(entry.key))
            commits = {_read_summary(each).get(_COMMIT) for each in table.metadata.snapshots}
            current = None if kept is None else decode_entry(kept)
        except Exception as exc:  # of the catalog's client
            why = hide_logins(str(exc))
            _log.warning("%s: commit %s cannot be looked up: %s", self._url, entry.commit, why)
            return CommitOutcome.UNKNOWN, ""
        moved = _read_version(table.metadata) > _read_version(before)
        entry_there = entry if entry.commit in commits else current
        outcome = assess_outcome(entry_there, entry, exists=is_refused or moved)
        return outcome, table.metadata_location

    def check_fence(self) -> None:
        """Do nothing: the catalog compares, and not the storage."""

    def find_key_problem(self, files: Sequence[DataFile], keys: Sequence[str]) -> str | None:
        with self._lock:
            storage = self._open_storage(self._table or self._refresh())
        return find_key_problem(read_keys(storage, files, keys), keys)

    def find_missing(self, files: Sequence[DataFile]) -> Sequence[str]:
        with self._lock:
            storage = self._open_storage(self._table or self._refresh())
        sizes = map_files(storage, storage.size, [each.path for each in files])
        return [each.path for each, size in zip(files, sizes, strict=True) if size != each.size_bytes]

    def add_columns(self, wanted: TableDefinition) -> None:
        for _ in range(_ADD_COLUMNS_ATTEMPTS):
            with self._lock:
                table = self._refresh()
                missing = find_added_columns(_define(table), wanted.schema)
                if not missing.names:
                    return
                try:
                    with table.update_schema() as update:
                        update.union_by_name(missing)
                except CommitFailedException as exc:
                    _log.info("%s: columns were not added yet: %s", self._url, exc)
        raise TableBusy(
            f"table {self._url}: the columns {', '.join(wanted.schema.names)} could not be added, because "
            "other writers commit all the time. Nothing was written"
        )

    # ---- files

    def list_data_files(self) -> Mapping[str, ListedFile]:
        with self._lock:
            storage = self._open_storage(self._refresh())
        try:
            return storage.list("")
        except FileNotFoundError:
            return {}  # nothing was written yet

    def read_files(self) -> TableFiles:
        with self._lock:
            table = self._refresh()
        listed = (each for snapshot in table.snapshots() for each in snapshot.manifests(table.io))
        manifests = {each.manifest_path: each for each in listed}
        paths = (
            entry.data_file.file_path
            for manifest in manifests.values()
            for entry in manifest.fetch_manifest_entry(table.io)
        )
        # A name of ours is in one place alone, so the rest of the path does not matter.
        names = (path.rpartition("/")[2] for path in paths)
        past_owners: dict[str, set[str]] = {}
        for snapshot in table.metadata.snapshots:
            summary = _read_summary(snapshot)
            if _KEY in summary:
                past_owners.setdefault(summary[_KEY], set()).add(summary.get(_OWNER, ""))
        return TableFiles(
            identity=str(table.metadata.table_uuid),
            referenced={name for name in names if parse_data_file_name(name) is not None},
            owners=dict(self._list_owners(table.metadata)),
            past_owners=past_owners,
        )

    def _list_owners(self, metadata: TableMetadata) -> Iterator[tuple[str, str]]:
        for name in metadata.properties:
            key = parse_application_id(name)
            try:
                entry = None if key is None else self._read_entry(metadata, key)
            except (EntryLost, BadEntry) as exc:
                _log.warning("%s", exc)
                continue
            if entry is not None:
                yield entry.key, entry.owner

    def remove(self, path: str) -> None:
        with self._lock:
            storage = self._open_storage(self._table or self._refresh())
        storage.try_remove(path)

    def _open_storage(self, table: Table) -> Storage:
        folder = _find_data_folder(table)
        problem = find_storage_problem(folder, table.io)
        if problem is not None:
            raise UnusableTable(f"table {self._url}: {problem}")
        return open_files(folder, table.io)


def _read_version(metadata: TableMetadata) -> int:
    """Return the last sequence number, which every snapshot raises; format version 1 has none."""
    return int(getattr(metadata, "last_sequence_number", 0))


def _take_head(metadata: TableMetadata) -> TableMetadata:
    """Return metadata with the last snapshot alone, of which the next one is made.

    pyiceberg copies the metadata of a transaction at every look at it, all snapshots included. What the
    catalog keeps does not come from here.
    """
    head = metadata.refs.get(MAIN_BRANCH)
    snapshots = [each for each in metadata.snapshots if head and each.snapshot_id == head.snapshot_id]
    refs = {} if head is None else {MAIN_BRANCH: head}
    return metadata.model_copy(update={"snapshots": snapshots, "snapshot_log": [], "refs": refs})


def _read_summary(snapshot: Snapshot) -> Mapping[str, str]:
    return {} if snapshot.summary is None else snapshot.summary.additional_properties


def _read_mark(metadata: TableMetadata, name: str) -> str | None:
    """Return the name of the commit that a tag is at: None without a tag, empty if that is none of ours."""
    reference = metadata.refs.get(name)
    if reference is None:
        return None
    snapshot = metadata.snapshot_by_id(reference.snapshot_id)
    return "" if snapshot is None else _read_summary(snapshot).get(_COMMIT, "")


def _find_data_folder(table: Table) -> str:
    """Return the URI of the folder of a table's data files."""
    return str(table.location_provider().data_path)


def _sync(uri: str) -> None:
    """Make a file durable that pyiceberg has written; a store that is elsewhere does so itself."""
    path = find_path(uri)
    if path is not None:
        sync_file(path)


def _sync_snapshot(table: Table, snapshot: Snapshot) -> None:
    """Make the files of a new snapshot durable, before the catalog names it."""
    if find_path(snapshot.manifest_list) is None:
        return  # not read back for nothing
    for manifest in snapshot.manifests(table.io):
        if manifest.added_snapshot_id == snapshot.snapshot_id:
            _sync(manifest.manifest_path)
    _sync(snapshot.manifest_list)


def _define(table: Table) -> TableDefinition:
    folder = _find_data_folder(table)
    path = find_path(folder)
    return TableDefinition(
        identity=str(table.metadata.table_uuid),
        schema=pa.schema(table.schema().as_arrow()),
        layout=encode_layout(
            str(path or folder), table.schema(), table.spec(), table.sort_order(), table.properties
        ),
        file_options=NO_OPTIONS if path else select_file_options(table.io.properties),
        problems=tuple(_find_problems(table)),
    )


def _find_problems(table: Table) -> Iterator[str]:
    """Yield what a writer of plain data files cannot do."""
    if table.format_version != _FORMAT_VERSION:
        yield f"is of format version {table.format_version}, and this writer has {_FORMAT_VERSION}"
    problem = find_storage_problem(_find_data_folder(table), table.io)
    if problem is not None:
        yield problem
    yield from find_layout_problems(table.schema(), table.spec())
