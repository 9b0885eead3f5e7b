"""One transaction over a lake table: the rows of a block until they are data files of one commit.

    append ...   rows are compared with the table, and kept in memory
    record       the owner is compared; then the rows become data files, durable and named by their owner
    commit       files and state row become the next version of the table, or nothing

A rollback forgets the rows and removes the files, unless the commit was sent and not answered: a version of
the table may name them then, and what no version names is an orphan, which `tallystick lake vacuum-orphans`
removes once the id has another owner [DW-23].

There are no savepoints in a table: `savepoint` is a place in the list of rows to which it can be cut back.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from enum import Enum, auto
from typing import TYPE_CHECKING, Final

import pyarrow as pa

from tallystick.client.errors import NotSupported
from tallystick.dualwrite.errors import NotCommitted, NotYours
from tallystick.dualwrite.model import StoredState
from tallystick.dualwrite.stores.base import check_record
from tallystick.dualwrite.stores.lake.rows import read_rows, to_table_types
from tallystick.dualwrite.stores.refusals import ORPHANED_RECORDS_TEXT
from tallystick.kernel.value import Value
from tallystick.lake.entries import LakeEntry
from tallystick.lake.errors import SchemaDiffers
from tallystick.lake.ports import DataFile, TableState
from tallystick.lake.schema import TableDefinition, find_added_columns

if TYPE_CHECKING:
    from tallystick.dualwrite.stores.lake.store import LakeStore

BLOCK_BYTES_MAX: Final = 256 * 1024 * 1024
"""Rows of one block in memory; a larger one is many blocks, or a job of Spark's."""


class BlockPhase(Enum):
    """What has become of a transaction."""

    OPEN = auto()  # rows may be appended
    RECORDED = auto()  # its data files are written
    SENT = auto()  # the commit was asked for, and may have been made
    ENDED = auto()


class LakeDecision(Value, kw_only=True):
    """What one transaction commits.

    state  the table as it was when the owner was compared; the files were written for its definition
    """

    row: StoredState
    before: StoredState | None
    entry: LakeEntry
    state: TableState
    files: tuple[DataFile, ...] = ()


class TableAppender:
    """What a block appends to its table with. Nothing of it can be read before the commit."""

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
        """Take the rows of a block back if it raises."""
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

        Raises: Fenced; DatabaseBehind; NotSupported for a second id, since a commit has one entry.
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

        Raises: SchemaDiffers if they do not fit any more.
        """
        if not self._rows:
            return ()
        rows = [to_table_types(each, definition, merge_schema=False) for each in self._rows]
        files = self._store.write_files(row, definition, rows)
        self._rows = []
        return files

    def commit(self) -> None:
        """Commit files and row as one version of the table [DW-22].

        Raises: NotCommitted by Fenced, DatabaseBehind, TableBusy or BadStore; CommitUnknown.
        """
        if self._phase is not BlockPhase.RECORDED or self._decision is None:
            text = "this transaction has ended" if self._phase is BlockPhase.ENDED else "nothing was recorded"
            raise NotCommitted(NotYours(f"{text}: its rows are committed with a record, or not at all"))
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
            raise NotYours("this transaction has ended")

    def _check_records(self) -> None:
        if self._has_orphaned_records:
            raise NotYours(ORPHANED_RECORDS_TEXT)
