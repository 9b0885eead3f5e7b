"""A Delta table through delta-rs (`deltalake`). The only module that knows its API.

An entry is in the `commitInfo` of its commit, as `tallystick`. The application transaction of its key,
`tallystick:<key>`, has the version of that commit: it stays in checkpoints, so the newest version of the
table always tells where the entry is, whatever other writers have committed since. The entry itself is there
as long as the log keeps that commit (`delta.logRetentionDuration`, by default 30 days); after that the table
still knows that something was decided, and reading raises EntryLost [LAK-2].

`max_commit_retries=0` is what makes a commit become the next version or fail: with it, delta-rs does not
check for conflicts and does not rebase, but writes the entry of one version with "create if absent"
(delta-rs, crates/core/src/kernel/transaction/mod.rs, at 2c996fa9). Should it ever merge, the conflict checker
refuses a commit whose application id an interim commit has moved (`ConcurrentTransaction`). Both are pinned
by tests/integration/lake/test_lake_delta.py.
"""

import hashlib
import json
import logging
import os
import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from threading import Lock
from typing import Any, ClassVar, Final, TypeVar
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.parquet as pq
from deltalake import CommitProperties, DeltaTable, PostCommitHookProperties, Transaction
from deltalake.exceptions import DeltaError, TableNotFoundError
from deltalake.schema import Schema as DeltaSchema
from deltalake.transaction import AddAction

from tallystick.kernel.secret import chain, hide_logins
from tallystick.kernel.settings import BadConfig
from tallystick.lake.delta_applications import LAST_CHECKPOINT, LOG_FOLDER, read_application_ids
from tallystick.lake.entries import (
    METADATA_KEY,
    CommitOutcome,
    LakeEntry,
    assess_outcome,
    decode_entry,
    encode_entry,
)
from tallystick.lake.errors import BadEntry, EntryLost, TableBusy, UnusableTable
from tallystick.lake.names import (
    TableUrl,
    find_unsafe_options,
    format_application_id,
    parse_application_id,
)
from tallystick.lake.ports import DataFile, ListedFile, TableFiles, TableState
from tallystick.lake.schema import TableDefinition, find_added_columns
from tallystick.lake.storage import Storage, map_files, open_storage
from tallystick.lake.upserts import find_key_problem, format_assignments, format_key_predicate

T = TypeVar("T")

_log = logging.getLogger("tallystick.lake")

_MIN_WRITER_WITH_FEATURES: Final = 7
# Features that change nothing for a writer that only adds files with plain columns, or that are looked for
# in the metadata below.
_HARMLESS_FEATURES: Final = frozenset(
    {
        "appendOnly",
        "invariants",
        "checkConstraints",
        "generatedColumns",
        "identityColumns",
        "changeDataFeed",
        "columnMapping",
        "deletionVectors",
        "domainMetadata",
        "timestampNtz",
        "v2Checkpoint",
        "vacuumProtocolCheck",
    }
)
_COLUMN_RULES: Final = {
    "delta.invariants": "an invariant",
    "delta.generationExpression": "a generated value",
    "delta.identity.start": "an identity",
}
# delta.dataSkippingNumIndexedCols, if a table does not set it
_BOUNDED_COLUMNS: Final = "32"
_ADD_COLUMNS_ATTEMPTS: Final = 20
_ENTRIES_MAX: Final = 8
_FORKED_TEXT: Final = "tokio runtime does not support forked processes"
_DECORATION: Final = re.compile(r"\x1b\[[0-9;]*m|\u21b3")


