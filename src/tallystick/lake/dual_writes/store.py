"""A store in a table of a lake: the metadata of a commit is the row of a transactional id.

Each id has one entry in the table (`tallystick.lake.entries`), under the key `dual-write:<id>`: its state row
is the payload, and the owner of that row is the owner of the entry. A claim and a record are commits, and
each becomes the version after the one whose entry was compared, or nothing [LAK-1]. That is the fence [DW-1,
DW-2]: of a claim and a record that both follow version v one is v + 1, and the other one reads again. There
is no lock. Each id has its own entry, so that writers of several ids may use one table and take turns at its
versions.

A commit whose answer was lost is looked up by a random name that no other one has. If it is not there, and no
other commit has its version, it is sent again as the same version; only if that cannot be done is the outcome
unknown [DW-3].

A transaction keeps the rows of a block until they are data files of one commit:

    append ...   rows are compared with the table, and kept in memory
    record       the owner is compared; then the rows become data files, durable and named by their owner
    commit       files and state row become the next version of the table, or nothing

A rollback forgets the rows and removes the files, unless the commit was sent and not answered: a version of
the table may name them then. A file that no version names is an orphan, which `tallystick lake
vacuum-orphans` removes once the id has another owner [DW-23]. There are no savepoints in a table: `savepoint`
is a place in the list of rows to which it can be cut back.
"""

import logging
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from enum import Enum, auto
from pathlib import Path
from secrets import token_hex
from threading import RLock
from typing import Final

import pyarrow as pa

from tallystick import _lazy
from tallystick.client.errors import NotSupported
from tallystick.dualwrite.errors import (
    BadStore,
    CommitUnknown,
    CorruptRow,
    DualWriteError,
    ManagedByWriter,
    NotCommitted,
)
from tallystick.dualwrite.forks import OwningProcess
from tallystick.dualwrite.rules.model import StoredState, from_bytes, to_bytes
from tallystick.dualwrite.rules.refusals import ORPHANED_RECORDS_TEXT
from tallystick.dualwrite.stores.base import check_record
from tallystick.kernel.clock import Clock, SystemClock
from tallystick.kernel.ids import is_table_url
from tallystick.kernel.settings import BadConfig
from tallystick.kernel.value import Value, replace
from tallystick.lake.data_files import AttemptName, DataFileWriter
from tallystick.lake.dual_writes.model import IdleEntries
from tallystick.lake.dual_writes.rows import read_rows, to_all_columns, to_table_types
from tallystick.lake.entries import CommitOutcome, LakeEntry, find_unsettled
from tallystick.lake.errors import BadEntry, EntryLost, SchemaDiffers, TableBusy, UnusableTable
from tallystick.lake.names import StorageOptions, format_writer_key, parse_table_url, parse_writer_key
from tallystick.lake.opening import LakeLocation, open_table
from tallystick.lake.ports import DataFile, LakeTable, ListsKeys, TableState
from tallystick.lake.schema import TableDefinition, accepts_files, find_added_columns
from tallystick.lake.storage import open_storage

_log = logging.getLogger("tallystick.dualwrite")

# Each attempt that another writer's commit beats is a commit of the table, so this is a busy table.
ATTEMPTS_MAX: Final = 50
# A commit that the library refuses for good looks like one that has not arrived yet.
UNKNOWN_MAX: Final = 3
_SPAWN: Final = "Start such processes before the table is used, or with multiprocessing's `spawn`"
_OWNER_BYTES: Final = 16
_NAME_BYTES: Final = 8


BLOCK_BYTES_MAX: Final = 256 * 1024 * 1024
"""Rows of one block in memory; a larger one is many blocks, or a job of Spark's."""


class BlockPhase(Enum):
    """Phase of a transaction."""

    OPEN = auto()  # rows may be appended
    RECORDED = auto()  # its data files are written
    SENT = auto()  # the commit was asked for, and may have been made
    ENDED = auto()


