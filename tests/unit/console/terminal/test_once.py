"""`tallystick top --once`: how long it looks, what it prints, and what it comes to."""

import asyncio
from collections.abc import AsyncIterator

import pytest
from tests.support.console_facts import (
    NOW_MS,
    WRITER,
    describe,
    make_case,
    make_row,
    make_snapshot,
    make_store,
    pair,
    read_again,
)

from tallystick.admin.txn.hanging import HangingFinding, HangingVerdict
from tallystick.cli.commands.top import look_once
from tallystick.console.model.health import Health, Limits
from tallystick.console.model.snapshot import GroupFacts, PartStatus, Snapshot
from tallystick.console.model.state import ConsoleState, advance
from tallystick.console.terminal.summary import LookOutcome, assess_state, list_summary
from tallystick.kernel.value import replace

READ = PartStatus(read_ms=NOW_MS - 200, tried_ms=NOW_MS - 200)


def whole(snapshot: Snapshot) -> Snapshot:
    """Return a snapshot all of whose parts were read."""

    def tried(status: PartStatus) -> PartStatus:
        return replace(status, tried_ms=status.read_ms)

    return replace(
        snapshot,
        cluster=replace(snapshot.cluster, status=READ),
        transactions=replace(snapshot.transactions, status=tried(snapshot.transactions.status)),
        topics=replace(snapshot.topics, status=READ),
        groups=GroupFacts(status=READ),
        pipelines=replace(snapshot.pipelines, status=READ),
        stores=tuple(replace(store, status=tried(store.status)) for store in snapshot.stores),
    )


def again(snapshot: Snapshot) -> Snapshot:
    later = read_again(snapshot)
    return replace(
        later,
        transactions=replace(
            later.transactions,
            status=replace(
                later.transactions.status,
                tried_ms=later.transactions.status.read_ms,
                failures=snapshot.transactions.status.failures,
            ),
        ),
    )


def torn() -> Snapshot:
    """Return a snapshot in which the database has committed what the cluster has aborted."""
    aborted = describe(state="CompleteAbort", writer=pair(5, 4), partitions=())
    return whole(make_snapshot(aborted, stores=[make_store(make_row(state=WRITER))]))


class Source:
    """Publishes snapshots, and then waits for ever."""

    def __init__(self, *snapshots: Snapshot) -> None:
        self.snapshots, self.count, self.hurried = snapshots, 0, 0

    async def follow(self) -> AsyncIterator[Snapshot]:
        for snapshot in self.snapshots:
            self.count += 1
            yield snapshot
        await asyncio.Event().wait()

    def read_soon(self) -> None:
        self.hurried += 1


def look(source: Source, *, seconds_max: float = 60) -> ConsoleState:
    return asyncio.run(look_once(source, Limits(), source.read_soon, seconds_max=seconds_max))


def test_one_look_is_enough_where_everything_was_read_and_nothing_contradicts() -> None:
    quiet = whole(make_snapshot(describe()))
    source = Source(quiet, again(quiet))
    assert assess_state(look(source)) is LookOutcome.WELL
    assert (source.count, source.hurried) == (1, 0)


def test_what_contradicts_itself_is_looked_at_again_before_it_is_called_broken() -> None:
    """[CON-1]"""
    source = Source(torn(), again(torn()))
    state = look(source)
    assert [each.health for each in state.transactions] == [Health.BROKEN]
    assert assess_state(state) is LookOutcome.NEEDS_OPERATOR
    assert (source.count, source.hurried) == (2, 1)


def test_a_part_that_was_not_tried_yet_is_waited_for() -> None:
    quiet = whole(make_snapshot())
    source = Source(replace(quiet, groups=GroupFacts()), quiet)
    assert assess_state(look(source)) is LookOutcome.WELL
    assert source.count == 2


def test_a_reading_that_lacked_something_is_tried_once_more() -> None:
    partial = whole(make_snapshot(failures=("t-0: its coordinator has moved",)))
    quiet = again(whole(make_snapshot()))
    assert assess_state(look(Source(partial, quiet))) is LookOutcome.WELL
    source = Source(partial, again(partial), quiet)
    assert assess_state(look(source)) is LookOutcome.INCOMPLETE
    assert source.count == 2


def test_a_cluster_that_is_away_is_not_waited_for() -> None:
    away = PartStatus(tried_ms=NOW_MS, away_since_ms=NOW_MS, failures=("cluster: refused",))
    quiet = whole(make_snapshot())
    gone = replace(
        quiet,
        cluster=replace(quiet.cluster, status=away),
        transactions=replace(quiet.transactions, status=away),
    )
    state = look(Source(gone))
    assert assess_state(state) is LookOutcome.INCOMPLETE
    assert "  cluster: refused" in list(list_summary(state, NOW_MS))


def test_it_ends_when_its_time_is_over() -> None:
    state = look(Source(torn()), seconds_max=0)
    assert assess_state(state) is LookOutcome.INCOMPLETE
    never = look(Source(), seconds_max=0)
    assert assess_state(never) is LookOutcome.INCOMPLETE
    assert next(iter(list_summary(never, NOW_MS))) == ", not read"
    unread = advance(ConsoleState(), whole(make_snapshot(stores=[make_store(read_ms=0)])))
    assert next(iter(list_summary(unread, NOW_MS))).endswith(", not all read")


@pytest.mark.parametrize("health", Health)
def test_every_health_has_an_outcome(health: Health) -> None:
    quiet = whole(make_snapshot(describe()))
    state = advance(advance(ConsoleState(), quiet), again(quiet))
    (each,) = state.transactions
    state = replace(state, transactions=(replace(each, assessment=replace(each.assessment, health=health)),))
    expected = {
        Health.OK: LookOutcome.WELL,
        Health.SLOW: LookOutcome.WELL,
        Health.UNKNOWN: LookOutcome.INCOMPLETE,
        Health.UNSETTLED: LookOutcome.INCOMPLETE,
    }
    assert assess_state(state) is expected.get(health, LookOutcome.NEEDS_OPERATOR)


def test_what_needs_an_operator_is_printed_with_its_command_in_one_line() -> None:
    case = make_case(HangingFinding.UNKNOWN_PRODUCER_ID, None, pair(77, 0), verdict=HangingVerdict.HANGING)
    known = describe("k" * 5_000, age_ms=120_000, writer=WRITER)
    snapshot = whole(
        make_snapshot(
            known, describe("fine"), cases=[case], stores=[make_store(make_row("k" * 5_000, state=WRITER))]
        )
    )
    lines = list(list_summary(advance(ConsoleState(), snapshot), NOW_MS))
    assert "hanging: producer:77:0 (no coordinator, open for 500 ms)" in lines
    (command,) = [line for line in lines if "transactions resolve" in line]
    assert command.endswith("k" * 5_000)
    assert not any(line.startswith("ok: ") or "fine" in line for line in lines)
