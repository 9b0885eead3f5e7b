"""What has changed between two snapshots, and for whom the log still reaches back."""

from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tallystick.admin.model import GroupDescription, OpenTransaction, TransactionDescription
from tallystick.admin.txn.hanging import HangingCase, HangingFinding, HangingVerdict
from tallystick.client.net.metadata import Node
from tallystick.client.settings.config import Address
from tallystick.client.transactions.prepared import PreparedTxnState
from tallystick.console.model.events import SAME_KIND_MAX, EventKind, EventLog
from tallystick.console.model.snapshot import (
    ClusterFacts,
    GroupFacts,
    PartStatus,
    PipelineFacts,
    PrefixFacts,
    Snapshot,
    StoreFacts,
    StoreKind,
    TransactionFacts,
)
from tallystick.dualwrite.rules.model import StoredState
from tallystick.kernel.ids import ProducerEpoch, ProducerId, ProducerIdAndEpoch, TopicPartition
from tallystick.kernel.value import replace
from tallystick.spark.protocol.committable import Decision, JobChecksums

AT = TopicPartition("orders", 0)


def writer(epoch: int = 0) -> ProducerIdAndEpoch:
    return ProducerIdAndEpoch(ProducerId(7), ProducerEpoch(epoch))


def described(
    name: str, state: str = "Ongoing", started_ms: int = 5, epoch: int = 0
) -> TransactionDescription:
    return TransactionDescription(
        transactional_id=name,
        coordinator=1,
        state=state,
        writer=writer(epoch),
        timeout_ms=None,
        started_ms=started_ms,
        partitions=frozenset({AT}),
    )


HANGING = HangingCase(
    transaction=OpenTransaction(
        partition=AT, writer=writer(), coordinator_epoch=None, start_offset=4, last_timestamp_ms=None
    ),
    finding=HangingFinding.UNKNOWN_PRODUCER_ID,
    verdict=HangingVerdict.HANGING,
    description=None,
    idle_ms=None,
    open_ms=None,
)


class Story:
    """Snapshots one after the other, and the events of each."""

    def __init__(self, **settings: Any) -> None:
        self.log = EventLog(**settings)
        self.snapshot = Snapshot()

    def next(self, **parts: Any) -> list[tuple[EventKind, str]]:
        """Read these parts: values for a whole reading, texts for a failure, None for one that is away."""
        number = self.snapshot.number + 1
        for name, part in parts.items():
            self._read(name, part, number)
        self.snapshot = replace(self.snapshot, number=number, at_ms=number)
        known = self.log.next_number
        self.log = self.log.advance(self.snapshot)
        self.last = [event for event in self.log.events if event.number >= known]
        return [(event.kind, event.subject) for event in self.last]

    def _read(self, name: str, part: Any, at_ms: int) -> None:
        if part is None:
            before = getattr(self.snapshot, name)
            status = replace(before.status, away_since_ms=at_ms, failures=("no answer",))
            part = replace(before, status=status)
        elif part.status.failures:
            part = replace(part, status=replace(part.status, read_ms=at_ms, tried_ms=at_ms))
        else:
            part = replace(part, status=PartStatus(read_ms=at_ms, tried_ms=at_ms))
        self.snapshot = replace(self.snapshot, **{name: part})


def opened(*descriptions: TransactionDescription, **more: Any) -> TransactionFacts:
    return TransactionFacts(descriptions={each.transactional_id: each for each in descriptions}, **more)


def test_a_transaction_from_its_beginning_to_its_end() -> None:
    story = Story()
    assert story.next(transactions=opened()) == []
    assert story.next(transactions=opened(described("a"))) == [(EventKind.BEGUN, "a")]
    assert story.next(transactions=opened(described("a"))) == []
    # KIP-890: the epoch of the markers is the next one.
    assert story.next(transactions=opened(described("a", "PrepareCommit", epoch=1))) == [
        (EventKind.DECIDED, "a")
    ]
    assert story.next(transactions=opened()) == [(EventKind.ENDED, "a")]
    assert story.last[0].text == "a has committed a transaction."


