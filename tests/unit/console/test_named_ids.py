"""Which ids are described although nothing of them is open."""

from hypothesis import given
from hypothesis import strategies as st

from tallystick.client.transactions.prepared import PreparedTxnState
from tallystick.console.collect.transaction_reader import DescribedId, choose_ids, list_named_ids
from tallystick.console.model.snapshot import PrefixFacts, StoreFacts, StoreKind
from tallystick.dualwrite.rules.model import StoredState
from tallystick.kernel.ids import ProducerEpoch, ProducerId, ProducerIdAndEpoch
from tallystick.kernel.value import replace
from tallystick.spark.protocol.committable import Decision, Participant

ONE = PreparedTxnState("7:1")
ROW = StoredState(transactional_id="a", owner="o", state=ONE)
names = st.sampled_from("abcdefgh")


def at(evidence: object, at_ms: int) -> DescribedId:
    return DescribedId(evidence=evidence, description=None, is_known=True, at_ms=at_ms)


def decision(name: str) -> Decision:
    identity = ProducerIdAndEpoch(ProducerId(1), ProducerEpoch(0))
    participant = Participant(transactional_id=name, identity=identity)
    return Decision(nonce="n", participants=(participant,), transaction_version=2, decided_ms=1)


def test_rows_and_decisions_name_what_may_have_to_be_finished() -> None:
    rows = {
        "a": ROW,
        "settled": replace(ROW, transactional_id="settled", settled=True),
        "empty": StoredState(transactional_id="empty", owner="o"),
    }
    stores = [StoreFacts(name="s", kind=StoreKind.SQL, rows=rows)]
    prefixes = [
        PrefixFacts(prefix="p", source="t", decision=decision("p/w/1"), is_complete=False),
        PrefixFacts(prefix="q", source="t", decision=decision("q/w/1"), is_complete=True),
        PrefixFacts(prefix="r", source="t", decision=None, is_complete=False),
    ]
    named = list_named_ids(stores, prefixes)
    assert named == {"a": (ONE, False), "settled": (ONE, False), "p/w/1": "n"}
    assert next(iter(named)) == "a"


def test_a_row_that_a_recovery_has_touched_is_another_row() -> None:
    one = list_named_ids([StoreFacts(name="s", kind=StoreKind.SQL, rows={"a": ROW})], [])
    touched = {"a": replace(ROW, completing=True)}
    assert one != list_named_ids([StoreFacts(name="s", kind=StoreKind.SQL, rows=touched)], [])


@given(
    named=st.dictionaries(names, st.integers(0, 2)),
    open_ids=st.sets(names),
    described=st.dictionaries(names, st.builds(at, st.integers(0, 2), st.integers(0, 9))),
    most=st.integers(0, 9),
)
def test_changed_ids_come_first_and_then_the_oldest(
    named: dict[str, int], open_ids: set[str], described: dict[str, DescribedId], most: int
) -> None:
    chosen = choose_ids(named, open_ids, described, count_max=most, only_changed=False)
    candidates = named.keys() - open_ids
    assert set(chosen) <= candidates
    assert len(chosen) == len(set(chosen)) == min(most, len(candidates))

    def is_changed(name: str) -> bool:
        return name not in described or described[name].evidence != named[name]

    changed = {name for name in candidates if is_changed(name)}
    assert set(chosen[: len(changed)]) <= changed
    kept = [described[name].at_ms for name in chosen if name not in changed]
    assert kept == sorted(kept)
    skipped = candidates - set(chosen) - changed
    assert all(described[name].at_ms >= max(kept, default=0) for name in skipped)
    assert set(choose_ids(named, open_ids, described, count_max=99, only_changed=True)) == changed
