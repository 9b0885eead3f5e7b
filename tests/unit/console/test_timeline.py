"""The drawing of a transaction and the sentence about it say the same, whatever recovery finds."""

import pytest
from tests.support.console_facts import (
    STORE,
    WRITER,
    describe,
    make_case,
    make_prefix,
    make_row,
    make_snapshot,
    make_store,
    pair,
    read_again,
)

from tallystick.admin.txn.hanging import HangingFinding, HangingVerdict
from tallystick.client.transactions.modes import Mode
from tallystick.console.model.assessment import StoreSide
from tallystick.console.model.snapshot import Snapshot
from tallystick.console.model.state import ConsoleState, advance
from tallystick.console.model.transactions import AssessedTransaction
from tallystick.console.views.timeline import TimelineEvent, list_events
from tallystick.dualwrite.rules.model import StoredState
from tallystick.dualwrite.rules.recovery import VERDICTS, Finding
from tallystick.kernel.ids import ProducerIdAndEpoch
from tallystick.kernel.value import replace
from tallystick.spark.protocol.committable import Participant


def draw_finding(finding: Finding, state: str) -> dict[str, TimelineEvent]:
    """Return the database's event and the last of the coordinator."""
    snapshot = make_snapshot(describe(state=state), stores=[make_store(make_row(state=WRITER))])
    (each,) = advance(ConsoleState(), snapshot).transactions
    side = each.views.store
    assert isinstance(side, StoreSide)
    side = replace(side, finding=finding, verdict=VERDICTS[finding, Mode.TWO_PHASE])
    transaction = replace(each, views=replace(each.views, store=side))
    return {event.row: event for event in list_events(transaction)}


@pytest.mark.parametrize("finding", Finding)
def test_the_drawing_says_of_the_database_what_the_sentence_says(finding: Finding) -> None:
    event = draw_finding(finding, "Ongoing")[STORE]
    has_committed = "the database has committed" in finding.value or finding is Finding.FINISHED
    assert (event.label == "committed" and event.is_done) == has_committed
    assert "does not have" not in finding.value or (event.label, event.is_done) == ("not committed", False)


@pytest.mark.parametrize("finding", Finding)
def test_the_drawing_says_of_the_cluster_what_the_sentence_says(finding: Finding) -> None:
    event = draw_finding(finding, "Ongoing")["coordinator"]
    says_aborted = "aborted" in finding.value
    says_committed = "the cluster shows that it was committed" in finding.value or (
        "the cluster has committed" in finding.value
    )
    assert (event.label == "aborted" and event.is_done) == says_aborted
    assert (event.label == "committed" and event.is_done) == says_committed


@pytest.mark.parametrize("finding", [Finding.FORCED, Finding.OVERRULED, Finding.BEHIND])
def test_sides_that_differ_are_both_drawn_as_wrong(finding: Finding) -> None:
    events = draw_finding(finding, "Ongoing")
    assert events[STORE].is_wrong
    assert events["coordinator"].is_wrong
    assert events[STORE].is_done != (finding is Finding.BEHIND)


def look(snapshot: Snapshot) -> AssessedTransaction:
    """Return the one transaction of a cluster that was read twice, so that what contradicts is settled."""
    state = advance(advance(ConsoleState(), snapshot), read_again(snapshot))
    (each,) = state.transactions
    return each


def read_row(state: str, row: StoredState, writer: ProducerIdAndEpoch = WRITER) -> Snapshot:
    return make_snapshot(describe(state=state, writer=writer, age_ms=2_000_000), stores=[make_store(row)])


WORKER = f"loud/w/{'a' * 16}/0"


def read_batch(state: str, writer: ProducerIdAndEpoch) -> Snapshot:
    prefix = make_prefix("loud", Participant(transactional_id=WORKER, identity=WRITER))
    return make_snapshot(describe(WORKER, state, writer, age_ms=2_000_000), prefixes=[prefix])


HAS = make_row(state=WRITER)
HAS_OLDER = make_row(state=pair(5, 1), settled=True)
NEXT = pair(5, 4)


@pytest.mark.parametrize(
    ("snapshot", "says", "other_side", "coordinator"),
    [
        (read_row("Ongoing", HAS), "has committed it. Its writer", "committed", "decision (missing)"),
        (
            read_row("Ongoing", HAS_OLDER),
            "has not committed it",
            "not committed",
            "decision (missing)",
        ),
        (
            read_row("CompleteAbort", HAS, NEXT),
            "The database has committed it, and",
            "committed, wrong",
            "aborted, wrong",
        ),
        (
            read_row("CompleteCommit", HAS_OLDER, pair(5, 9)),
            "The cluster has committed a later one, which the database does not have",
            "not committed, wrong",
            "committed, wrong",
        ),
        (
            read_row("Ongoing", make_row(state=pair(5, 9))),
            "The database has committed what the cluster has not come to",
            "committed, wrong",
            "decision (missing)",
        ),
        (
            read_row("Ongoing", replace(make_row(), known=False)),
            "this database has never had the id",
            "has never had the id, wrong",
            "decision (missing)",
        ),
        (
            read_row("PrepareAbort", HAS_OLDER, NEXT),
            "It is aborted",
            "not committed",
            "abort decided",
        ),
        (read_row("PrepareCommit", HAS, NEXT), "It is committed", "committed", "committed"),
        (
            read_batch("Ongoing", WRITER),
            "Part of the last decision",
            "decided",
            "decision (missing)",
        ),
        (
            read_batch("CompleteAbort", NEXT),
            "aborted by the cluster: its rows may be missing",
            "decided, wrong",
            "aborted, wrong",
        ),
        (
            read_batch("Empty", pair(5, 9)),
            "no longer known: its rows may be missing",
            "decided, wrong",
            "no longer known, wrong",
        ),
    ],
)
def test_each_verdict_is_drawn_as_its_sentence_says(
    snapshot: Snapshot, says: str, other_side: str, coordinator: str
) -> None:
    """Wanted: "Each verdict of the rules is drawn once in a test and compared with its sentence"."""
    each = look(snapshot)
    assert says in each.assessment.reason
    drawn = {
        event.row: event.text + ", wrong" * event.is_wrong
        for event in list_events(each)
        if event.label != "begun" and not event.row.startswith("orders")
    }
    assert list(drawn.values()) == [other_side, coordinator]


def test_what_hangs_is_drawn_without_an_end() -> None:
    case = make_case(HangingFinding.UNKNOWN_PRODUCER_ID, None, pair(77, 0), verdict=HangingVerdict.HANGING)
    each = look(make_snapshot(cases=[case]))
    assert "Nothing will end it" in each.assessment.reason
    (_, marker) = list_events(each)
    assert (marker.label, marker.is_done, marker.is_wrong) == ("marker", False, True)