class LakeDecision(Value, kw_only=True):
    """Content of one commit.

    state  the table as it was when the owner was compared; the files were written for its definition
    """

    row: StoredState
    before: StoredState | None
    entry: LakeEntry
    state: TableState
    files: tuple[DataFile, ...] = ()


class TableAppender:
    """Appender that a block uses for its table. Its rows are invisible before the commit."""

    def __init__(self, txn: "LakeTransaction") -> None:
        self._txn = txn

    def append(self, rows: object, *, merge_schema: bool | None = None) -> None:
        """Append rows to the table with this transaction; all of a block are one commit.

        Args:
            rows: an Arrow table or what exports one, a pandas DataFrame, or a list of dicts. Columns that
                they lack are null.
            merge_schema: add columns that the table lacks, at once and in a commit of their own: they stay
                if the block fails. By default as the store says.
        Raises: SchemaDiffers with all problems, TypeError; nothing of these rows was taken. ValueError for
            more than a block may hold.
        """
        self._txn.append(rows, merge_schema=merge_schema)


class LakeTransaction:
    """A transaction over the table of a store. Used by one thread at a time."""

    def __init__(self, store: "LakeStore") -> None:
        self._store = store
        self._phase = BlockPhase.OPEN
        self._rows: list[pa.Table] = []
        self._size_bytes = 0
        self._decision: LakeDecision | None = None
        self._sent_count = 0
        self._has_orphaned_records = False
        self._appender = TableAppender(self)

    @property
    def handle(self) -> TableAppender:
        return self._appender

    # ---- rows

    def append(self, rows: object, *, merge_schema: bool | None = None) -> None:
        """Compare rows with the table and keep them; see `TableAppender.append`."""
        self._check_open()
        merges = self._store.merge_schema if merge_schema is None else merge_schema
        try:
            converted = self._convert(rows, merges=merges)
        except SchemaDiffers as exc:
            raise SchemaDiffers(f"table {self._store.url}: {exc}. Nothing of these rows was taken") from exc
        size_bytes = converted.nbytes + self._size_bytes
        if size_bytes > self._store.block_bytes_max:
            raise ValueError(
                f"table {self._store.url}: the rows of this block would be {size_bytes} bytes, and "
                f"{self._store.block_bytes_max} are allowed. Nothing of these rows was taken. Append them in "
                "several blocks, or raise block_bytes_max"
            )
        if converted.num_rows:
            self._rows.append(converted)
            self._size_bytes = size_bytes

    def _convert(self, rows: object, *, merges: bool) -> pa.Table:
        definition = self._store.get_definition()
        try:
            return self._convert_to(rows, definition, merges=merges)
        except SchemaDiffers:
            # Another writer may have changed the table since.
            newer = self._store.read_definition()
            if newer == definition:
                raise
            return self._convert_to(rows, newer, merges=merges)

    def _convert_to(self, rows: object, definition: TableDefinition, *, merges: bool) -> pa.Table:
        converted = to_table_types(read_rows(rows, definition), definition, merge_schema=merges)
        missing = find_added_columns(definition, converted.schema)
        if not missing.names:
            return converted
        self._store.add_columns(TableDefinition(identity=definition.identity, schema=missing))
        definition = self._store.read_definition()
        return to_table_types(read_rows(rows, definition), definition, merge_schema=False)

    # ---- parts that can be taken back

    def sent(self) -> None:
        """Count a record sent to Kafka."""
        self._sent_count += 1

    @contextmanager
    def savepoint(self) -> Iterator[None]:
        """Discard the rows of a block if it raises."""
        self._check_open()
        row_mark, sent_mark = len(self._rows), self._sent_count
        try:
            yield
        except BaseException:
            self._cut(row_mark)
            self._has_orphaned_records = self._has_orphaned_records or self._sent_count > sent_mark
            raise

    def _cut(self, row_mark: int) -> None:
        del self._rows[row_mark:]
        self._size_bytes = sum(each.nbytes for each in self._rows)

    # ---- the end

    def record(self, row: StoredState, before: StoredState | None = None) -> None:
        """Compare the owner, then write the rows as data files of that owner; they are durable afterwards.

        Raises: WriterFenced; DatabaseBehind; NotSupported for a second id, since a commit has one entry.
        """
        if self._phase is BlockPhase.RECORDED:
            raise NotSupported(
                "two transactional ids in one transaction",
                f"a commit with several entries in {self._store.url}: one cluster for each writer",
            )
        self._check_open()
        self._check_records()
        state = self._store.read_table(row.transactional_id)
        check_record(self._store.read_row(state, row.transactional_id), row, before)
        files = self._write_files(row, state.definition)
        self._decision = LakeDecision(
            row=row,
            before=before,
            entry=self._store.create_entry(row),
            state=state,
            files=files,
        )
        self._phase = BlockPhase.RECORDED

    def _write_files(self, row: StoredState, definition: TableDefinition) -> tuple[DataFile, ...]:
        """Write the rows for the newest definition, to which they may have been appended under an older one.

        Raises: SchemaDiffers if they no longer fit.
        """
        if not self._rows:
            return ()
        rows = [to_table_types(each, definition, merge_schema=False) for each in self._rows]
        files = self._store.write_files(row, definition, rows)
        self._rows = []
        return files

    def commit(self) -> None:
        """Commit files and row as one version of the table [DW-22].

        Raises: NotCommitted by WriterFenced, DatabaseBehind, TableBusy or BadStore; CommitUnknown.
        """
        if self._phase is not BlockPhase.RECORDED or self._decision is None:
            text = "this transaction has ended" if self._phase is BlockPhase.ENDED else "nothing was recorded"
            raise NotCommitted(
                ManagedByWriter(f"{text}: its rows are committed with a record, or not at all")
            )
        if self._is_without_effect(self._decision):
            self._phase = BlockPhase.ENDED
            return
        self._phase = BlockPhase.SENT
        try:
            self._store.decide(self._decision)
        except NotCommitted:
            self._phase = BlockPhase.RECORDED  # the files can go
            raise
        self._phase = BlockPhase.ENDED

    def _is_without_effect(self, decision: LakeDecision) -> bool:
        """Return whether there is nothing to decide: no rows, and a record that is there already."""
        current = decision.state.entry
        return not decision.files and current is not None and current.payload == decision.entry.payload

    def rollback(self) -> None:
        """Forget the rows, and remove the files if no version can name them."""
        phase, self._phase = self._phase, BlockPhase.ENDED
        self._rows = []
        if phase is BlockPhase.RECORDED and self._decision is not None:
            self._store.remove_files(self._decision.files)

    def _check_open(self) -> None:
        if self._phase is not BlockPhase.OPEN:
            raise ManagedByWriter("this transaction has ended")

    def _check_records(self) -> None:
        if self._has_orphaned_records:
            raise ManagedByWriter(ORPHANED_RECORDS_TEXT)


