"""The producer of the next attempt, which a worker process opens while no task runs."""

from dataclasses import dataclass, field
from typing import Any, cast

import pytest

from tallystick.client.errors import TimedOut
from tallystick.kernel.ids import ProducerEpoch, ProducerId, ProducerIdAndEpoch
from tallystick.spark.protocol.committable import BatchLease, DecisionSummary
from tallystick.spark.protocol.transactional_ids import WorkerTransactionalId
from tallystick.spark.sink.task import next_producer
from tallystick.spark.sink.task.next_producer import AGE_S_MAX, NextProducer, OpenedProducer
from tallystick.spark.sink.task.worker_ids import WorkerIdPool

PAIR = ProducerIdAndEpoch(ProducerId(1), ProducerEpoch(0))


@dataclass
class ToyProducer:
    name: str
    refuses: bool = False
    is_initialised: bool = False
    is_closed: bool = False

    def init_transactions(self) -> None:
        if self.refuses:
            raise TimedOut("max.block.ms", 1, "InitProducerId")
        self.is_initialised = True

    def close(self) -> None:
        self.is_closed = True


@dataclass
class Worker:
    """A worker process, whose producers are toys."""

    refuses: bool = False
    is_reused: bool = True
    now_s: float = 0.0
    made: list[ToyProducer] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.ids = WorkerIdPool("p")
        self.next = NextProducer(
            self.ids, cast(Any, self.create), now_s=lambda: self.now_s, is_reused=lambda: self.is_reused
        )

    def create(self, name: WorkerTransactionalId) -> ToyProducer:
        self.made.append(ToyProducer(str(name), self.refuses))
        return self.made[-1]

    def attempt(self, lease: BatchLease) -> OpenedProducer:
        """Do what `run_attempt` does with ids and producers."""
        opened = self.next.take(lease)
        if opened is None:
            name = self.ids.acquire(lease)
            opened = OpenedProducer(name=name, producer=cast(Any, self.create(name)))
            opened.producer.init_transactions()
        self.next.open(lease, opened.producer)
        return opened


def lease(number: int, last: int | None) -> BatchLease:
    decided = None if last is None else DecisionSummary(nonce=f"n{last}", query_id="q", batch_id=last)
    return BatchLease(nonce=f"n{number}", coordinator=PAIR, transaction_version=2, last_decision=decided)


def test_no_id_is_initialised_that_may_have_a_vote_or_be_in_the_last_decision() -> None:
    """[SPK-23] Whether the batch of the attempt is decided or not is open when the next id is initialised."""
    worker = Worker()
    used: list[str] = []
    for number in range(12):
        used.append(str(worker.attempt(lease(number, number - 1 if number else None)).name))
        worker.next._join()
        assert worker.made[-1].is_initialised
        assert worker.made[-1].name not in used[-2:]
    assert [each.name for each in worker.made[:12]] == used, "each attempt had the producer opened before"
    assert len(worker.ids) == 3
    assert sum(not each.is_closed for each in worker.made) == 1


def test_two_tasks_of_a_batch_have_two_ids() -> None:
    """[SPK-20]"""
    worker = Worker()
    assert len({str(worker.attempt(lease(0, None)).name) for _ in range(3)}) == 3


def test_an_id_that_is_used_is_noted_under_the_lease_that_uses_it() -> None:
    """[SPK-23] Another task of the same batch, in the process that gets the name, must not initialise it."""
    worker = Worker()
    worker.attempt(lease(0, None))
    opened = worker.next.take(lease(1, 0))
    assert opened is not None
    assert worker.ids._name is not None
    assert worker.ids._name.last_nonces[opened.name.number] == "n1"


def test_a_name_that_is_lost_takes_its_producer_with_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """[SPK-20] The next process may have the name from then on."""
    worker = Worker()
    worker.attempt(lease(0, None))
    worker.next._join()
    assert worker.ids._name is not None

    def fail() -> None:
        raise OSError("disk full")

    monkeypatch.setattr(worker.ids._name, "save", fail)
    assert worker.next.take(lease(1, 0)) is None
    assert worker.made[-1].is_closed
    assert worker.ids.acquire(lease(1, 0)).worker not in worker.made[-1].name


def test_a_producer_that_was_opened_long_ago_is_not_used() -> None:
    worker = Worker()
    worker.attempt(lease(0, None))
    worker.next._join()
    worker.now_s = AGE_S_MAX
    assert worker.next.take(lease(1, 0)) is None
    assert worker.made[-1].is_closed


def test_a_failure_is_left_to_the_next_attempt() -> None:
    worker = Worker()
    worker.refuses = True
    worker.next.open(lease(0, None), cast(Any, ToyProducer("used")))
    assert worker.next.take(lease(1, 0)) is None
    assert [each.is_closed for each in worker.made] == [True]


def test_a_process_that_ends_with_its_task_opens_nothing() -> None:
    """[SPK-20] `spark.python.worker.reuse=false`: the next process would hold back these ids, too."""
    worker = Worker(is_reused=False)
    for number in range(3):
        worker.attempt(lease(number, number - 1 if number else None))
    assert all(each.is_closed for each in worker.made)
    assert len(worker.made) == 3
    assert len(worker.ids) == 2


def test_the_next_producer_is_connected_to_the_topics_of_the_attempt(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    connected: list[tuple[object, str]] = []
    monkeypatch.setattr(next_producer, "connect", lambda producer, topic: connected.append((producer, topic)))
    worker = Worker()
    used = ToyProducer("used")
    worker.next.open(lease(0, None), cast(Any, used), {"orders"})
    opened = worker.next.take(lease(1, 0))
    assert opened is not None
    assert connected == [(opened.producer, "orders")]


def test_closing_closes_what_no_attempt_has_taken() -> None:
    worker = Worker()
    worker.attempt(lease(0, None))
    worker.next.close()
    worker.next.close()
    assert all(each.is_closed for each in worker.made)
