"""The drawn time line of one transaction: who did what, in which order, and what is still missing. Pure.

Events stand in order, at equal distances: what happened in a millisecond and what took an hour are both to
be read. The time between two of them is written next to the line instead. An event without a time is known to
have happened, or to be missing, but not when.
"""

from collections.abc import Iterable, Sequence
from typing import Final

from tallystick.console.model.assessment import SparkRole, StoreSide, find_lost_outcome
from tallystick.console.model.transactions import AssessedTransaction
from tallystick.dualwrite.rules.recovery import Finding
from tallystick.kernel.value import Value
from tallystick.spark.protocol.decide import ParticipantOutcome

ROW_HEIGHT: Final = 44
STEP_WIDTH: Final = 150
LEFT: Final = 170
TOP: Final = 34
BOTTOM: Final = 20
PARTITION_ROWS_MAX: Final = 8
"""Partitions drawn one by one; more of them share the last row."""


class TimelineEvent(Value, kw_only=True):
    """One event, in the row of the system in which it happened.

    at_ms       None: not known
    is_done     False: it has not happened
    is_wrong    it should not be, or will never come
    is_awaited  it has not happened, and its label does not say so
    """

    row: str
    label: str
    at_ms: int | None
    is_done: bool = True
    is_wrong: bool = False
    is_awaited: bool = False

    @property
    def text(self) -> str:
        """The label as it is written beside the event."""
        return f"{self.label} (missing)" if self.is_awaited else self.label


class DrawnEvent(Value, kw_only=True):
    """An event with its place in the drawing, in SVG's user units."""

    event: TimelineEvent
    x: int
    y: int


class DrawnRow(Value, kw_only=True):
    """A row with its place."""

    name: str
    y: int


class Timeline(Value, kw_only=True):
    """A drawing of `width` x `height` user units."""

    events: tuple[DrawnEvent, ...]
    rows: tuple[DrawnRow, ...]
    width: int
    height: int


def list_events(each: AssessedTransaction) -> tuple[TimelineEvent, ...]:
    """List the events of a transaction that its views show, in their order."""
    return (*_list_cluster_events(each), *_list_decision_events(each), *_list_end_events(each))


def _list_cluster_events(each: AssessedTransaction) -> Iterable[TimelineEvent]:
    views = each.views
    if views.description is not None and not views.is_stranger:
        yield TimelineEvent(row="coordinator", label="begun", at_ms=views.started_ms)
    for row, count in _group_partitions(each):
        label = "data" if count == 1 else f"data in {count} partitions"
        yield TimelineEvent(row=row, label=label, at_ms=None)


def _group_partitions(each: AssessedTransaction) -> Sequence[tuple[str, int]]:
    """Return the rows of the partitions, and how many each stands for."""
    names = sorted(map(str, each.views.partitions))
    if len(names) <= PARTITION_ROWS_MAX:
        return [(name, 1) for name in names]
    single = names[: PARTITION_ROWS_MAX - 1]
    return [*((name, 1) for name in single), ("other partitions", len(names) - len(single))]


def _list_decision_events(each: AssessedTransaction) -> Iterable[TimelineEvent]:
    views = each.views
    if views.store is not None:
        finding = views.store.finding
        state = "" if views.description is None else views.description.state
        is_done = finding in _COMMITTED_IN_DATABASE or state == "PrepareCommit"
        yield TimelineEvent(
            row=views.store.store.name,
            label=_DATABASE_LABELS.get(finding) or ("committed" if is_done else "not committed"),
            at_ms=None,
            is_done=is_done,
            is_wrong=finding in _WRONG_FINDINGS,
        )
    if views.spark is not None and views.spark.role is not SparkRole.DRIVER:
        decision = None if views.spark.facts is None else views.spark.facts.decision
        is_done = views.spark.role is SparkRole.DECIDED and decision is not None
        yield TimelineEvent(
            row=f"Spark {views.spark.prefix}",
            label="decided" if is_done else _UNDECIDED_LABELS.get(views.spark.role, "not decided"),
            at_ms=decision.decided_ms if decision is not None and is_done else None,
            is_done=is_done,
            is_wrong=find_lost_outcome(views, views.spark) is not None,
        )