class LakeStore:
    """A store in one table, through the port of its format. Threads may share it."""

    ids_max: Final = 1
    """A commit of a table has one entry, so a writer of several clusters cannot use it."""

    database_system = "lake"

    def __init__(
        self,
        location: LakeLocation,
        *,
        merge_schema: bool = False,
        block_bytes_max: int = BLOCK_BYTES_MAX,
        accept_lost: Collection[str] = (),
    ) -> None:
        """Bind the store to a table; nothing is read yet.

        Args:
            merge_schema: appends add columns that the table lacks.
            block_bytes_max: the rows that one block may hold in memory.
            accept_lost: ids whose row the table's log no longer has, and that start over: what they decided
                last is given up. `recover()` then aborts what they left open.
        Raises: BadConfig.
        """
        if block_bytes_max < 1:
            raise BadConfig(f"block_bytes_max: {block_bytes_max} is not 1 or more")
        self.merge_schema = merge_schema
        self.block_bytes_max = block_bytes_max
        self._accept_lost = frozenset(accept_lost)
        self._storage = open_storage(location.url, dict(location.storage_options))
        self._location = location
        self._owning_process = OwningProcess()
        self._commits = RLock()  # writers of one process take turns, instead of beating each other
        self._definition: TableDefinition | None = None
        self._clock: Clock = SystemClock()
        self._idle = IdleEntries()
        self.url = str(location.url)

    # ---- the store protocol

    def create(self) -> None:
        """Check that the table is there and can be written; its types are its owner's to choose.

        Raises: BadStore.
        """
        self._check_usable(self.read_definition())

    def claim(self, transactional_id: str) -> StoredState:
        """Take over the entry of an id by a commit of its own [DW-1].

        Raises: BadStore, CorruptRow, TableBusy; CommitUnknown.
        """
        owner, name = token_hex(_OWNER_BYTES), token_hex(_NAME_BYTES)
        unknown_count = 0
        with self._commits:
            for _ in range(ATTEMPTS_MAX):
                state = self.read_table(transactional_id, accepts_loss=transactional_id in self._accept_lost)
                stored = self.read_row(state, transactional_id)
                if state.entry is not None and stored is not None and state.entry.commit == name:
                    return stored  # by this very claim, whose answer was lost
                row = (stored or StoredState(transactional_id=transactional_id, owner="")).owned_by(owner)
                outcome = self._open().commit(state.version, self.create_entry(row, name), ())
                if outcome is CommitOutcome.COMMITTED:
                    self._idle.note_commit(transactional_id, owner, self._clock.monotonic_ms())
                    return row
                unknown_count += outcome is CommitOutcome.UNKNOWN
                if unknown_count == UNKNOWN_MAX:
                    raise CommitUnknown(
                        f"table {self.url}: the claim of {transactional_id!r} was sent, and whether it was "
                        "committed is not known: the table's library failed, and the log says why"
                    )
        raise self._build_busy_error()

    def begin(self) -> LakeTransaction:
        """Begin a transaction; nothing of it is read or written before its first append.

        The entry of an idle id may be committed again here, which no transaction depends on.
        """
        if self.has_idle_entry():
            self._renew_idle_entry()
        return LakeTransaction(self)

    def _open(self) -> LakeTable:
        """Return the table in this process. Raises: ManagedByWriter in a fork of its first user [DW-11]."""
        self._owning_process.claim_process(f"table {self.url}", _SPAWN)
        return open_table(self._location)

    def has_idle_entry(self) -> bool:
        """Return whether `begin` will commit the entry of an idle id again."""
        return self._idle.is_due(self._clock.monotonic_ms())

    def _renew_idle_entry(self) -> None:
        """Commit an entry that was idle once more as it is, before the table's log loses it [DW-24]."""
        with self._commits:
            now_ms = self._clock.monotonic_ms()
            due = self._idle.find_due(now_ms)
            if due is None:
                return
            transactional_id, owner = due
            self._idle.note_commit(transactional_id, owner, now_ms)  # also if it fails: it is tried again
            try:
                state = self.read_table(transactional_id)
                row = self.read_row(state, transactional_id)
                if row is None or row.owner != owner:
                    self._idle.forget(transactional_id)
                    return
                outcome = self._open().commit(state.version, self.create_entry(row), ())
            except Exception as exc:  # of the library or the storage; the next hours may be better
                _log.warning("%s: the entry of %s was not renewed: %s", self.url, transactional_id, exc)
            else:
                _log.info("%s: the entry of %s is renewed: %s", self.url, transactional_id, outcome.name)

    def read_state(self, transactional_id: str) -> StoredState | None:
        """Return the row as the newest version of the table has it. Raises: BadStore, CorruptRow."""
        return self.read_row(self.read_table(transactional_id), transactional_id)

    def transactional_ids(self) -> Iterable[str]:
        """Return every id that has an entry, in order. Raises: BadStore."""
        table = self._open()
        try:
            keys = table.list_keys() if isinstance(table, ListsKeys) else table.read_files().owners
        except UnusableTable as exc:
            raise BadStore(str(exc)) from exc
        ids = map(parse_writer_key, keys)
        return sorted(each for each in ids if each is not None)

    def close(self) -> None:
        """Do nothing: a table keeps nothing open."""

    # ---- what a transaction needs of the table

    def read_table(self, transactional_id: str, *, accepts_loss: bool = False) -> TableState:
        """Read the newest version and the id's entry. Raises: BadStore, CorruptRow; errors of the storage."""
        try:
            state = self._open().read(format_writer_key(transactional_id), accepts_loss=accepts_loss)
        except UnusableTable as exc:
            raise BadStore(str(exc)) from exc
        except EntryLost as exc:
            raise CorruptRow(
                transactional_id,
                f"table {self.url} has decided something under this id, and its log no longer says what: it "
                "was cleaned up (delta.logRetentionDuration), or the table is a restored copy. Bring the log "
                "entry back; or compare the rows with the records of its last transaction, then recover once "
                f"with accept_lost={{{transactional_id!r}}}, which aborts what is open",
            ) from exc
        except BadEntry as exc:
            raise CorruptRow(transactional_id, str(exc)) from exc
        self._check_usable(state.definition)
        self._definition = state.definition
        return state

    def read_row(self, state: TableState, transactional_id: str) -> StoredState | None:
        """Return the row in a state of the table. Raises: CorruptRow."""
        if state.entry is None or state.entry.payload is None:
            return None
        row = from_bytes(transactional_id, state.entry.payload.encode())
        if row.owner != state.entry.owner:
            raise CorruptRow(
                transactional_id, f"its owner is {row.owner}, and its entry's {state.entry.owner}"
            )
        return row

    def create_entry(self, row: StoredState, name: str | None = None) -> LakeEntry:
        """Return the entry of a row, with a name that no other commit has."""
        return LakeEntry(
            key=format_writer_key(row.transactional_id),
            owner=row.owner,
            commit=name or token_hex(_NAME_BYTES),
            payload=to_bytes(row).decode(),
        )

    def read_definition(self) -> TableDefinition:
        """Read the table's newest definition. Raises: BadStore."""
        try:
            self._definition = definition = self._open().read_definition()
        except UnusableTable as exc:
            raise BadStore(str(exc)) from exc
        return definition

    def get_definition(self) -> TableDefinition:
        """Return the definition that was read last; `record` looks again. Raises: BadStore."""
        return self._definition or self.read_definition()

    def add_columns(self, wanted: TableDefinition) -> None:
        """Add columns to the table, in a commit of its own. Raises: TableBusy."""
        self._open().add_columns(wanted)

    def write_files(
        self, row: StoredState, definition: TableDefinition, rows: Sequence[pa.Table]
    ) -> tuple[DataFile, ...]:
        """Write rows as data files that only the owner of `row` can commit; durable when this returns.

        Their names have the owner: once the id has another one, they are orphans [LAK-3].
        """
        name = AttemptName(
            key=format_writer_key(row.transactional_id), owner=row.owner, attempt=token_hex(_NAME_BYTES)
        )
        writer = DataFileWriter(self._storage, definition, name)
        try:
            for each in rows:
                for batch in to_all_columns(each, definition).to_batches():
                    writer.write(batch)
            return writer.finish()
        except BaseException:
            writer.discard()
            raise

    def remove_files(self, files: Iterable[DataFile]) -> None:
        """Remove files that no version names and none will."""
        for file in files:
            self._open().remove(file.path)

    def decide(self, decision: LakeDecision) -> None:
        """Commit the files and the row of a transaction as the next version [DW-22].

        Raises: NotCommitted, CommitUnknown.
        """
        unsettled_version: int | None = None
        unknown_count = 0
        state = decision.state
        with self._commits:
            for attempt in range(ATTEMPTS_MAX):
                if attempt:
                    state = self._read_again(decision, unsettled_version)
                if state.entry is not None and state.entry.commit == decision.entry.commit:
                    return  # the answer was lost, and this is it
                self._check_decision(decision, state, unsettled_version)
                unsettled_version = find_unsettled(unsettled_version, state.version)
                outcome = self._open().commit(state.version, decision.entry, decision.files)
                if outcome is CommitOutcome.COMMITTED:
                    row, now_ms = decision.row, self._clock.monotonic_ms()
                    self._idle.note_commit(row.transactional_id, row.owner, now_ms)
                    return
                if outcome is CommitOutcome.UNKNOWN:
                    unsettled_version = state.version
                unknown_count = unknown_count + 1 if outcome is CommitOutcome.UNKNOWN else 0
                if unknown_count == UNKNOWN_MAX:
                    break
        if unsettled_version is not None:
            raise CommitUnknown(
                f"table {self.url}: its library failed, and the log says why; the commit was sent"
            )
        raise NotCommitted(self._build_busy_error())

    def _read_again(self, decision: LakeDecision, unsettled_version: int | None) -> TableState:
        """Read the table after an attempt. Raises: CommitUnknown if one may be under way, NotCommitted."""
        try:
            return self.read_table(decision.row.transactional_id)
        except Exception as exc:  # of the library or the storage
            if unsettled_version is not None:
                raise CommitUnknown(f"table {self.url} cannot be read: {exc}") from exc
            raise NotCommitted(exc) from exc

    def _check_decision(
        self, decision: LakeDecision, state: TableState, unsettled_version: int | None
    ) -> None:
        """Check that the commit may follow this state of the table. Raises: NotCommitted, CommitUnknown."""
        try:
            check_record(self.read_row(state, decision.row.transactional_id), decision.row, decision.before)
            if decision.files and not accepts_files(decision.state.definition, state.definition):
                raise TableBusy(
                    f"table {self.url}: its definition was changed while the block ran. Neither side is "
                    "committed; run it again"
                )
            missing = self._open().find_missing(decision.files)
            if missing:
                raise BadStore(
                    f"table {self.url}: {len(missing)} of {len(decision.files)} new data files are gone, as "
                    f"{missing[0]}: a VACUUM with a retention of nothing? Neither side is committed"
                )
        except (DualWriteError, TableBusy, OSError) as exc:
            if unsettled_version is not None:
                # It may have been made before what is found now.
                raise CommitUnknown(f"table {self.url}: {exc}") from exc
            raise NotCommitted(exc) from exc

    def _check_usable(self, definition: TableDefinition) -> None:
        if definition.problems:
            raise BadStore(f"table {self.url}: {'; '.join(definition.problems)}. Nothing was begun")

    def _build_busy_error(self) -> TableBusy:
        return TableBusy(
            f"table {self.url}: other writers have committed first {ATTEMPTS_MAX} times in a row. Neither "
            "side is committed. Run it again when they are quieter, or let them commit larger pieces"
        )


