"""Decisions in the log of a lake table: each is one commit, with the data files of the batch.

The entry of a prefix in the table (`lake.entries`) is what a row is in a database: the owner, and the last
decision. A claim replaces the owner, a decision replaces the payload and adds the files; both become the next
version of the table that was read, or nothing [LAK-1]. There is no lock. Instead the driver asks the cluster
between the reading and the commit, so that of two drivers the one that claimed the cluster last has the entry
[SPK-43]: a driver that learns it is the last one, and is replaced before it commits, has read a version that
the newer one's claim follows.

That a decision is completed is no commit of its own. The cluster keeps that note, as it does for decisions
in a topic. docs/design/lake-tables.md.
"""

import logging
from collections.abc import Callable, Sequence
from secrets import token_hex
from typing import Final

import msgspec

from tallystick.kernel.check import require
from tallystick.kernel.errors import InDoubt
from tallystick.kernel.ids import ProducerIdAndEpoch
from tallystick.kernel.value import replace
from tallystick.lake.entries import (
    ACTIONS,
    Action,
    CommitOutcome,
    LakeEntry,
    assess_standing,
    find_unsettled,
)
from tallystick.lake.errors import TableBusy, UnusableTable
from tallystick.lake.ports import DataFile, LakeTable, TableState
from tallystick.lake.schema import TableDefinition, is_same_definition
from tallystick.spark.options.sinks import StagedMoves
from tallystick.spark.protocol.committable import Decision, decode_decision, encode_decision
from tallystick.spark.protocol.decision_fold import DecisionState
from tallystick.spark.protocol.errors import InvalidRows, PrefixTaken, VoteLost

_log = logging.getLogger("tallystick.spark")

# Each attempt that another writer's commit beats is a commit of the table, so this is a busy table.
ATTEMPTS_MAX: Final = 50
# A commit that the library refuses for good looks like one that has not arrived yet.
UNKNOWN_MAX: Final = 3
_NAME_BYTES: Final = 8


