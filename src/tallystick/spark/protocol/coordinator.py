"""The driver's side of two-phase commit: begin, commit and abort. The rules are in `decide`.

    lease = await coordinator.begin()           before any task
    await coordinator.commit(votes)             when all tasks have voted
    await coordinator.abort(votes)              when some have not, or commit failed

The driver may crash after any await; tests/properties/test_spark_protocol.py stops at each. An object belongs
to one prefix, one process and one event loop. Its whole state between calls is in the lease, the votes and
the log, because Spark calls begin and commit in different processes.
"""

import asyncio
import logging
from collections.abc import Callable, Collection, Coroutine, Iterable, Mapping
from secrets import token_hex
from typing import Final, Protocol, TypeVar

from tallystick.client.errors import ClientError, Fenced
from tallystick.client.transactions.modes import TxnDecision
from tallystick.kernel.clock import Clock, SystemClock
from tallystick.kernel.errors import TallystickError
from tallystick.kernel.ids import ProducerIdAndEpoch
from tallystick.kernel.value import Value
from tallystick.spark.protocol.committable import BatchLease, Decision, DecisionNote, Participant, Vote
from tallystick.spark.protocol.decide import (
    ParticipantOutcome,
    QueryStart,
    VoteSummary,
    build_decision,
    filter_worker_ids,
    find_expired_votes,
    find_incomplete_decision,
    find_lost_decisions,
    is_open,
    resolve_outcome,
    resume_decision,
    summarize_votes,
)
from tallystick.spark.protocol.errors import PrefixTaken, SinkError
from tallystick.spark.protocol.ports import DecisionLogPort, ParticipantsPort
from tallystick.spark.protocol.repetition import DEFAULT_RULES, RepetitionRules, assess_repetition

_log = logging.getLogger("tallystick.spark")

T = TypeVar("T")
A = TypeVar("A")
B = TypeVar("B")

NONCE_BYTES: Final = 8


class PrefixStatus(Value, kw_only=True):
    """The transactions and the last decision of a prefix.

    outcomes       of the last decision's transactions, unless all are known to be committed
    undecided_ids  open transactions that are in no decision
    note           the cluster's note of the last decision, where decisions are in a database
    """

    decision: Decision | None
    outcomes: Mapping[str, ParticipantOutcome]
    undecided_ids: tuple[str, ...]
    note: DecisionNote | None = None

    @property
    def lost_ids(self) -> tuple[str, ...]:
        """Transactions that were decided and can no longer be committed."""
        return tuple(
            name
            for name, outcome in self.outcomes.items()
            if outcome in (ParticipantOutcome.ABORTED, ParticipantOutcome.UNKNOWN)
        )


class BothRunner(Protocol):
    """Runs two coroutines at the same time."""

    async def __call__(
        self, first: Coroutine[object, object, A], second: Coroutine[object, object, B]
    ) -> tuple[A, B]:
        """Return both results. If one fails, end the other and raise the error."""


async def run_both(first: Coroutine[object, object, A], second: Coroutine[object, object, B]) -> tuple[A, B]:
    """Run two coroutines at the same time, on the event loop.

    If one fails, the other is cancelled, and has ended when the error is raised: the caller never goes on
    while a request of its own is under way.
    """
    tasks = asyncio.create_task(first), asyncio.create_task(second)
    try:
        answers = await asyncio.gather(*tasks)
        return answers[0], answers[1]
    finally:
        for each in tasks:
            each.cancel()
        await asyncio.wait(tasks)