class DeltaStore(LakeStore):
    """A store in a Delta table: `txn.handle.append(rows)`, and records, in one commit of the table."""

    database_system = "delta"

    def __init__(
        self,
        table: str | Path,
        *,
        storage_options: Mapping[str, str] | None = None,
        merge_schema: bool = False,
        block_bytes_max: int = BLOCK_BYTES_MAX,
        accept_lost: Collection[str] = (),
    ) -> None:
        """Bind the store to a Delta table; nothing is read yet.

        Args:
            table: its path, or its URL like `delta:/lake/payments` or `delta:s3://bucket/payments`.
            storage_options: for the storage, by delta-rs' names; for a folder, none.
            merge_schema: appends add columns that the table lacks.
            block_bytes_max: the rows that one block may hold in memory.
            accept_lost: as of a LakeStore.
        Raises: BadConfig for a place that cannot be written; MissingLibrary.
        """
        _lazy.load("deltalake")  # what is missing is told here, not at the first write
        url = parse_table_url(str(table) if is_table_url(str(table)) else f"delta:{table}")
        if url.format != "delta":
            raise BadConfig(f"table {url}: is no Delta table")
        if "://" not in url.place:
            url = replace(url, place=str(Path(url.place).absolute()))
        super().__init__(
            LakeLocation(url=url, storage_options=StorageOptions.build(storage_options)),
            merge_schema=merge_schema,
            block_bytes_max=block_bytes_max,
            accept_lost=accept_lost,
        )
