"""The decision log of a prefix whose decisions are in a store of its tables: a database's row, a lake table.

`DatabaseDecisionLog` and `DatabaseParticipants` are the asynchronous interface to a `DecisionStore`, which
blocks. A store commits decision and rows together, and fences: see `row` and `lake_row`.
"""

import asyncio
import logging
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Final, Protocol

from tallystick.admin.model import TransactionDescription
from tallystick.client.errors import ClientError, NotAuthorized
from tallystick.client.transactions.modes import Mode, TxnDecision
from tallystick.kernel.check import check
from tallystick.kernel.clock import Clock, SystemClock
from tallystick.kernel.ids import ProducerIdAndEpoch
from tallystick.kernel.value import replace
from tallystick.spark.options.sinks import StagedMoves
from tallystick.spark.protocol.committable import Decision, DecisionNote, Participant
from tallystick.spark.protocol.decision_fold import DecisionState
from tallystick.spark.protocol.errors import NoDecisionTopic, PrefixTaken
from tallystick.spark.protocol.ports import ParticipantsPort

_log = logging.getLogger("tallystick.spark")

_NOTE_REFUSED: Final = (NoDecisionTopic, NotAuthorized)


class DecisionStore(Protocol):
    """The place of one prefix's decisions, next to its tables. Its calls block."""

    prefix: str
    keeps_completion: bool
    """True if `mark_done` is as durable as a decision; if not, the cluster's notes keep it as well."""

    def claim(self, owner: ProducerIdAndEpoch, is_last: Callable[[], bool]) -> bool:
        """Give the prefix to `owner`, if `is_last()` holds and no other claim comes between [SPK-43].

        Order: when this returns True, an earlier owner's decision is in the store or will never be.
        """

    def create_table(self) -> None:
        """Make the place of the decisions, or check that it is there."""

    def find_location(self) -> str | None:
        """Return a unique identity of the place; None where nothing was created yet."""

    def read(self) -> DecisionState:
        """Read the last decision."""

    def decide(
        self,
        decision: Decision,
        owner: ProducerIdAndEpoch,
        moves: StagedMoves,
        is_in_time: Callable[[], bool] = lambda: True,
    ) -> None:
        """Commit the decision and the rows together, if `owner` still owns the prefix: the commit point."""

    def forget(self, owner: ProducerIdAndEpoch) -> None:
        """Give the prefix up."""

    def mark_done(self, nonce: str) -> None:
        """Record that the decision with this nonce is completed."""


class DecisionNotes(Protocol):
    """The cluster's notes of decisions in a database; implemented by `decisions.DecisionTopic`."""

    async def open(self) -> None: ...

    async def read(self) -> DecisionState: ...

    async def write_note(self, note: DecisionNote | None) -> None: ...

    async def mark_done(self, nonce: str) -> None: ...