class SinkCoordinator:
    """The two-phase commit coordinator of one prefix."""

    def __init__(
        self,
        prefix: str,
        participants: ParticipantsPort,
        decisions: DecisionLogPort,
        *,
        clock: Clock | None = None,
        nonces: Callable[[], str] | None = None,
        run_both: BothRunner = run_both,
    ) -> None:
        """Bind the coordinator to its ports.

        Args:
            nonces: draws the nonce of a lease.
            run_both: runs two series of effects at the same time; tests choose the order of the effects.
        """
        self.prefix = prefix
        self._run_both = run_both
        self._participants, self._decisions = participants, decisions
        self._clock = clock or SystemClock()
        self._new_nonce = nonces or (lambda: token_hex(NONCE_BYTES))

    async def begin(
        self, write_id: str | None = None, resuming: QueryStart | None = None, *, adopting: bool = False
    ) -> BatchLease:
        """Claim the prefix, complete the last decision, abort everything else, and return a batch's lease.

        Args:
            write_id: the name of a batch write, if it has one.
            resuming: the start of a query that may follow another one, if it begins where that one ended.
            adopting: continue even if decisions were lost.
        Raises: DecisionBroken, DecisionsLost, PrefixTaken, UnknownCheckpoint; the client's errors.
        """
        began_ms = self._clock.now_ms()
        await self._decisions.open()
        owner, transaction_version = await self._participants.claim()
        # Both after the claim, in any order: it ended what an earlier driver was about to decide.
        state, open_attempts = await self._run_both(self._decisions.read(), self._find_undecided())
        if (refusal := find_lost_decisions(self.prefix, state)) is not None:
            if not adopting:
                raise refusal
            await self._decisions.note(state.decision)
        if state.decision is not None and not state.is_complete:
            await self._roll_forward(state.decision)
            open_attempts = await self._find_undecided()  # without those of the decision, which were open
        await self._abort_undecided(open_attempts, owner, transaction_version)
        decision = state.decision
        summary = _raise_if_error(resume_decision(decision, resuming))
        return BatchLease(
            nonce=self._new_nonce(),
            coordinator=owner,
            transaction_version=transaction_version,
            last_decision=summary,
            repeats=decision is not None and write_id in {each.name for each in decision.writes},
            began_ms=began_ms,
        )

    async def commit(
        self,
        votes: Iterable[Vote | None],
        offsets: str | None = None,
        rules: RepetitionRules = DEFAULT_RULES,
    ) -> Decision | None:
        """Decide a batch and complete it; return the decision, or None for a batch decided before.

        Args:
            offsets: the sources' offsets at the end of the batch, to be kept with the decision.
            rules: for a batch decided before.
        Raises: SinkErrors, PrefixTaken, InDoubt, or the client's errors. The caller may call `abort` after
            any of them.
        """
        vote_summary = _raise_if_error(summarize_votes(votes))
        if vote_summary.is_skipped:
            last_decision = (await self._decisions.read()).decision
            difference = _raise_if_error(assess_repetition(last_decision, vote_summary, offsets, rules))
            if difference:
                _log.warning("%s: %s", self.prefix, difference)
            return None
        last_decision, descriptions = await self._run_both(
            self._read_last_decision(vote_summary),
            self._participants.describe([each.transactional_id for each in vote_summary.participants]),
        )
        decision = _raise_if_error(
            build_decision(self.prefix, last_decision, vote_summary, self._clock.now_ms(), offsets)
        )
        refusal = find_expired_votes(
            vote_summary.participants, descriptions, self._clock.now_ms(), vote_summary.began_ms
        )
        if refusal is not None:
            raise refusal
        # KIP-939 "2PC Refresher": if the coordinator's commit, "e.g. by writing a record to its log",
        # succeeds, "then the transaction becomes committed".
        await self._decisions.append(decision, vote_summary.coordinator, vote_summary.transaction_version)
        # Decided. From here on the transactions are only ever committed [SPK-21].
        _, open_ids = await self._run_both(
            self._complete(decision, decision.participants), self._list_stray_ids(decision)
        )
        await self._abort_stray_attempts(vote_summary, open_ids)
        return decision

    async def _read_last_decision(self, vote_summary: VoteSummary) -> Decision | None:
        """Return the decision that this one follows: the lease's, which this process may have made itself.

        There is no later one, or the lease has ended, and then this decision will be refused [SPK-25].
        """
        own_decision = self._decisions.recall(vote_summary.last_nonce) if vote_summary.last_nonce else None
        return own_decision or (await self._decisions.read()).decision

    async def abort(self, votes: Iterable[Vote | None]) -> None:
        """Abort a batch, unless it was decided. Without any vote, leave it to the next begin.

        Spark also calls this after a commit that raised, and does not say how far the commit came. A decision
        may still be in flight, so the log alone cannot tell. Therefore P/coordinator is initialised first,
        with the votes' own producer id and epoch: that settles a decision in flight, and fails if a newer
        driver has the prefix, which is then left alone.

        Source: ADR 0036 for Spark's call; KIP-360 for InitProducerId with a producer id and epoch.
        """
        vote_summary = summarize_votes(votes)
        if not isinstance(vote_summary, VoteSummary):
            return
        owner = await self._participants.reclaim(vote_summary.coordinator)
        if owner is None:
            _log.info("%s: a newer driver has the prefix; nothing is aborted here", self.prefix)
            return
        last_decision = (await self._decisions.read()).decision
        if last_decision is not None and last_decision.nonce == vote_summary.nonce:
            await self._complete(last_decision, last_decision.participants)
            return
        open_attempts = await self._find_undecided()  # including those of tasks that have not voted
        if open_attempts and await self._participants.owns_prefix(owner):
            await self._abort_all(open_attempts, vote_summary.transaction_version)

    async def inspect(self) -> PrefixStatus:
        """Return the state of the prefix. Changes nothing, and does not see a decision that is in flight."""
        state = await self._decisions.read()
        outcomes: Mapping[str, ParticipantOutcome] = {}
        if state.decision is not None and not state.is_complete:
            outcomes = await self._resolve_outcomes(state.decision)
        open_ids = filter_worker_ids(self.prefix, await self._participants.list_open_ids())
        return PrefixStatus(
            decision=state.decision,
            outcomes=outcomes,
            undecided_ids=tuple(name for name in open_ids if name not in outcomes),
            note=state.note,
        )

    async def retire(self) -> PrefixStatus:
        """Commit decided transactions where possible, abort the others, and give the prefix up.

        Returns: the state before any change; its `outcomes` tell which transactions are lost for good.
        """
        owner, transaction_version = await self._participants.claim()
        status = await self.inspect()
        if status.decision is not None:
            decision = status.decision
            participants = [
                p
                for p in decision.participants
                if status.outcomes.get(p.transactional_id) is ParticipantOutcome.OPEN
            ]
            failures = await self._end_all(participants, decision.transaction_version, TxnDecision.COMMIT)
            for each in await self._filter_open(participants) if failures else ():
                raise _build_still_open_error(each, failures)
        await self._abort_undecided(await self._find_undecided(), owner, transaction_version)
        if status.decision is not None or status.note is not None:
            await self._decisions.forget(owner, transaction_version)
        return status

    async def _roll_forward(self, decision: Decision) -> None:
        """Complete the last decision, no matter which driver made it, and record that."""
        participants = await self._find_prepared(decision) if decision.participants else []
        if participants:
            _log.warning("%s: completing %d transactions of %s", self.prefix, len(participants), decision)
        await self._complete(decision, participants)

    async def _complete(self, decision: Decision, participants: Collection[Participant]) -> None:
        """Commit the transactions of a decision that may be open, and record that all are committed.

        Source: KIP-939 "2PC Refresher": the decision "is communicated to all participants eventually".
        """
        await self._decisions.note(decision)
        failures = await self._end_all(participants, decision.transaction_version, TxnDecision.COMMIT)
        # Transactions that could not be ended may have been committed before.
        for each in await self._find_prepared(decision) if failures else ():
            raise _build_still_open_error(each, failures)
        await self._decisions.mark_done(decision.nonce)

    async def _find_prepared(self, decision: Decision) -> list[Participant]:
        """Return the participants whose transactions are still prepared.

        Raises: DecisionBroken if any can no longer be committed. PrefixTaken if a newer driver has completed
            this decision and continued from it: its batches reuse the ids.
        """
        outcomes = await self._resolve_outcomes(decision)
        if (report := find_incomplete_decision(self.prefix, decision, outcomes)) is not None:
            last_decision = (await self._decisions.read()).decision
            if last_decision is None or last_decision.nonce != decision.nonce:
                raise PrefixTaken(self.prefix, f"it has completed {decision} since")
            raise report
        return [
            each
            for each in decision.participants
            if outcomes[each.transactional_id] is ParticipantOutcome.OPEN
        ]

    async def _resolve_outcomes(self, decision: Decision) -> Mapping[str, ParticipantOutcome]:
        participants = {each.transactional_id: each for each in decision.participants}
        descriptions = await self._participants.describe(participants)
        return {
            name: resolve_outcome(each, decision.transaction_version, descriptions[name])
            for name, each in participants.items()
        }

    async def _list_stray_ids(self, decision: Decision) -> Collection[str]:
        """Return the ids with open transactions that are not the decision's; none if that fails."""
        try:
            open_ids = filter_worker_ids(self.prefix, await self._participants.list_open_ids())
        except TallystickError as exc:
            _log.info("%s: lost attempts are left to the next batch: %s", self.prefix, exc)
            return ()
        decided_ids = {each.transactional_id for each in decision.participants}
        return [name for name in open_ids if name not in decided_ids]

    async def _abort_stray_attempts(self, vote_summary: VoteSummary, open_ids: Collection[str]) -> None:
        """Abort the transactions of attempts that were killed before they voted, or not needed [SPK-26].

        The next begin would do so, but there may be none: a batch write has no next one, and a query that
        reads what it writes begins no batch, because the open transaction hides all newer records from it.

        Args:
            open_ids: the ids that were seen open after the decision.
        """
        if not open_ids:
            return
        try:
            open_attempts = await self._describe_open(open_ids)
            # This replaces the epoch that the votes have: late attempts notice. It fences no newer driver.
            if open_attempts and await self._participants.reclaim(vote_summary.coordinator) is not None:
                await self._abort_all(open_attempts, vote_summary.transaction_version)
        except Exception as exc:  # of the cluster; and of a store's storage or driver, in which it claims
            _log.info("%s: lost attempts are left to the next batch: %s", self.prefix, exc)

    async def _find_undecided(self) -> list[Participant]:
        """Return open transactions of no decision, each with its current producer id and epoch.

        If the prefix is still held *after* this call, none of them belongs to a newer lease, because the
        tasks of a lease begin after its claim.
        """
        open_ids = filter_worker_ids(self.prefix, await self._participants.list_open_ids())
        return await self._describe_open(open_ids)

    async def _describe_open(self, transactional_ids: Collection[str]) -> list[Participant]:
        descriptions = await self._participants.describe(transactional_ids) if transactional_ids else {}
        return [
            Participant(transactional_id=name, identity=description.writer)
            for name, description in descriptions.items()
            if description is not None and description.state == "Ongoing"
        ]

    async def _abort_all(self, participants: Collection[Participant], transaction_version: int) -> None:
        failures = await self._end_all(participants, transaction_version, TxnDecision.ABORT)
        for name, failure in failures.items():
            _log.info("%s: %s was not aborted: %s", self.prefix, name, failure)

    async def _abort_undecided(
        self, open_attempts: Collection[Participant], owner: ProducerIdAndEpoch, transaction_version: int
    ) -> None:
        """Abort the open transactions that no decision will ever name. Only under a claim.

        A driver may stall here for any time while a newer one works. So it aborts only what it has seen,
        under the producer ids and epochs it has seen, and only if it held the prefix after it looked: then
        all of it was written under an earlier lease [SPK-28].

        Args:
            open_attempts: the result of `_find_undecided` after the claim.
        """
        if not open_attempts:
            return
        if not await self._participants.owns_prefix(owner):
            raise PrefixTaken(self.prefix, "another driver began while this one looked at what is open")
        _log.info("%s: ending %d transactions that are in no decision", self.prefix, len(open_attempts))
        failures = await self._end_all(open_attempts, transaction_version, TxnDecision.ABORT)
        for each in await self._filter_open(open_attempts) if failures else ():
            raise _build_still_open_error(each, failures)

    async def _end_all(
        self, participants: Collection[Participant], transaction_version: int, txn_decision: TxnDecision
    ) -> Mapping[str, ClientError]:
        """End transactions under exactly their producer ids and epochs; return the failures by id."""
        failures = await self._participants.end(participants, transaction_version, txn_decision)
        fenced_participants = [
            p for p in participants if isinstance(failures.get(p.transactional_id), Fenced)
        ]
        # Fenced and still open: an earlier recovery kept the transaction (KIP-939) and did not end it.
        kept_participants = await self._filter_open(fenced_participants) if fenced_participants else []
        if not kept_participants:
            return failures
        recovery_failures = await self._participants.recover(
            kept_participants, transaction_version, txn_decision
        )
        kept_ids = {each.transactional_id for each in kept_participants}
        return {**{name: why for name, why in failures.items() if name not in kept_ids}, **recovery_failures}

    async def _filter_open(self, participants: Collection[Participant]) -> list[Participant]:
        descriptions = await self._participants.describe(each.transactional_id for each in participants)
        return [each for each in participants if is_open(each, descriptions[each.transactional_id])]


def _build_still_open_error(participant: Participant, failures: Mapping[str, ClientError]) -> TallystickError:
    return failures.get(participant.transactional_id) or SinkError(
        f"{participant.transactional_id} is open although it was ended"
    )


def _raise_if_error(result: T | SinkError) -> T:
    if isinstance(result, SinkError):
        raise result
    return result