@pytest.mark.parametrize(
    ("state", "word"), [("CompleteCommit", "committed"), ("CompleteAbort", "aborted"), ("Empty", "ended")]
)
def test_how_it_ended_is_told_by_the_description_of_a_named_id(state: str, word: str) -> None:
    story = Story()
    story.next(transactions=opened(described("a")))
    assert story.next(transactions=opened(described("a", state))) == [(EventKind.ENDED, "a")]
    assert word in story.last[0].text


@pytest.mark.parametrize(
    "next_one", [described("a", started_ms=9, epoch=1), described("a", "PrepareAbort", started_ms=9)]
)
def test_the_next_transaction_of_an_id_is_another_one(next_one: TransactionDescription) -> None:
    story = Story()
    story.next(transactions=opened(described("a")))
    kinds = [kind for kind, _ in story.next(transactions=opened(next_one))]
    assert kinds[:2] == [EventKind.ENDED, EventKind.BEGUN]


def test_what_is_open_at_the_start_has_not_just_begun() -> None:
    assert Story().next(transactions=opened(described("a"))) == []


def test_what_hangs_is_told_once() -> None:
    story = Story()
    story.next(transactions=opened())
    assert story.next(transactions=opened(cases=(HANGING,))) == [(EventKind.HANGING, "orders-0")]
    assert story.next(transactions=opened(cases=(HANGING,))) == []


def test_what_a_broker_that_is_down_would_have_listed_has_not_ended() -> None:
    """And it has not begun when the broker is back."""
    story = Story()
    story.next(transactions=opened(described("a"), described("b")))
    partial = TransactionFacts(
        status=PartStatus(failures=("broker 2: no answer",)), descriptions={"b": described("b")}
    )
    assert story.next(transactions=partial) == []
    assert story.next(transactions=None) == [(EventKind.AWAY, "the cluster")]
    assert story.next(transactions=opened(described("a"), described("c"))) == [
        (EventKind.BACK, "the cluster"),
        (EventKind.ENDED, "b"),
        (EventKind.BEGUN, "c"),
    ]


def test_a_store_that_is_away_is_told_once_and_when_it_is_back() -> None:
    def store(*rows: StoredState) -> StoreFacts:
        found = {row.transactional_id: row for row in rows}
        return StoreFacts(
            name="shop", kind=StoreKind.SQL, rows=found, status=PartStatus(read_ms=3, tried_ms=3)
        )

    away = replace(store(), status=PartStatus(read_ms=3, tried_ms=4, away_since_ms=4, failures=("refused",)))
    log = EventLog().advance(Snapshot(number=1, stores=(store(),)))
    log = log.advance(Snapshot(number=2, stores=(away,)))
    log = log.advance(Snapshot(number=3, stores=(away,)))
    row = StoredState(transactional_id="a", owner="o", state=PreparedTxnState("7:1"))
    back = replace(store(row), status=PartStatus(read_ms=9, tried_ms=9))
    log = log.advance(Snapshot(number=4, stores=(back,)))
    assert [event.kind for event in log.events] == [EventKind.AWAY, EventKind.BACK, EventKind.DECIDED]
    assert log.events[0].text == "shop cannot be read: refused"
    assert log.events[2].text == "shop has committed 7:1 of a."


def test_a_store_that_was_never_there_is_told() -> None:
    away = StoreFacts(
        name="shop", kind=StoreKind.SQL, status=PartStatus(tried_ms=4, away_since_ms=4, failures=("refused",))
    )
    log = EventLog().advance(Snapshot(number=1, stores=(away,)))
    log = log.advance(Snapshot(number=2, stores=(away,)))
    assert [event.kind for event in log.events] == [EventKind.AWAY]


def decided(nonce: str, batch: int, *, query: str = "q", is_complete: bool = False) -> PipelineFacts:
    decision = Decision(
        nonce=nonce,
        participants=(),
        transaction_version=2,
        decided_ms=1,
        query_id=query,
        batches=(JobChecksums(batch, ()),),
    )
    return PipelineFacts(
        prefixes=(PrefixFacts(prefix="p", source="t", decision=decision, is_complete=is_complete),)
    )