class DeltaLakeTable:
    """One Delta table of this process."""

    keeps_upserted_files: ClassVar[bool] = False

    def __init__(self, url: TableUrl, storage_options: Mapping[str, str]) -> None:
        """Bind to the table; nothing is read yet. Raises: BadConfig for storage that does not fence."""
        unsafe = find_unsafe_options(url, {**_read_environment(), **storage_options})
        if unsafe:
            raise BadConfig(
                f'table {url}: {", ".join(unsafe)}: with it, log entries are not created "only if absent", '
                "so that two drivers may both decide. Take it away: S3 and its kin have that without it"
            )
        self._url = url
        self._options = dict(storage_options)
        self._lock = Lock()
        self._table: DeltaTable | None = None
        self._noted_commit: tuple[int, str | None] = (-1, None)
        self._entries: dict[int, LakeEntry] = {}
        self.storage: Storage = open_storage(url, self._options)
        self._is_fenced = False

    @property
    def url(self) -> str:
        return str(self._url)

    # ---- reading

    def read(self, key: str, *, accepts_loss: bool = False) -> TableState:
        def read_state(table: DeltaTable) -> TableState:
            try:
                entry = self._read_entry(table, key)
            except EntryLost:
                if not accepts_loss:
                    raise
                entry = None
            return TableState(version=table.version(), entry=entry, definition=_define(table))

        with self._lock:
            return self._read_newest(read_state)

    def read_definition(self) -> TableDefinition:
        with self._lock:
            return self._read_newest(_define)

    def _read_newest(self, read: Callable[[DeltaTable], T]) -> T:
        """Read the newest version; again if a file is gone that delta-rs remembers."""
        try:
            return read(self._refresh())
        except DeltaError as exc:
            self._forget(str(exc))
            return read(self._refresh())

    def _refresh(self) -> DeltaTable:
        """Bring the table to its newest version. Raises: UnusableTable."""
        try:
            if self._table is not None:
                problem = self._advance(self._table)
                if problem is not None:
                    self._forget(problem)
            if self._table is None:
                self._table = DeltaTable(self._url.place, storage_options=self._options or None)
                self._note_version(self._table.version())
        except TableNotFoundError as exc:
            raise UnusableTable(
                f"table {self._url}: does not exist, and is not created here. Create it first: "
                "DeltaTable.create(...) of deltalake, or CREATE TABLE ... USING delta"
            ) from exc
        except OSError as exc:  # an object store's, over several coloured lines
            text = hide_logins(f"table {self._url}: {' '.join(_DECORATION.sub('', str(exc)).split())}")
            raise OSError(text) from chain(exc)
        except BaseException as exc:  # a panic of Rust's is no Exception
            if _FORKED_TEXT not in str(exc):
                raise
            raise UnusableTable(
                f"table {self._url}: the process that forked this one has used deltalake, whose threads do "
                "not survive a fork: nothing was done here. Start such processes before anything reads a "
                "Delta table, or with multiprocessing's `spawn`"
            ) from exc
        return self._table

    def _advance(self, table: DeltaTable) -> str | None:
        """Bring a table that was read to its newest version; return why it must be read again, if it must.

        A table that was deleted and created again has another log at the same place. delta-rs reads on behind
        the version that it holds, and keeps what the old log has told.
        """
        version = table.version()
        try:
            table.update_incremental()
        except DeltaError as exc:  # the log may have been cleaned up behind its version
            return str(exc)
        # Afterwards: what was read until then is of the log that this commit is in.
        if self._noted_commit != (version, self._name_commit(version)):
            return f"its log has another version {version} than before, or none"
        if table.version() != version:
            self._note_version(table.version())
        return None

    def _forget(self, why: str) -> None:
        _log.info("%s: read again: %s", self._url, why)
        self._table, self._entries = None, {}

    def _note_version(self, version: int) -> None:
        entry = self._entries.get(version)
        self._noted_commit = (version, self._name_commit(version) if entry is None else entry.commit)

    def _name_commit(self, version: int) -> str | None:
        """Return what tells the commit of a version from that of another log; None if it is not kept."""
        text = self.storage.read(_name_log_entry(version))
        if text is None:
            return None
        try:
            entry = _find_entry(text) if METADATA_KEY.encode() in text else None
        except BadEntry:
            entry = None
        return hashlib.sha256(text).hexdigest() if entry is None else entry.commit

    def _read_entry(self, table: DeltaTable, key: str) -> LakeEntry | None:
        """Return the entry of a key [LAK-2]. Raises: EntryLost, BadEntry."""
        version = table.transaction_version(format_application_id(key))
        if version is None:
            return None
        if version in self._entries and self._entries[version].key == key:
            return self._entries[version]
        text = self.storage.read(_name_log_entry(version))
        entry = None if text is None else _find_entry(text)
        if entry is None or entry.key != key:
            raise EntryLost(
                f"table {self._url}: version {version} has what was decided last under {key!r}, and the "
                "table's log no longer has that commit, or has another one: it was cleaned up "
                "(delta.logRetentionDuration), or the table was restored from a copy. Nothing was changed. "
                "Bring the log entry back. If it is gone, `tallystick transactions resolve --prefix ... "
                "--store ... --retire` accepts that and aborts what is open, so that rows of the last batch "
                "may be in the table and not in the topics: compare them, then begin with onNewPrefix=adopt"
            )
        self._make_durable(version, text or b"")  # its writer may have died before it was on the disk
        self._remember(version, entry)
        return entry

    def _remember(self, version: int, entry: LakeEntry) -> None:
        self._entries = dict([*self._entries.items(), (version, entry)][-_ENTRIES_MAX:])

    # ---- committing

    def commit(
        self, version: int, entry: LakeEntry, files: Sequence[DataFile], keys: Sequence[str] = ()
    ) -> CommitOutcome:
        with self._lock:
            table = self._table
            if table is None or table.version() != version:
                return CommitOutcome.BEATEN
            self._check_fence(table)
            next_version = version + 1
            properties = CommitProperties(
                custom_metadata={METADATA_KEY: encode_entry(entry)},
                max_commit_retries=0,
                app_transactions=[Transaction(format_application_id(entry.key), next_version)],
            )
            try:
                if keys and files:
                    _merge(table, self._read_rows(files), keys, properties)
                else:
                    _append(table, files, properties)
            except Exception as exc:  # delta-rs raises its own classes, OSErrors and ValueErrors
                outcome = self._look_up(next_version, entry)
                level = logging.WARNING if outcome is CommitOutcome.UNKNOWN else logging.INFO
                why = hide_logins(str(exc))
                _log.log(level, "%s: version %d: %s: %s", self._url, next_version, outcome.name, why)
                if outcome is not CommitOutcome.COMMITTED:
                    return outcome
            try:
                # Of an append, the tasks have made the files durable.
                text = self.storage.read(_name_log_entry(next_version)) if keys and files else None
                self._make_durable(next_version, text or b"")
            except OSError as exc:
                _log.warning("%s: version %d may not be on the disk yet: %s", self._url, next_version, exc)
                return CommitOutcome.UNKNOWN
            self._remember(next_version, entry)
            if table.version() == next_version:  # after a merge, not after an append
                self._note_version(next_version)
            return CommitOutcome.COMMITTED

    def check_fence(self) -> None:
        with self._lock:
            self._check_fence(self._table or self._refresh())

    def _check_fence(self, table: DeltaTable) -> None:
        if self._is_fenced:
            return
        entries = (_name_log_entry(table.version()), LAST_CHECKPOINT)
        if all(self.storage.size(path) is None for path in entries):
            raise UnusableTable(
                f"table {self._url}: delta-rs reads its log, and obstore, which writes its data files, does "
                "not find it: they log in differently, or elsewhere. Nothing was committed. Give both the "
                "same endpoint and keys, as storage options or AWS_... variables; obstore knows no profiles "
                "and assumes no roles"
            )
        problem = self.storage.find_fence_problem()
        if problem is not None:
            raise UnusableTable(
                f"table {self._url}: {problem}, so that two writers may commit the same version. Nothing was "
                "committed. Use a store with conditional writes: S3, GCS, Azure, MinIO, R2 have them"
            )
        self._is_fenced = True

    def _look_up(self, version: int, entry: LakeEntry) -> CommitOutcome:
        try:
            text = self.storage.read(_name_log_entry(version))
            current = None if text is None else _find_entry(text)
        except (OSError, BadEntry) as exc:
            _log.warning("%s: version %d cannot be looked up: %s", self._url, version, exc)
            return CommitOutcome.UNKNOWN
        return assess_outcome(current, entry, exists=text is not None)

    def _read_rows(self, files: Sequence[DataFile]) -> pa.Table:
        contents = map_files(self.storage, self.storage.read, [file.path for file in files])
        return pa.concat_tables(pq.read_table(pa.BufferReader(content)) for content in contents if content)

    def _make_durable(self, version: int, text: bytes) -> None:
        """Make a commit durable, and before it the files that its text adds."""
        for action in _parse_actions(text):
            if "add" in action:
                with suppress(FileNotFoundError):  # compacted and removed since
                    self.storage.sync(unquote(action["add"]["path"]))
        self.storage.sync(_name_log_entry(version))

    def find_key_problem(self, files: Sequence[DataFile], keys: Sequence[str]) -> str | None:
        return find_key_problem(self._read_rows(files), keys)

    def find_missing(self, files: Sequence[DataFile]) -> Sequence[str]:
        sizes = map_files(self.storage, self.storage.size, [each.path for each in files])
        return [each.path for each, size in zip(files, sizes, strict=True) if size != each.size_bytes]

    def add_columns(self, wanted: TableDefinition) -> None:
        self.check_fence()
        for _ in range(_ADD_COLUMNS_ATTEMPTS):
            with self._lock:
                table = self._refresh()
                missing = find_added_columns(_define(table), wanted.schema)
                if not missing.names:
                    return
                try:
                    table.alter.add_columns(DeltaSchema.from_arrow(missing).fields)
                except DeltaError as exc:
                    _log.info("%s: columns were not added yet: %s", self._url, exc)
        raise TableBusy(
            f"table {self._url}: the columns {', '.join(wanted.schema.names)} could not be added, because "
            "other writers commit all the time. Nothing was written"
        )

    # ---- files

    def list_data_files(self) -> Mapping[str, ListedFile]:
        try:
            return self.storage.list("")
        except FileNotFoundError:
            return {}  # reading the table says so

    def read_files(self) -> TableFiles:
        with self._lock:
            table = self._refresh()
            identity = str(table.metadata().id)
            referenced = set(pa.table(table.get_add_actions())["path"].to_pylist())
            names = sorted(name for name in self.storage.list(LOG_FOLDER) if name.endswith(".json"))
        owners: dict[str, str] = {}
        past_owners: dict[str, set[str]] = {}
        for text in map_files(self.storage, self.storage.read, names):
            if text is None:
                continue  # cleaned up meanwhile
            for action in _parse_actions(text):
                for kind in ("add", "remove"):
                    if kind in action:
                        referenced.add(unquote(action[kind]["path"]))
            if (entry := _find_entry(text)) is not None:
                owners[entry.key] = entry.owner
                past_owners.setdefault(entry.key, set()).add(entry.owner)
        return TableFiles(identity=identity, referenced=referenced, owners=owners, past_owners=past_owners)

    def list_keys(self) -> Collection[str]:
        with self._lock:
            self._refresh()  # it is a table
        keys = map(parse_application_id, read_application_ids(self.storage))
        return {key for key in keys if key is not None}

    def remove(self, path: str) -> None:
        self.storage.try_remove(path)


