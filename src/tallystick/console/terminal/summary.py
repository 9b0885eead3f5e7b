"""`tallystick top --once`: the overview and the problems as text, and the outcome. Pure."""

from collections.abc import Iterator
from enum import Enum
from typing import Final

from tallystick.console.model.escaped import EscapedText, show
from tallystick.console.model.health import Health
from tallystick.console.model.snapshot import NEVER_MS, PartStatus, Snapshot
from tallystick.console.model.state import ConsoleState
from tallystick.console.terminal.lines import COMMAND_MAX
from tallystick.console.terminal.pages.overview import list_figures
from tallystick.console.views.overview import build_overview
from tallystick.console.views.page import list_failures
from tallystick.console.views.refusals import NoWrites, list_refusals
from tallystick.console.views.texts import format_count, format_duration
from tallystick.console.views.transactions import TransactionFilter, TransactionRow, build_transactions
from tallystick.kernel.value import Value


class LookOutcome(Enum):
    """The outcome of one look at the cluster."""

    WELL = "nothing needs an operator"
    NEEDS_OPERATOR = "a transaction, a broker or a store needs an operator"
    INCOMPLETE = "not everything could be read or judged"


_WORDS: Final = frozenset(health.value for health in Health if health.needs_action)


def assess_state(state: ConsoleState) -> LookOutcome:
    """Return what the state comes to; what needs an operator weighs more than a gap."""
    if any(each.health.needs_action for each in state.transactions) or list_refusals(state.snapshot):
        return LookOutcome.NEEDS_OPERATOR
    is_open = any(each.health in (Health.UNKNOWN, Health.UNSETTLED) for each in state.transactions)
    return LookOutcome.INCOMPLETE if is_open or not are_all_read(state.snapshot) else LookOutcome.WELL


def are_all_read(snapshot: Snapshot) -> bool:
    """Return whether every part was read whole."""
    return snapshot.number > 0 and all(status.is_complete for status in list_statuses(snapshot))


class Looks(Value):
    """The attempts so far, part by part. Never changed: `advance` returns the next one."""

    tried_ms: tuple[frozenset[int], ...] = ()

    def advance(self, snapshot: Snapshot) -> "Looks":
        """Return the looks after one more snapshot."""
        statuses = list_statuses(snapshot)
        before = self.tried_ms or (frozenset(),) * len(statuses)
        return Looks(tuple(known | {status.tried_ms} for known, status in zip(before, statuses, strict=True)))

    def are_enough(self, state: ConsoleState) -> bool:
        """Return whether one more look would say no more.

        Each part was tried, and no second look is due: neither for a contradiction [CON-1] nor for a reading
        that lacks something. The first one often does, while coordinators are still being looked up.
        """
        if any(each.health is Health.UNSETTLED for each in state.transactions):
            return False
        return all(
            status.is_complete or status.is_away or len(tried_ms - {NEVER_MS}) > 1
            for status, tried_ms in zip(list_statuses(state.snapshot), self.tried_ms, strict=True)
        )


def list_statuses(snapshot: Snapshot) -> tuple[PartStatus, ...]:
    """Return the status of each part."""
    parts = (snapshot.cluster, snapshot.transactions, snapshot.topics, snapshot.groups, snapshot.pipelines)
    return (*(part.status for part in parts), *(store.status for store in snapshot.stores))


def list_summary(state: ConsoleState, now_ms: int) -> Iterator[EscapedText]:
    """Yield the lines. None is broken: a command can be copied, and a program finds what belongs together."""
    page = build_overview(state, now_ms)
    age = "not all read" if any(status.read_ms for status in list_statuses(state.snapshot)) else "not read"
    if page.info.age_ms is not None:
        age = f"read {format_duration(page.info.age_ms)} ago"
    yield show(f"{page.info.bootstrap_servers}, {age}")
    for outage in page.info.outages:
        yield show(outage.text)
        yield show(f"  {outage.reason}")
        if outage.command:
            yield show(f"  {outage.command}", max_length=COMMAND_MAX)
    yield show(f"{page.health}: {page.headline}")
    for label, value in list_figures(page):
        yield show(f"  {label}: {value}")
    for store in page.stores:
        word = "unknown" if not store.is_reachable else "ok" if store.takes_writes else "refusing"
        counts = f"{format_count(store.id_count)} ids, {format_count(store.open_count)} open"
        yield show(f"  Store {store.name}: {word}, {counts}")
    failures = list_failures((), list_statuses(state.snapshot))
    if failures:
        yield show("Not everything could be read:")
    for failure in failures:
        yield show(f"  {failure}")
    for each in list_refusals(state.snapshot):
        yield from _list_refusal(each)
    rows = build_transactions(
        state, TransactionFilter(), now_ms, page_rows=max(1, len(state.transactions))
    ).rows
    for row in rows:
        if row.health in _WORDS:
            yield from _list_row(row)


def _list_refusal(each: NoWrites) -> Iterator[EscapedText]:
    yield show("")
    yield show(f"{Health.REFUSING.value}: {each.subject}")
    yield show(f"  {each.reason}")
    if each.command:
        yield show(f"  {each.command}", max_length=COMMAND_MAX)


def _list_row(row: TransactionRow) -> Iterator[EscapedText]:
    yield show("")
    decided_by = row.store or row.prefix
    facts = [row.state, f"by {decided_by}" if decided_by else "", f"open for {format_duration(row.age_ms)}"]
    facts.append(f"{format_count(row.held_back_count)} records held back" if row.held_back_count else "")
    yield show(f"{row.health}: {row.transactional_id or row.key} ({', '.join(filter(None, facts))})")
    yield show(f"  {row.reason}")
    if row.command:
        yield show(f"  {row.command}", max_length=COMMAND_MAX)
