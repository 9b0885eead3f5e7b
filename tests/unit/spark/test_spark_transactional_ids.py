"""Names of transactions: built, read back, and never taken for another prefix's."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.spark_values import IDENTITIES, PREFIXES

from tallystick.spark.protocol.committable import BatchLease, DecisionSummary
from tallystick.spark.protocol.transactional_ids import (
    PREFIX_LENGTH_MAX,
    WorkerTransactionalId,
    find_prefix_problems,
    format_coordinator_id,
    is_worker_id,
    parse_worker_id,
)
from tallystick.spark.sink.task.worker_ids import WorkerIdPool

WORKERS = st.text("0123456789abcdef", min_size=16, max_size=16)


@given(PREFIXES, WORKERS, st.integers(0, 999_999_999))
def test_a_worker_id_reads_back(prefix: str, worker: str, number: int) -> None:
    name = WorkerTransactionalId(prefix, worker, number)
    assert parse_worker_id(str(name)) == name


@given(PREFIXES, PREFIXES, WORKERS)
def test_an_id_belongs_to_one_prefix(prefix: str, other: str, worker: str) -> None:
    """[SPK-20] Also where one prefix begins like the other: what is swept is never somebody else's."""
    name = str(WorkerTransactionalId(prefix, worker, 0))
    assert is_worker_id(prefix, name)
    assert is_worker_id(other, name) == (other == prefix)
    nested = f"{prefix}/w/{worker}"
    assert not is_worker_id(prefix, str(WorkerTransactionalId(nested, worker, 0)))
    assert not is_worker_id(prefix, format_coordinator_id(prefix))


@pytest.mark.parametrize(
    "text", ["p", "p/coordinator", "p/w/1/0", "p/w/0123456789abcdef/01", "/w/0123456789abcdef/0", "p/w/x/0"]
)
def test_other_ids_are_no_workers(text: str) -> None:
    assert parse_worker_id(text) is None


@pytest.mark.parametrize("prefix", ["", "/a", "a/", "a//b", "a b", "ä", "a#b", "a" * (PREFIX_LENGTH_MAX + 1)])
def test_a_bad_prefix_is_named(prefix: str) -> None:
    (problem,) = find_prefix_problems(prefix)
    assert problem.startswith("transactional.id.prefix: ")


@given(PREFIXES)
def test_a_good_prefix_has_no_problem(prefix: str) -> None:
    assert list(find_prefix_problems(prefix)) == []


@given(st.lists(st.integers(1, 4), min_size=1, max_size=30), IDENTITIES)
def test_ids_are_bounded_by_two_batches(tasks: list[int], pair: object) -> None:
    """[SPK-20] [SPK-23] However many batches: twice what a process ran of the largest one."""
    ids = WorkerIdPool("p")
    decided: DecisionSummary | None = None
    before: set[str] = set()
    for batch_id, count in enumerate(tasks):
        lease = BatchLease(
            nonce=f"n{batch_id}", coordinator=pair, transaction_version=2, last_decision=decided
        )
        taken = {str(ids.acquire(lease)) for _ in range(count)}
        assert len(taken) == count
        assert not taken & before
        before, decided = taken, DecisionSummary(nonce=lease.nonce, query_id="q", batch_id=batch_id)
    assert len(ids) <= 2 * max(tasks)