def _read_environment() -> dict[str, str]:
    return {name: text for name, text in os.environ.items() if name.upper().startswith(("AWS_", "MOUNT_"))}


def _name_log_entry(version: int) -> str:
    return f"{LOG_FOLDER}/{version:020d}.json"


def _parse_actions(text: bytes) -> Iterator[dict[str, Any]]:
    for line in text.splitlines():
        if line.strip():
            yield json.loads(line)


def _find_entry(text: bytes) -> LakeEntry | None:
    """Return the entry in a commit; None if it has none of ours. Raises: BadEntry."""
    try:
        for action in _parse_actions(text):
            information = action.get("commitInfo", {})
            if METADATA_KEY in information:
                return decode_entry(information[METADATA_KEY])
    except ValueError as exc:
        raise BadEntry(f"a commit of the table is no JSON: {exc}") from exc
    return None


def _append(table: DeltaTable, files: Sequence[DataFile], properties: CommitProperties) -> None:
    table.create_write_transaction(
        [_to_action(each) for each in files],
        "append",
        table.schema(),
        partition_by=table.metadata().partition_columns,
        commit_properties=properties,
        post_commithook_properties=PostCommitHookProperties(create_checkpoint=True),
    )


def _merge(table: DeltaTable, rows: pa.Table, keys: Sequence[str], properties: CommitProperties) -> None:
    assignments = format_assignments(rows.column_names)
    table.merge(
        source=rows,
        predicate=format_key_predicate(keys),
        source_alias="source",
        target_alias="target",
        commit_properties=properties,
    ).when_matched_update(assignments).when_not_matched_insert(assignments).execute()


