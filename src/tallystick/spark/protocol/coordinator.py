"""The driver's side of two-phase commit: begin, commit and abort. The rules are in `decide`.

    lease = await coordinator.begin()           before any task
    await coordinator.commit(votes)             when all tasks have voted
    await coordinator.abort(votes)              when some have not, or commit failed

The driver may crash after any await; tests/properties/test_spark_protocol.py stops at each. An object belongs
to one prefix, one process and one event loop. Its whole state between calls is in the lease, the votes and
the log, because Spark calls begin and commit in different processes.
"""

import logging
from collections.abc import Callable, Collection, Iterable, Mapping
from secrets import token_hex
from typing import Final, TypeVar

from tallystick.client.errors import ClientError, Fenced
from tallystick.client.transactions.modes import Wish
from tallystick.kernel.clock import Clock, SystemClock
from tallystick.kernel.errors import TallystickError
from tallystick.kernel.ids import Identity
from tallystick.kernel.value import frozen
from tallystick.spark.protocol.committable import Decision, Lease, Noted, Participant, Vote
from tallystick.spark.protocol.decide import (
    Ballot,
    Beginning,
    Fate,
    broken,
    count,
    fate,
    is_open,
    lost,
    next_decision,
    orphans,
    replayed,
    resumed,
    unsound,
)
from tallystick.spark.protocol.errors import PrefixTaken, SinkError
from tallystick.spark.protocol.ports import DecisionLog, Participants

_log = logging.getLogger("tallystick.spark")

T = TypeVar("T")

NONCE_BYTES: Final = 8


@frozen(kw_only=True)
class Standing:
    """The transactions and the last decision of a prefix.

    fates      of the last decision's transactions, unless all are known to be committed
    undecided  open transactions that are in no decision
    noted      the cluster's note of the last decision, where decisions are in a database
    """

    decision: Decision | None
    fates: Mapping[str, Fate]
    undecided: tuple[str, ...]
    noted: Noted | None = None

    @property
    def lost(self) -> tuple[str, ...]:
        """Transactions that were decided and can no longer be committed."""
        return tuple(name for name, found in self.fates.items() if found in (Fate.ABORTED, Fate.UNKNOWN))


