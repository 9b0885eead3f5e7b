"""The drawing of a transaction and the sentence about it say the same, whatever recovery finds."""

import pytest
from tests.support.console_facts import STORE, WRITER, describe, make_row, make_snapshot, make_store

from tallystick.client.transactions.modes import Mode
from tallystick.console.model.assessment import StoreSide
from tallystick.console.model.state import ConsoleState, advance
from tallystick.console.views.timeline import TimelineEvent, list_events
from tallystick.dualwrite.rules.recovery import VERDICTS, Finding
from tallystick.kernel.value import replace


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