class LakeRow:
    """The entry of one prefix in a table; a `store_log.DecisionStore`. Its calls block on the storage."""

    keeps_completion = False

    def __init__(self, table: LakeTable, prefix: str, *, accepts_loss: bool = False) -> None:
        """Bind the row to a table.

        Args:
            accepts_loss: a claim takes a prefix over whose last decision the table's log has lost.
        """
        self.prefix = prefix
        self._accepts_loss = accepts_loss
        self._table = table
        self._completed_nonce = ""
        self._definition: TableDefinition | None = None
        self._keys: Sequence[str] = ()

    def expect_batch(self, definition: TableDefinition, keys: Sequence[str] = ()) -> None:
        """Set the definition for which the batch's data files are written, and the keys of an upsert."""
        self._definition, self._keys = definition, keys

    def claim(self, owner: ProducerIdAndEpoch, is_last: Callable[[], bool]) -> bool:
        entry_to_commit = LakeEntry(key=self.prefix, owner=str(owner), commit=token_hex(_NAME_BYTES))
        unknown_count = 0
        for _ in range(ATTEMPTS_MAX):
            state = self._read()
            payload = None if state.entry is None else state.entry.payload
            if state.entry is not None and state.entry.commit == entry_to_commit.commit:
                return True
            # After the reading: a newer driver that claims from here on commits behind this version.
            if not is_last():
                return False
            outcome = self._table.commit(state.version, replace(entry_to_commit, payload=payload), ())
            if outcome is CommitOutcome.COMMITTED:
                return True
            unknown_count += outcome is CommitOutcome.UNKNOWN
            if unknown_count == UNKNOWN_MAX:
                raise UnusableTable(
                    f"table {self._table.url}: takes no commit: its library failed, and the log says why. "
                    "Nothing was begun"
                )
        raise self._build_busy_error("Nothing was begun")

    def create_table(self) -> None:
        """Check that the table is there and can be written. Raises: UnusableTable, EntryLost."""
        self._read()

    def find_location(self) -> str | None:
        return f"{self._table.url.partition(':')[0]} table {self._table.read_definition().identity}"

    def read(self) -> DecisionState:
        """Read the last decision. Raises: BadCommittable, EntryLost, BadEntry; errors of the storage."""
        entry = self._table.read(self.prefix).entry
        if entry is None or entry.payload is None:
            return DecisionState()
        decision = decode_decision(entry.payload.encode())
        return DecisionState(decision=decision, is_complete=decision.nonce == self._completed_nonce)

    def decide(
        self,
        decision: Decision,
        owner: ProducerIdAndEpoch,
        moves: StagedMoves,
        is_in_time: Callable[[], bool] = lambda: True,
    ) -> None:
        """Commit the decision and the voted attempts' data files as one version. This is the commit point.

        Args:
            moves: the voted attempts, each as `encode_files` made it.
        Raises: PrefixTaken, VoteLost, InvalidRows, UnusableTable, TableBusy: nothing is decided. InDoubt.
        """
        self._table.check_fence()
        files = [file for attempt in moves.attempts for file in decode_files(attempt)]
        self._check_files(files, sum(moves.rows))
        self._commit(owner, encode_decision(decision).decode(), files, is_in_time)
        if self._keys and not self._table.keeps_upserted_files:
            for file in files:  # their rows are in the table's own files; what stays is an orphan
                self._table.remove(file.path)

    def forget(self, owner: ProducerIdAndEpoch) -> None:
        self._commit(owner, None, (), lambda: True)

    def mark_done(self, nonce: str) -> None:
        self._completed_nonce = nonce

    def _read(self) -> TableState:
        state = self._table.read(self.prefix, accepts_loss=self._accepts_loss)
        if state.definition.problems:
            raise UnusableTable(
                f"table {self._table.url}: {'; '.join(state.definition.problems)}. Nothing was begun"
            )
        return state

    def _check_files(self, files: Sequence[DataFile], row_count: int) -> None:
        """Check that what the tasks voted for is what will be committed [LAK-4].

        Raises: VoteLost. InvalidRows if rows of an upsert have no keys, or the same.
        """
        file_rows = sum(file.row_count for file in files)
        if file_rows != row_count:
            raise VoteLost(
                f"table {self._table.url}: {row_count} rows were voted for, and the data files have "
                f"{file_rows}. Nothing was decided; restart the query to write the batch again"
            )
        missing = self._table.find_missing(files)
        if missing:
            raise VoteLost(
                f"table {self._table.url}: {len(missing)} of {len(files)} data files are not where the "
                f"driver looks for them, as {missing[0]}: driver and tasks do not share that storage, or the "
                "files were removed. Nothing was decided"
            )
        problem = self._table.find_key_problem(files, self._keys) if self._keys and files else None
        if problem is not None:
            raise InvalidRows(f"table {self._table.url}: {problem}. Nothing was decided")

    def _commit(
        self,
        owner: ProducerIdAndEpoch,
        payload: str | None,
        files: Sequence[DataFile],
        is_in_time: Callable[[], bool],
    ) -> None:
        entry_to_commit = LakeEntry(
            key=self.prefix, owner=str(owner), commit=token_hex(_NAME_BYTES), payload=payload
        )
        unsettled_version: int | None = None
        unknown_count = 0
        for _ in range(ATTEMPTS_MAX):
            state = self._read_for_commit(unsettled_version)
            match ACTIONS[assess_standing(state.entry, entry_to_commit)]:
                case Action.DONE:
                    return
                case Action.STOP if unsettled_version is not None:
                    raise self._build_in_doubt("another driver has claimed the prefix since")
                case Action.STOP if state.entry is None:
                    raise UnusableTable(
                        f"table {self._table.url}: does not know {self.prefix!r} any more, which was claimed "
                        "in it before the batch was written: the table was dropped and made again, or its "
                        "log was restored. Nothing was decided; restart the query"
                    )
                case Action.STOP:
                    owner_now = require(state.entry, "it is somebody's").owner
                    raise PrefixTaken(self.prefix, f"its entry in {self._table.url} is {owner_now}'s")
                case Action.COMMIT:
                    unsettled_version = find_unsettled(unsettled_version, state.version)
            self._check_unchanged(state.definition, files, unsettled_version)
            # Nothing of an unknown outcome is given up for being late: it may be decided.
            if unsettled_version is None and not is_in_time():
                raise VoteLost(
                    f"{self.prefix}: committing to {self._table.url} took so long that the cluster may abort "
                    "the batch's transactions before they are decided. Nothing was decided"
                )
            outcome = self._table.commit(state.version, entry_to_commit, files, self._keys)
            if outcome is CommitOutcome.COMMITTED:
                return
            if outcome is CommitOutcome.UNKNOWN:
                unsettled_version = state.version
            unknown_count = unknown_count + 1 if outcome is CommitOutcome.UNKNOWN else 0
            if unknown_count == UNKNOWN_MAX:
                break
        if unsettled_version is not None:
            raise self._build_in_doubt("its library failed, and the log says why")
        raise self._build_busy_error("Nothing was decided")

    def _read_for_commit(self, unsettled_version: int | None) -> TableState:
        """Read the newest version. Raises: InDoubt if a commit may be under way and cannot be looked up."""
        try:
            return self._table.read(self.prefix)
        except Exception as exc:  # of the library or the storage
            if unsettled_version is not None:
                raise self._build_in_doubt(str(exc)) from exc
            raise

    def _check_unchanged(
        self, definition: TableDefinition, files: Sequence[DataFile], unsettled_version: int | None
    ) -> None:
        if not files or self._definition is None or is_same_definition(self._definition, definition):
            return
        if unsettled_version is not None:
            raise self._build_in_doubt("the table's definition was changed since")
        raise UnusableTable(
            f"table {self._table.url}: its definition was changed while the batch was written. Nothing "
            "was decided; restart the query to write the batch for the new one"
        )

    def _build_in_doubt(self, why: str) -> InDoubt:
        return InDoubt(
            f"the decision of {self.prefix!r} was sent to {self._table.url}, and whether it was committed is "
            f"not known: {why}. Restart the query: it finds out, and completes or repeats the batch"
        )

    def _build_busy_error(self, effect: str) -> TableBusy:
        return TableBusy(
            f"table {self._table.url}: other writers have committed first {ATTEMPTS_MAX} times in a row. "
            f"{effect}. Restart the query when they are quieter, or let them commit larger pieces"
        )


def encode_files(files: Sequence[DataFile]) -> str:
    """Return an attempt's data files as text, for its vote."""
    return msgspec.json.encode(files).decode()


def decode_files(text: str) -> list[DataFile]:
    """Parse an attempt's data files."""
    return msgspec.json.decode(text.encode(), type=list[DataFile])
