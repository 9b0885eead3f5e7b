"""The driver's part of the protocol: begin, commit, abort. `decide` decides; this only does it, in order.

    lease = await coordinator.begin()           before any task
    await coordinator.commit(votes)             all tasks have voted
    await coordinator.abort(votes)              some have not, or commit failed

Every await is an effect after which the driver may be gone; tests/properties/test_spark_protocol.py stops
at each. One object belongs to one prefix, in one process, on one loop. It keeps nothing between calls that is
not in the lease, the votes or the log: Spark calls begin and commit in different processes.
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
    """What there is under a prefix.

    fates      of the last decision's transactions, where it is not known that all are committed
    undecided  open transactions in no decision
    noted      what the cluster was told of the decisions, where they are in a database
    """

    decision: Decision | None
    fates: Mapping[str, Fate]
    undecided: tuple[str, ...]
    noted: Noted | None = None

    @property
    def lost(self) -> tuple[str, ...]:
        """Decided, and not to be committed any more."""
        return tuple(name for name, found in self.fates.items() if found in (Fate.ABORTED, Fate.UNKNOWN))


class Coordinator:
    """Decides for one prefix."""

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
        """Take the prefix, finish what was decided, end what was not; the lease for a batch.

        Args:
            write_id: of a batch write that has a name.
            resuming: of a query that may follow another one, if it begins where that one ended.
            adopting: go on also where decisions were lost.
        Raises: DecisionBroken, DecisionsLost, PrefixTaken, UnknownCheckpoint; a client's errors.
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
        """Decide a batch and complete it; the decision, or None where it had been decided before.

        Args:
            offsets: of the sources at the end of the batch, to be kept with the decision.
        Raises: SinkErrors, PrefixTaken, InDoubt, or a client's error. `abort` is right after any of them.
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
        # Decided. From here on there is no way back, only forward [SPK-21].
        await self._complete(decision, decision.participants)
        await self._tidy(ballot)
        return decision

    async def abort(self, votes: Iterable[Vote | None]) -> None:
        """Give a batch up, unless it was decided. Without any vote it does nothing: the next begin does.

        Spark calls this after a commit that raised, too, and does not say how far that came. A decision may
        even be on its way, so the log alone cannot tell: first the coordinator's id is settled, under the
        votes' own pair, so that a newer driver is found out and left alone.
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
        opened = await self._opened()  # of tasks that have not voted, too
        if opened and await self._participants.holds(held):
            await self._drop(opened, ballot.transaction_version)

    async def inspect(self) -> Standing:
        """What there is to do under the prefix. Changes nothing, and a decision on its way is not seen."""
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
        """Commit what was decided and still can be, end the rest, and give the prefix up.

        Returns: what was found, before anything was done about it: `fates` tells what is lost for good.
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
        """Complete the last decision, no matter which driver took it, and note that."""
        left = await self._left(decision) if decision.participants else []
        if left:
            _log.warning("%s: completing %d transactions of %s", self.prefix, len(left), decision)
        await self._complete(decision, left)

    async def _complete(self, decision: Decision, left: Collection[Participant]) -> None:
        """Commit what may be open of a decision, and note that all of it is committed."""
        await self._decisions.note(decision)
        failures = await self._end(left, decision.transaction_version, Wish.COMMIT)
        # Some could not be ended: they may have been committed before.
        for each in await self._left(decision) if failures else ():
            raise _why_open(each, failures)
        await self._decisions.mark_done(decision.nonce)

    async def _left(self, decision: Decision) -> list[Participant]:
        """Return those still prepared.

        Raises: DecisionBroken if any can no longer be committed. PrefixTaken where a newer driver has gone on
            from this decision, which it completed first: its batches use the ids again.
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
        """End what attempts have left that were lost: killed before they could tell, or not needed [SPK-26].

        The next begin would, and nobody knows when that is: a batch write has none, and a query that reads
        what it writes sees nothing new behind an open transaction, so that it begins no batch.
        """
        try:
            opened = await self._opened()
            # The votes' pair is moved on: a late attempt sees it, and no newer driver is disturbed.
            if opened and await self._participants.reclaim(ballot.coordinator) is not None:
                await self._drop(opened, ballot.transaction_version)
        except TallystickError as exc:
            _log.info("%s: lost attempts are left to the next batch: %s", self.prefix, exc)

    async def _opened(self) -> list[Participant]:
        """What is open and in no decision, each with the pair that has it.

        None of it is a newer lease's, if the prefix is still held *after* this: the tasks of a lease begin
        after its claim.
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

        A driver may stall here for any time, with a newer one at work beside it. So it aborts what it has
        seen under the pairs it has seen, and that only if the prefix was its own after it looked: then all of
        it was written under an earlier lease [SPK-28].
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
        """End transactions, under exactly their pairs; what was not ended now, and why."""
        failures = await self._participants.end(participants, transaction_version, wish)
        fenced = [p for p in participants if isinstance(failures.get(p.transactional_id), Fenced)]
        # Fenced and still open: a recovery has kept it (KIP-939) and not come to its end.
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