def test_decisions_of_a_query_and_a_batch_that_is_decided_again() -> None:
    story = Story()
    story.next(pipelines=decided("a", 1))
    assert story.next(pipelines=decided("a", 1, is_complete=True)) == [(EventKind.COMPLETED, "p")]
    assert story.next(pipelines=decided("b", 2, is_complete=True)) == [
        (EventKind.DECISION, "p"),
        (EventKind.COMPLETED, "p"),
    ]
    assert story.next(pipelines=decided("c", 2)) == [(EventKind.REPLAYED, "p")]
    assert story.next(pipelines=decided("d", 0, query="another")) == [(EventKind.DECISION, "p")]


def test_a_decision_that_a_store_shows_between_two_readings_of_the_topics_is_not_lost() -> None:
    """Decisions of stores join the part of the topics, whose reading is not a new one then."""
    story = Story()
    story.next(pipelines=decided("a", 1))
    story.snapshot = replace(
        story.snapshot, pipelines=replace(story.snapshot.pipelines, prefixes=decided("b", 2).prefixes)
    )
    assert story.next() == []
    assert story.next(pipelines=decided("b", 2)) == [(EventKind.DECISION, "p")]


def test_groups_and_brokers_that_come_go_and_change() -> None:
    def group(state: str) -> GroupDescription:
        return GroupDescription(
            group_id="g", coordinator=1, state=state, type="classic", assignor="", members=()
        )

    def groups(**states: str) -> GroupFacts:
        found: Mapping[str, GroupDescription] = {name: group(state) for name, state in states.items()}
        return GroupFacts(groups=found)

    story = Story()
    story.next(groups=groups(a="Stable", b="Stable"))
    assert story.next(groups=groups(a="Empty", c="Stable")) == [
        (EventKind.GROUP, "a"),
        (EventKind.GROUP, "b"),
        (EventKind.GROUP, "c"),
    ]
    nodes = [Node(id=number, address=Address("h", number)) for number in (1, 2)]
    story.next(cluster=ClusterFacts(brokers=tuple(nodes)))
    assert story.next(cluster=ClusterFacts(brokers=(nodes[0],))) == [(EventKind.BROKER, "2")]
    assert story.next(cluster=None) == [(EventKind.AWAY, "the cluster")]
    assert story.next(cluster=ClusterFacts(brokers=tuple(nodes))) == [
        (EventKind.BACK, "the cluster"),
        (EventKind.BROKER, "2"),
    ]
    story.next(cluster=ClusterFacts(brokers=tuple(nodes), cluster_id="a"))
    assert story.next(cluster=ClusterFacts(brokers=tuple(nodes), cluster_id="b")) == [
        (EventKind.BROKER, "the cluster")
    ]


def test_many_changes_of_one_kind_are_one_event() -> None:
    story = Story()
    story.next(transactions=opened())
    many = [described(f"t-{number}") for number in range(SAME_KIND_MAX + 1)]
    assert story.next(transactions=opened(*many, cases=(HANGING,))) == [
        (EventKind.BEGUN, ""),
        (EventKind.HANGING, "orders-0"),
    ]
    assert story.last[0].text == f"{SAME_KIND_MAX + 1} times: begun."


@given(
    first=st.integers(0, 10),
    steps=st.lists(st.integers(0, 3), max_size=12),
    capacity=st.integers(1, 5),
    asked=st.integers(-1, 40),
)
def test_who_was_away_gets_all_later_events_or_is_told_that_some_are_lost(
    first: int, steps: list[int], capacity: int, asked: int
) -> None:
    story = Story(next_number=first, capacity=capacity)
    story.next(transactions=opened())
    for index, count in enumerate(steps):
        story.next(transactions=opened(*(described(f"{index}-{n}") for n in range(count))))
    log = story.log
    assert len(log.events) <= capacity
    numbers = [event.number for event in log.events]
    assert numbers == list(range(log.next_number - len(numbers), log.next_number))
    told = log.list_since(asked)
    if told is None:
        oldest = numbers[0] if numbers else log.next_number
        assert asked < oldest - 1 or asked >= log.next_number
    else:
        assert [event.number for event in told] == list(range(asked + 1, log.next_number))