class Coordinator:
    """The two-phase commit coordinator of one prefix."""

    def __init__(
        self,
        prefix: str,
        participants: Participants,
        decisions: DecisionLog,
        *,
        clock: Clock | None = None,
        nonces: Callable[[], str] | None = None,
    ) -> None:
        self.prefix = prefix
        self._participants, self._decisions = participants, decisions
        self._clock = clock or SystemClock()
        self._nonce = nonces or (lambda: token_hex(NONCE_BYTES))

    async def begin(
        self, write_id: str | None = None, resuming: Beginning | None = None, *, adopting: bool = False
    ) -> Lease:
        """Claim the prefix, complete the last decision, abort everything else, and return a batch's lease.

        Args:
            write_id: the name of a batch write, if it has one.
            resuming: the start of a query that may follow another one, if it begins where that one ended.
            adopting: continue even if decisions were lost.
        Raises: DecisionBroken, DecisionsLost, PrefixTaken, UnknownCheckpoint; the client's errors.
        """
        began_ms = self._clock.now_ms()
        await self._decisions.open()
        held, transaction_version = await self._participants.claim()
        known = await self._decisions.read()
        if (refusal := lost(self.prefix, known)) is not None:
            if not adopting:
                raise refusal
            await self._decisions.note(known.decision)
        if known.decision is not None and not known.done:
            await self._roll_forward(known.decision)
        await self._sweep(held, transaction_version)
        last = known.decision
        decided = _or_raise(resumed(last, resuming))
        return Lease(
            nonce=self._nonce(),
            coordinator=held,
            transaction_version=transaction_version,
            decided=decided,
            repeats=last is not None and write_id in {each.name for each in last.writes},
            began_ms=began_ms,
        )

    async def commit(self, votes: Iterable[Vote | None], offsets: str | None = None) -> Decision | None:
        """Decide a batch and complete it; return the decision, or None for a batch decided before.

        Args:
            offsets: the sources' offsets at the end of the batch, to be kept with the decision.
        Raises: SinkErrors, PrefixTaken, InDoubt, or the client's errors. The caller may call `abort` after
            any of them.
        """
        ballot = _or_raise(count(votes))
        last = (await self._decisions.read()).decision
        if ballot.skipped:
            if (refusal := replayed(last, ballot)) is not None:
                raise refusal
            return None
        decision = _or_raise(next_decision(self.prefix, last, ballot, self._clock.now_ms(), offsets))
        shown = await self._participants.describe(each.transactional_id for each in ballot.participants)
        refusal = unsound(ballot.participants, shown, self._clock.now_ms(), ballot.began_ms)
        if refusal is not None:
            raise refusal
        await self._decisions.append(decision, ballot.coordinator, ballot.transaction_version)
        # Decided. From here on the transactions are only ever committed [SPK-21].
        await self._complete(decision, decision.participants)
        await self._tidy(ballot)
        return decision

    async def abort(self, votes: Iterable[Vote | None]) -> None:
        """Abort a batch, unless it was decided. Without any vote, leave it to the next begin.

        Spark also calls this after a commit that raised, and does not say how far the commit came. A decision
        may still be in flight, so the log alone cannot tell. Therefore P/coordinator is initialised first,
        with the votes' own producer id and epoch: that settles a decision in flight, and fails if a newer
        driver has the prefix, which is then left alone.
        """
        ballot = count(votes)
        if not isinstance(ballot, Ballot):
            return
        held = await self._participants.reclaim(ballot.coordinator)
        if held is None:
            _log.info("%s: a newer driver has the prefix; nothing is aborted here", self.prefix)
            return
        last = (await self._decisions.read()).decision
        if last is not None and last.nonce == ballot.nonce:
            await self._complete(last, last.participants)
            return
        opened = await self._opened()  # including those of tasks that have not voted
        if opened and await self._participants.holds(held):
            await self._drop(opened, ballot.transaction_version)

    async def inspect(self) -> Standing:
        """Return the state of the prefix. Changes nothing, and does not see a decision that is in flight."""
        known = await self._decisions.read()
        fates: Mapping[str, Fate] = {}
        if known.decision is not None and not known.done:
            fates = await self._fates(known.decision)
        opened = orphans(self.prefix, await self._participants.open_ids())
        return Standing(
            decision=known.decision,
            fates=fates,
            undecided=tuple(name for name in opened if name not in fates),
            noted=known.noted,
        )

    async def retire(self) -> Standing:
        """Commit decided transactions where possible, abort the others, and give the prefix up.

        Returns: the state before any change; its `fates` tell which transactions are lost for good.
        """
        held, transaction_version = await self._participants.claim()
        found = await self.inspect()
        if found.decision is not None:
            decided = found.decision
            left = [p for p in decided.participants if found.fates.get(p.transactional_id) is Fate.OPEN]
            failures = await self._end(left, decided.transaction_version, Wish.COMMIT)
            for each in await self._still_open(left) if failures else ():
                raise _why_open(each, failures)
        await self._sweep(held, transaction_version)
        if found.decision is not None or found.noted is not None:
            await self._decisions.forget(held, transaction_version)
        return found

    async def _roll_forward(self, decision: Decision) -> None:
        """Complete the last decision, no matter which driver made it, and record that."""
        left = await self._left(decision) if decision.participants else []
        if left:
            _log.warning("%s: completing %d transactions of %s", self.prefix, len(left), decision)
        await self._complete(decision, left)

    async def _complete(self, decision: Decision, left: Collection[Participant]) -> None:
        """Commit the transactions of a decision that may be open, and record that all are committed."""
        await self._decisions.note(decision)
        failures = await self._end(left, decision.transaction_version, Wish.COMMIT)
        # Transactions that could not be ended may have been committed before.
        for each in await self._left(decision) if failures else ():
            raise _why_open(each, failures)
        await self._decisions.mark_done(decision.nonce)

    async def _left(self, decision: Decision) -> list[Participant]:
        """Return the participants whose transactions are still prepared.

        Raises: DecisionBroken if any can no longer be committed. PrefixTaken if a newer driver has completed
            this decision and continued from it: its batches reuse the ids.
        """
        fates = await self._fates(decision)
        if (report := broken(self.prefix, decision, fates)) is not None:
            last = (await self._decisions.read()).decision
            if last is None or last.nonce != decision.nonce:
                raise PrefixTaken(self.prefix, f"it has completed {decision} and gone on")
            raise report
        return [each for each in decision.participants if fates[each.transactional_id] is Fate.OPEN]

    async def _fates(self, decision: Decision) -> Mapping[str, Fate]:
        named = {each.transactional_id: each for each in decision.participants}
        shown = await self._participants.describe(named)
        return {name: fate(each, decision.transaction_version, shown[name]) for name, each in named.items()}

    async def _tidy(self, ballot: Ballot) -> None:
        """Abort the transactions of attempts that were killed before they voted, or not needed [SPK-26].

        The next begin would do so, but there may be none: a batch write has no next one, and a query that
        reads what it writes begins no batch, because the open transaction hides all newer records from it.
        """
        try:
            opened = await self._opened()
            # This replaces the epoch that the votes have: late attempts notice. It fences no newer driver.
            if opened and await self._participants.reclaim(ballot.coordinator) is not None:
                await self._drop(opened, ballot.transaction_version)
        except TallystickError as exc:
            _log.info("%s: lost attempts are left to the next batch: %s", self.prefix, exc)

    async def _opened(self) -> list[Participant]:
        """Return open transactions of no decision, each with its current producer id and epoch.

        If the prefix is still held *after* this call, none of them belongs to a newer lease, because the
        tasks of a lease begin after its claim.
        """
        shown = await self._participants.describe(orphans(self.prefix, await self._participants.open_ids()))
        return [
            Participant(transactional_id=name, identity=found.writer)
            for name, found in shown.items()
            if found is not None and found.state == "Ongoing"
        ]

    async def _drop(self, opened: Collection[Participant], transaction_version: int) -> None:
        failures = await self._end(opened, transaction_version, Wish.ABORT)
        for name, failure in failures.items():
            _log.info("%s: %s was not aborted: %s", self.prefix, name, failure)

    async def _sweep(self, held: Identity, transaction_version: int) -> None:
        """Abort every open transaction that no decision will ever name. Only under a claim.

        A driver may stall here for any time while a newer one works. So it aborts only what it has seen,
        under the producer ids and epochs it has seen, and only if it held the prefix after it looked: then
        all of it was written under an earlier lease [SPK-28].
        """
        opened = await self._opened()
        if not opened:
            return
        if not await self._participants.holds(held):
            raise PrefixTaken(self.prefix, "another driver began while this one looked at what is open")
        _log.info("%s: ending %d transactions that are in no decision", self.prefix, len(opened))
        failures = await self._end(opened, transaction_version, Wish.ABORT)
        for each in await self._still_open(opened) if failures else ():
            raise _why_open(each, failures)

    async def _end(
        self, participants: Collection[Participant], transaction_version: int, wish: Wish
    ) -> Mapping[str, ClientError]:
        """End transactions under exactly their producer ids and epochs; return the failures by id."""
        failures = await self._participants.end(participants, transaction_version, wish)
        fenced = [p for p in participants if isinstance(failures.get(p.transactional_id), Fenced)]
        # Fenced and still open: an earlier recovery kept the transaction (KIP-939) and did not end it.
        kept = await self._still_open(fenced) if fenced else []
        if not kept:
            return failures
        again = await self._participants.recover(kept, transaction_version, wish)
        tried = {each.transactional_id for each in kept}
        return {**{name: why for name, why in failures.items() if name not in tried}, **again}

    async def _still_open(self, participants: Collection[Participant]) -> list[Participant]:
        shown = await self._participants.describe(each.transactional_id for each in participants)
        return [each for each in participants if is_open(each, shown[each.transactional_id])]


def _why_open(one: Participant, failures: Mapping[str, ClientError]) -> TallystickError:
    return failures.get(one.transactional_id) or SinkError(
        f"{one.transactional_id} is open although it was ended"
    )


def _or_raise(found: T | SinkError) -> T:
    if isinstance(found, SinkError):
        raise found
    return found
