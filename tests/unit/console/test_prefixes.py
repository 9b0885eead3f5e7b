"""Decisions of topics and databases on one list."""

from tallystick.console.collect.decision_reader import join_prefixes
from tallystick.console.model.snapshot import PrefixFacts, StoreFacts, StoreKind
from tallystick.kernel.value import replace
from tallystick.spark.protocol.committable import Decision, DecisionNote

DECISION = Decision(nonce="n", participants=(), transaction_version=2, decided_ms=0)
NOTE = DecisionNote(number=3, description="batch 3")


def facts(
    prefix: str, source: str, *, decision: Decision | None = DECISION, note: DecisionNote | None = None
) -> PrefixFacts:
    return PrefixFacts(prefix=prefix, source=source, decision=decision, is_complete=True, note=note)


def store(*prefixes: PrefixFacts) -> StoreFacts:
    return StoreFacts(name="shop", kind=StoreKind.SQL, prefixes=prefixes)


def test_a_decision_in_a_database_has_the_note_that_the_cluster_took_of_it() -> None:
    noted = facts("p", "topic", decision=None, note=NOTE)
    assert join_prefixes([noted], [store(facts("p", "shop"))]) == (facts("p", "shop", note=NOTE),)


def test_a_store_that_keeps_no_completion_has_it_from_the_cluster() -> None:
    noted = replace(facts("p", "topic", decision=None, note=NOTE), completed_nonce=DECISION.nonce)
    decided = replace(facts("p", "delta:/lake"), is_complete=False)
    (joined,) = join_prefixes([noted], [store(decided)])
    assert joined.is_complete
    other = replace(noted, completed_nonce="of another decision")
    (joined,) = join_prefixes([other], [store(decided)])
    assert not joined.is_complete


def test_a_note_of_a_database_that_is_not_read_is_shown_by_itself() -> None:
    noted = facts("p", "topic", decision=None, note=NOTE)
    assert join_prefixes([noted], [store(facts("q", "shop"))]) == (noted, facts("q", "shop"))


def test_one_prefix_in_two_places_is_shown_twice() -> None:
    joined = join_prefixes([facts("p", "topic")], [store(facts("p", "shop")), store(facts("p", "other"))])
    assert [each.source for each in joined] == ["other", "shop", "topic"]
