"""The console's state: the newest snapshot, joined, with what has changed lately. Pure."""

from collections.abc import Iterator, Sequence
from typing import Final

from tallystick.console.model.events import Change, EventKind, EventLog
from tallystick.console.model.health import Health, Limits
from tallystick.console.model.snapshot import Snapshot
from tallystick.console.model.transactions import AssessedTransaction, join_views
from tallystick.kernel.value import Value


class ConsoleState(Value, kw_only=True):
    """A snapshot and its transactions joined. Never changed: `advance` returns the next one."""

    snapshot: Snapshot = Snapshot()
    transactions: tuple[AssessedTransaction, ...] = ()
    limits: Limits = Limits()
    events: EventLog = EventLog()

    @property
    def is_first(self) -> bool:
        """Whether nothing has been read yet."""
        return self.snapshot.number == 0


def advance(state: ConsoleState, snapshot: Snapshot) -> ConsoleState:
    """Return the state after the next snapshot."""
    earlier = None if state.is_first else state.transactions
    transactions = join_views(snapshot, state.limits, earlier)
    events = state.events.advance(snapshot, find_health_changes(earlier, transactions))
    return ConsoleState(snapshot=snapshot, transactions=transactions, limits=state.limits, events=events)


_WELL: Final = frozenset({Health.OK, Health.UNSETTLED})
_TOLD_OTHERWISE: Final = frozenset({*_WELL, Health.HANGING})


def find_health_changes(
    before: Sequence[AssessedTransaction] | None, after: Sequence[AssessedTransaction]
) -> Iterator[Change]:
    """Yield which transactions are not well any more, or in another way, and which are well again.

    Args:
        before: None at the first look, at which nothing has changed.
    """
    known = {_identify(each): each.health for each in before or ()}
    for each in after if before is not None else ():
        former, present = known.get(_identify(each), Health.OK), each.health
        if former is present:
            continue
        name = each.key
        if present not in _TOLD_OTHERWISE:
            yield EventKind.HEALTH, name, f"{name} is {present.value}: {each.assessment.reason}"
        elif present is Health.OK and former not in _WELL:
            yield EventKind.HEALTH, name, f"{name} was {former.value} and is ok: {each.assessment.reason}"


def _identify(each: AssessedTransaction) -> tuple[object, ...]:
    """Return what a transaction keeps for as long as it is open."""
    return each.transactional_id or each.views.writer, each.views.started_ms, each.views.is_stranger