class DatabaseDecisionLog:
    """`ports.DecisionLogPort` in a store of tables.

    A decision moves the staged rows that `set_staged_moves` named before.
    """

    def __init__(
        self,
        row: DecisionStore,
        limit_ms: int,
        clock: Clock | None = None,
        notes: DecisionNotes | None = None,
    ) -> None:
        """Bind the log to a row.

        Args:
            limit_ms: the time limit of a decision where the cluster aborts prepared transactions.
            notes: without them, decisions that the database has lost after acknowledging go unnoticed. A
                store that does not keep completion needs them: without the rights, nothing begins.
        """
        self._notes = notes
        self._row, self._limit_ms, self._clock = row, limit_ms, clock or SystemClock()
        self._staged_moves: tuple[str, StagedMoves] | None = None

    def set_staged_moves(self, nonce: str, moves: StagedMoves) -> None:
        """Set the rows that the decision with this nonce, the lease's, will move."""
        self._staged_moves = (nonce, moves)

    async def open(self) -> None:
        await asyncio.to_thread(self._row.create_table)
        if self._notes is not None:
            try:
                await self._notes.open()
            except _NOTE_REFUSED as exc:
                self._disable_notes(exc)

    def _disable_notes(self, why: Exception) -> None:
        """Go on without notes, if the store tells what is completed. Raises: `why`, if only notes do.

        A decision that is completed would look broken once Kafka has forgotten its transactional ids.
        """
        if not self._row.keeps_completion:
            raise why
        _log.warning(
            "%s: the cluster takes no note of decisions, so that nothing will tell if the database loses "
            "one, as an asynchronous replica that is promoted may: %s",
            self._row.prefix,
            why,
        )
        self._notes = None

    async def find_location(self) -> str | None:
        return await asyncio.to_thread(self._row.find_location)

    async def read(self) -> DecisionState:
        notes = DecisionState()
        if self._notes is not None:
            try:
                # Read before the row: a decision that is made and noted in between must not look lost.
                notes = await self._notes.read()
            except _NOTE_REFUSED as exc:
                self._disable_notes(exc)
        state = await asyncio.to_thread(self._row.read)
        is_noted = state.decision is not None and state.decision.nonce == notes.completed_nonce
        return replace(state, note=notes.note, is_complete=state.is_complete or is_noted)

    async def note(self, decision: Decision | None) -> None:
        if self._notes is None:
            return
        note = None
        if decision is not None:
            note = DecisionNote(number=decision.number, description=str(decision), offsets=decision.offsets)
        try:
            await self._notes.write_note(note)
        except _NOTE_REFUSED as exc:
            self._disable_notes(exc)

    def recall(self, nonce: str) -> Decision | None:
        """Return None: the row is read before each decision, and so is the note that it was not lost."""
        return None

    async def append(self, decision: Decision, owner: ProducerIdAndEpoch, transaction_version: int) -> None:
        nonce, moves = self._staged_moves or ("", StagedMoves(attempts=(), rows=()))
        check(nonce == decision.nonce, "a decision is taken with the rows that were voted for")
        began_ms = self._clock.now_ms()

        def is_in_time() -> bool:
            keeps = (decision.mode and Mode(decision.mode).never_expires) or not decision.participants
            return keeps or self._clock.now_ms() - began_ms < self._limit_ms

        await asyncio.to_thread(self._row.decide, decision, owner, moves, is_in_time)

    async def mark_done(self, nonce: str) -> None:
        await asyncio.to_thread(self._row.mark_done, nonce)
        if self._notes is not None and not self._row.keeps_completion:
            await self._notes.mark_done(nonce)

    async def forget(self, owner: ProducerIdAndEpoch, transaction_version: int) -> None:
        await asyncio.to_thread(self._row.forget, owner)
        await self.note(None)


class DatabaseParticipants:
    """`ports.ParticipantsPort` whose claim also takes the row [SPK-43].

    The cluster's does everything else.
    """

    def __init__(self, cluster: ParticipantsPort, row: DecisionStore) -> None:
        self._cluster, self._row = cluster, row

    async def claim(self) -> tuple[ProducerIdAndEpoch, int]:
        owner, transaction_version = await self._cluster.claim()
        if not await self._claim_row(owner):
            raise PrefixTaken(self._row.prefix, "another query began at the same time")
        return owner, transaction_version

    async def reclaim(self, owner: ProducerIdAndEpoch) -> ProducerIdAndEpoch | None:
        new_owner = await self._cluster.reclaim(owner)
        return new_owner if new_owner is not None and await self._claim_row(new_owner) else None

    async def _claim_row(self, owner: ProducerIdAndEpoch) -> bool:
        loop = asyncio.get_running_loop()

        def is_last() -> bool:
            return asyncio.run_coroutine_threadsafe(self._cluster.owns_prefix(owner), loop).result()

        # One thread uses the connection for all of its statements, even if the caller is cancelled.
        return await asyncio.to_thread(self._row.claim, owner, is_last)

    async def owns_prefix(self, owner: ProducerIdAndEpoch) -> bool:
        return await self._cluster.owns_prefix(owner)

    async def describe(self, transactional_ids: Iterable[str]) -> Mapping[str, TransactionDescription | None]:
        return await self._cluster.describe(transactional_ids)

    async def end(
        self, participants: Collection[Participant], transaction_version: int, txn_decision: TxnDecision
    ) -> Mapping[str, ClientError]:
        return await self._cluster.end(participants, transaction_version, txn_decision)

    async def recover(
        self, participants: Collection[Participant], transaction_version: int, txn_decision: TxnDecision
    ) -> Mapping[str, ClientError]:
        return await self._cluster.recover(participants, transaction_version, txn_decision)

    async def list_open_ids(self) -> Collection[str]:
        return await self._cluster.list_open_ids()
