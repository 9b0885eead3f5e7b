"""Spark's sink on Apache Kafka, without Spark: batches, takeovers, and the timeout hole of `resume`."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.support.spark_queries import Interrupted, MuteStation, Query
from tools.servers import apache_kafka

from tallystick import Admin, Producer
from tallystick.spark.protocol.committable import Decision
from tallystick.spark.protocol.errors import DecisionBroken, PrefixTaken, VoteLost
from tallystick.spark.sink.driver.recovery import resolve
from tallystick.testing import eventually

pytestmark = [pytest.mark.kafka, pytest.mark.server]

SETTINGS = {
    "unstable.api.versions.enable": "true",
    "transaction.two.phase.commit.enable": "true",
    "transaction.state.log.num.partitions": "3",
    "transaction.abort.timed.out.transaction.cleanup.interval.ms": "200",
}


@pytest.fixture(scope="module")
def bootstrap(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    if (lack := apache_kafka.find_missing()) is not None:
        pytest.skip(lack)
    directory: Path = tmp_path_factory.mktemp("kafka")
    with apache_kafka.ApacheKafka(directory=directory, settings=SETTINGS) as running:
        yield running.bootstrap


@pytest.fixture(params=["resume", "2pc,resume"])
def query(bootstrap: str, request: pytest.FixtureRequest) -> Iterator[Query]:
    made = Query(bootstrap, modes=tuple(request.param.split(",")))
    made.make_topic()
    yield made
    made.close()


@pytest.mark.gate(0)
def test_batch_after_batch(query: Query) -> None:
    """[SPK-21] And one that comes again is skipped."""
    begins, commits = query.station(), query.station()
    for batch_id in range(4):
        lease = begins.begin()
        assert commits.commit([query.write(lease, batch_id), query.write(lease, batch_id)]) is not None
        assert query.open_ids() == []
    again = begins.begin()
    assert commits.commit([query.write(again, 3), query.write(again, 3)]) is None


def test_what_was_decided_is_completed_by_the_next_driver(query: Query) -> None:
    """[SPK-21]"""
    query.decide_and_die()
    assert (len(query.open_ids()), query.committed()) == (2, 0)
    query.station().begin()
    assert query.open_ids() == []
    eventually(lambda: query.committed() == 22)  # Apache Kafka answers before all markers are written


def test_a_driver_that_was_replaced_is_told(query: Query) -> None:
    """[SPK-25]"""
    old, new = query.station(), query.station()
    lease = old.begin()
    votes = [query.write(lease, 0)]
    mine = [query.write(new.begin(), 0)]
    with pytest.raises((PrefixTaken, VoteLost)):
        old.commit(votes)
    late = Decision(nonce="late", participants=(), transaction_version=2, decided_ms=0)
    with pytest.raises(PrefixTaken):
        old.run(old.decisions.append(late, lease.coordinator, 2), "decide")
    old.try_abort(votes)
    assert new.commit(mine) is not None


def test_an_abort_ends_what_did_not_vote_as_well(query: Query) -> None:
    driver = query.station()
    lease = driver.begin()
    votes = [query.write(lease, 0), None]
    query.write(lease, 0)
    driver.try_abort(votes)
    assert query.open_ids() == []


@pytest.mark.parametrize("query", ["2pc,resume"], indirect=True)
def test_under_two_phase_commit_no_clock_ends_what_was_decided(query: Query) -> None:
    """[SPK-21] Enable2Pc without KeepPreparedTxn. A transaction without it, of the same age, is the clock."""
    query.timeout_ms = 2_000
    driver = query.station(MuteStation)
    votes = [query.write(driver.begin(), 0)]
    with pytest.raises(Interrupted):
        driver.commit(votes)
    config = {"bootstrap.servers": query.bootstrap, "transactional.id": "clock", "tallystick.modes": "resume"}
    with (
        Admin({"bootstrap.servers": query.bootstrap}) as admin,
        Producer({**config, "transaction.timeout.ms": 2_000}) as clock,
    ):
        clock.init_transactions()
        clock.begin_transaction()
        clock.send(f"clock-of-{query.topic}", b"")
        clock.prepare_transaction()
        eventually(
            lambda: admin.describe_transactions(["clock"]).all()["clock"].state == "CompleteAbort",
            deadline_s=60,
        )
        clock.close(abort=False)
    assert len(query.open_ids()) == 1
    query.station().begin()
    eventually(lambda: query.committed() == 11)


@pytest.mark.gate(0)
@pytest.mark.parametrize("query", ["resume"], indirect=True)
def test_the_timeout_hole_is_reported_until_it_is_accepted(query: Query) -> None:
    """A decided transaction that Kafka aborts by its clock is lost, and is said to be."""
    query.timeout_ms = 2_000
    driver = query.station(MuteStation)
    votes = [query.write(driver.begin(), 0)]
    with pytest.raises(Interrupted):
        driver.commit(votes)
    eventually(lambda: query.open_ids() == [], deadline_s=60)
    for _ in range(2):
        with pytest.raises(DecisionBroken, match="aborted by the cluster"):
            query.station().begin()
    client = {"bootstrap.servers": query.bootstrap, "tallystick.modes": "resume"}
    assert len(resolve(query.prefix, client, retire=True).lost_ids) == 1
    assert query.station().begin().last_decision is None