def _to_action(file: DataFile) -> AddAction:
    return AddAction(
        path=file.path,
        size=file.size_bytes,
        partition_values=dict(file.partition),
        modification_time=file.written_ms,
        data_change=True,
        stats=file.statistics,
    )


def _define(table: DeltaTable) -> TableDefinition:
    metadata = table.metadata()
    return TableDefinition(
        identity=str(metadata.id),
        schema=pa.schema(table.schema()),
        partition_columns=tuple(metadata.partition_columns),
        is_append_only=metadata.configuration.get("delta.appendOnly", "false") == "true",
        layout=_choose_bounded_columns(metadata.configuration),
        problems=tuple(_find_problems(table)),
    )


def _choose_bounded_columns(settings: Mapping[str, str]) -> str:
    """Return of how many columns a reader asks for bounds, at most; empty for all."""
    if "delta.dataSkippingStatsColumns" in settings:
        return ""
    count = settings.get("delta.dataSkippingNumIndexedCols", _BOUNDED_COLUMNS)
    return count if count.isdecimal() else ""


def _find_problems(table: DeltaTable) -> Iterator[str]:
    """Yield what a writer of plain data files would break (Delta's protocol, "Writer Requirements")."""
    protocol, settings = table.protocol(), table.metadata().configuration
    if protocol.min_writer_version > _MIN_WRITER_WITH_FEATURES:
        yield f"needs writer version {protocol.min_writer_version}, and this one has 7"
    for feature in sorted(set(protocol.writer_features or ()) - _HARMLESS_FEATURES):
        yield f"has the table feature {feature}, which this writer does not have"
    for name in sorted(settings):
        if name.startswith("delta.constraints."):
            constraint = name.removeprefix("delta.constraints.")
            yield f"has the constraint {constraint}, which this writer cannot check"
    if settings.get("delta.columnMapping.mode", "none") != "none":
        yield f"has delta.columnMapping.mode={settings['delta.columnMapping.mode']}"
    if "delta.setTransactionRetentionDuration" in settings:
        # The application transaction is what tells a decision from none: it must not expire.
        yield "has delta.setTransactionRetentionDuration: it would forget what was decided"
    for field in json.loads(table.schema().to_json())["fields"]:
        for name, rule in _COLUMN_RULES.items():
            if name in field.get("metadata", {}):
                yield f"column {field['name']} has {rule}, which this writer does not compute or check"