# What a finding of recovery says of the database's side, as its sentence does.
_COMMITTED_IN_DATABASE: Final = frozenset(
    {Finding.DECIDED, Finding.FINISHED, Finding.FORCED, Finding.OVERRULED, Finding.AHEAD}
)
_DATABASE_LABELS: Final = {
    Finding.UNPROVEN: "committed another",
    Finding.UNSEEN: "not compared",
    Finding.FOREIGN: "of another cluster",
    Finding.UNKNOWN_HERE: "has never had the id",
}
_WRONG_FINDINGS: Final = frozenset(
    {
        *(Finding.FORCED, Finding.OVERRULED, Finding.BEHIND),
        *(Finding.AHEAD, Finding.FOREIGN, Finding.UNKNOWN_HERE),
    }
)
# How the cluster ended what the finding is about, where nothing is open any more.
_ENDED_IN_CLUSTER: Final = {
    Finding.FINISHED: "committed",
    Finding.FORCED: "aborted",
    Finding.OVERRULED: "aborted",
    Finding.BEHIND: "committed",
}

_UNDECIDED_LABELS: Final = {SparkRole.UNREAD: "decisions not read"}


def _list_end_events(each: AssessedTransaction) -> Iterable[TimelineEvent]:
    views = each.views
    lost = None if views.spark is None else find_lost_outcome(views, views.spark)
    if lost is not None:
        is_aborted = lost is ParticipantOutcome.ABORTED
        label = "aborted" if is_aborted else lost.value
        yield TimelineEvent(row="coordinator", label=label, at_ms=None, is_done=is_aborted, is_wrong=True)
    elif views.description is not None and not views.is_stranger:
        yield _build_coordinator_end(views.description.state, views.store)
    for row, count in _group_partitions(each):
        yield TimelineEvent(
            row=row,
            label="marker" if count == 1 else f"{count} markers",
            at_ms=None,
            is_done=False,
            is_wrong=views.is_stranger,
            is_awaited=True,
        )


def _build_coordinator_end(state: str, store: StoreSide | None) -> TimelineEvent:
    ended = None if store is None else _ENDED_IN_CLUSTER.get(store.finding)
    if ended is not None:
        is_wrong = store is not None and store.finding in _WRONG_FINDINGS
        return TimelineEvent(row="coordinator", label=ended, at_ms=None, is_wrong=is_wrong)
    word = {"PrepareCommit": "commit", "PrepareAbort": "abort"}.get(state, "")
    label = f"{word} decided" if word else "decision"
    return TimelineEvent(row="coordinator", label=label, at_ms=None, is_done=bool(word), is_awaited=not word)


def draw(events: Sequence[TimelineEvent]) -> Timeline:
    """Place events in rows: one column each, but for neighbours with the same label, which share one."""
    rows: dict[str, int] = {}
    drawn: list[DrawnEvent] = []
    column, last_label = -1, ""
    for event in events:
        index = rows.setdefault(event.row, len(rows))
        column += event.label != last_label
        last_label = event.label
        x, y = LEFT + column * STEP_WIDTH + STEP_WIDTH // 2, TOP + index * ROW_HEIGHT
        drawn.append(DrawnEvent(event=event, x=x, y=y))
    return Timeline(
        events=tuple(drawn),
        rows=tuple(DrawnRow(name=name, y=TOP + index * ROW_HEIGHT) for name, index in rows.items()),
        width=LEFT + (column + 1) * STEP_WIDTH,
        height=TOP + max(0, len(rows) - 1) * ROW_HEIGHT + BOTTOM,
    )
