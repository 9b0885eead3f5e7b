"""The coordinator of Spark's sink on our broker, without Spark: decided, interrupted, replaced, recovered."""

import pytest
from tests.support.spark_queries import Interrupted, MuteStation, Query

from tallystick import Admin, Producer
from tallystick.admin.topics import NewTopic
from tallystick.client.transactions.modes import TxnDecision
from tallystick.kernel.ids import ProducerEpoch, ProducerId, ProducerIdAndEpoch
from tallystick.kernel.value import replace
from tallystick.spark.protocol.committable import Decision
from tallystick.spark.protocol.decide import NewCheckpoint
from tallystick.spark.protocol.errors import (
    DecisionBroken,
    NoDecisionTopic,
    PrefixTaken,
    UnknownCheckpoint,
    VoteLost,
)
from tallystick.spark.sink.driver import lease_handover
from tallystick.spark.sink.driver.recovery import resolve
from tallystick.testing import eventually

pytestmark = [pytest.mark.server]

MODES = ("2pc", "keep", "resume")


@pytest.mark.gate(1)
@pytest.mark.parametrize("mode", MODES)
def test_batch_after_batch(query: Query, mode: str) -> None:
    """[SPK-21] In each mode; begin, tasks and commit in processes of their own, as under Spark."""
    query.modes = (mode,)
    begins, commits = query.station(), query.station()
    for batch_id in range(4):
        lease = begins.begin()
        votes = [query.write(lease, batch_id), query.write(lease, batch_id), None]
        assert {vote.mode for vote in votes if vote is not None} == {mode}
        decision = commits.commit(votes, f"offsets {batch_id}")
        assert decision is not None
        assert (decision.batch_id, decision.offsets) == (batch_id, f"offsets {batch_id}")
        assert query.open_ids() == []
    again = begins.begin()
    skipped = [query.write(again, 2), query.write(again, 2)]
    assert all(vote.is_skipped and vote.participant is None for vote in skipped)
    assert commits.commit(skipped) is None


@pytest.mark.gate(1)
@pytest.mark.parametrize("mode", MODES)
def test_workers_that_are_reused_initialise_their_next_ids(
    query: Query, mode: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """[SPK-20] [SPK-23] Three ids for each of two workers, and the coordinator's; each batch is whole."""
    monkeypatch.setenv("SPARK_REUSE_WORKER", "1")
    query.modes = (mode,)
    begins, commits = query.station(), query.station()
    workers = [query.station(), query.station()]
    for batch_id in range(6):
        lease = begins.begin()
        votes = [query.write(lease, batch_id, station=worker) for worker in workers]
        assert all(vote.last_nonce == lease.last_nonce for vote in votes)
        assert commits.commit(votes) is not None
        assert query.open_ids() == []
    assert query.committed() == 6 * (20 + 2)
    assert sum(len(worker.worker_ids) for worker in workers) == 6


def test_a_worker_of_a_lost_lease_writes_under_the_id_it_had_initialised_and_gives_it_up(
    query: Query, monkeypatch: pytest.MonkeyPatch
) -> None:
    """[SPK-28] It looks only after its prepare, and leaves nothing open; the newer batch is whole."""
    monkeypatch.setenv("SPARK_REUSE_WORKER", "1")
    driver, worker = query.station(), query.station()
    lease = driver.begin()
    driver.commit([query.write(lease, 0, station=worker)])
    late = driver.begin()
    newer = query.station()
    newer.commit([query.write(newer.begin(), 1)])
    with pytest.raises(PrefixTaken):
        query.write(late, 1, station=worker)
    assert query.open_ids() == []
    assert query.committed() == 11 + 11 + 11  # with a marker each; the late rows are aborted


@pytest.mark.gate(1)
@pytest.mark.parametrize("mode", MODES)
def test_what_was_decided_is_completed_by_the_next_driver(query: Query, mode: str) -> None:
    """[SPK-21] [SPK-23] In 2pc and keep as another incarnation of each id (KIP-939), in resume by EndTxn."""
    query.modes = (mode,)
    query.decide_and_die()
    assert len(query.open_ids()) == 2
    assert query.committed() == 0
    lease = query.station().begin()
    assert query.open_ids() == []
    assert query.committed() == 22  # two markers
    assert lease.last_decision is not None
    assert lease.last_decision.batch_id == 0


def test_a_batch_in_doubt_is_finished_in_a_stronger_mode(query: Query) -> None:
    """Stopped in `resume`, two-phase commit enabled on the cluster, started again: code unchanged."""
    query.modes = ("resume",)
    query.decide_and_die()
    query.modes = ("2pc", "resume")
    driver = query.station()
    lease = driver.begin()
    assert query.committed() == 22
    votes = [query.write(lease, 1)]
    assert votes[0].mode == "2pc"
    driver.commit(votes)
    assert query.open_ids() == []


@pytest.mark.parametrize("mode", ["2pc", "keep"])
def test_a_recovery_that_dies_half_way_is_recovered_again(query: Query, mode: str) -> None:
    """[SPK-23] It completed one id, which moved on by two, and only kept the other: nothing was noted."""
    query.modes = (mode,)
    votes = query.decide_and_die()
    first, second = (vote.participant for vote in votes)
    assert first is not None
    assert second is not None
    station = query.station()
    assert station.run(station.participants.recover([first], 2, TxnDecision.COMMIT), "recover") == {}
    keep(query, second.transactional_id)
    lease = query.station().begin()
    assert query.open_ids() == []
    assert query.committed() == 22
    assert lease.last_decision is not None


def keep(query: Query, transactional_id: str) -> None:
    """Become the id's client (KIP-939), and leave what is open: its own pair ends it no more."""
    settings = {
        "bootstrap.servers": query.bootstrap,
        "transactional.id": transactional_id,
        "tallystick.modes": ",".join(query.modes),
        "transaction.two.phase.commit.enable": str("2pc" in query.modes).lower(),
    }
    with Producer(settings) as producer:
        producer.init_transactions(keep_prepared_txn=True)


def test_a_recovery_leaves_what_it_was_not_asked_for_alone(query: Query) -> None:
    """[SPK-28] KIP-939's recipe would abort it; here it may be what a newer driver has decided on."""
    driver = query.station()
    lease = driver.begin()
    vote = query.write(lease, 0)
    assert vote.participant is not None
    another = replace(vote.participant, identity=ProducerIdAndEpoch(ProducerId(9), ProducerEpoch(9)))
    failures = driver.run(driver.participants.recover([another], 2, TxnDecision.COMMIT), "recover")
    assert "no longer what is open" in str(failures[another.transactional_id])
    driver.commit([vote])
    assert query.open_ids() == []
    assert query.committed() == 11


def test_a_transaction_that_was_kept_and_not_decided_is_aborted(query: Query) -> None:
    """[SPK-26] By the next start, though its own pair may no longer end it."""
    lease = query.station().begin()
    vote = query.write(lease, 0)
    assert vote.participant is not None
    keep(query, vote.participant.transactional_id)
    query.station().begin()
    assert query.open_ids() == []


def test_what_stops_settles_its_own_batch_and_no_other(query: Query) -> None:
    """[PIP-1] [SPK-25] A rolling deployment: the new instance is in a batch when the old one is stopped.

    The old one is idle, or was replaced in the middle of a batch and has not noticed.
    """
    old, new = query.station(), query.station()
    stale = old.begin()
    old.commit([query.write(stale, 0)])
    for batch_id, left in ((1, None), (2, stale)):
        lease = new.begin()
        votes = [query.write(lease, batch_id)]
        if left is not None:
            lease_handover.keep_in_memory(old.options, left)
        lease_handover.abort_unfinished_batch(old)
        assert new.commit(votes) is not None
    assert query.open_ids() == []


def test_what_stops_in_a_batch_leaves_nothing_open(query: Query) -> None:
    """[PIP-1] Its tasks have told nothing; one that is late finds that out by itself."""
    station = query.station()
    lease = station.begin()
    lease_handover.keep_in_memory(station.options, lease)
    query.write(lease, 0)
    lease_handover.abort_unfinished_batch(query.station())
    assert query.open_ids() == []
    assert lease_handover.find_lease(station.options) is None
    with pytest.raises(PrefixTaken):
        query.write(lease, 0)


def test_a_driver_that_was_replaced_looks_before_it_claims(query: Query) -> None:
    """[SPK-25] With another checkpoint it would only fence its successor: its own tasks are refused."""
    zombie, query.on_new = query.station(), NewCheckpoint.RESTART
    zombie.commit([query.write(zombie.begin(query_id="q"), 0)])
    live = query.station()
    lease = live.begin(query_id="newer")
    live.commit([query.write(lease, 0, query_id="newer")])
    lease = live.begin(query_id="newer")
    votes = [query.write(lease, 1, query_id="newer")]
    with pytest.raises(UnknownCheckpoint):
        zombie.begin(query_id="q")
    assert live.commit(votes) is not None


@pytest.mark.gate(0)
def test_a_decision_that_the_cluster_aborted_is_reported_until_it_is_accepted(query: Query) -> None:
    """The timeout hole without two-phase commit: never hidden, and never repaired in silence."""
    query.modes, query.timeout_ms = ("resume",), 1_000
    driver = query.station(MuteStation)
    lease = driver.begin()
    votes = [query.write(lease, 0)]
    with pytest.raises(Interrupted):
        driver.commit(votes)
    eventually(lambda: query.open_ids() == [], deadline_s=30)
    for _ in range(2):
        with pytest.raises(DecisionBroken, match="aborted by the cluster"):
            query.station().begin()
    client = {"bootstrap.servers": query.bootstrap, "tallystick.modes": "resume"}
    assert len(resolve(query.prefix, client, retire=True).lost_ids) == 1
    assert query.station().begin().last_decision is None


def test_a_transaction_that_ended_before_the_decision_is_not_decided_on(query: Query) -> None:
    """[SPK-21] An operator, a timeout: the batch is written again."""
    driver = query.station()
    lease = driver.begin()
    votes = [query.write(lease, 0), query.write(lease, 0)]
    one = votes[1].participant
    assert one is not None
    driver.run(driver.participants.end([one], 2, TxnDecision.ABORT), "an operator")
    with pytest.raises(VoteLost, match="1 of 2 prepared"):
        driver.commit(votes)
    driver.try_abort(votes)
    assert query.open_ids() == []


def test_a_driver_that_was_replaced_is_told(query: Query) -> None:
    """[SPK-25] Neither its commit nor its abort changes anything, and its late tasks write nothing."""
    old, new = query.station(), query.station()
    lease = old.begin()
    votes = [query.write(lease, 0)]
    newer = new.begin()
    mine = [query.write(newer, 0)]
    with pytest.raises((PrefixTaken, VoteLost)):
        old.commit(votes)
    old.try_abort(votes)
    with pytest.raises(PrefixTaken):
        query.write(lease, 0)
    assert new.commit(mine) is not None
    assert query.committed() == 22  # the old driver's rows and their marker among them


def test_a_decision_under_a_lease_that_ended_is_refused_by_the_log(query: Query) -> None:
    """[SPK-25] Even where nothing else is looked at first."""
    old = query.station()
    lease = old.begin()
    query.station().begin()
    decision = Decision(nonce="late", participants=(), transaction_version=2, decided_ms=0)
    with pytest.raises(PrefixTaken):
        old.run(old.decisions.append(decision, lease.coordinator, 2), "decide")
    assert old.run(old.decisions.read(), "read").decision is None


def test_a_query_that_is_new_to_the_prefix_does_no_harm(query: Query) -> None:
    """[SPK-22] A mistyped prefix: who can tell its query beforehand is refused before it claims anything."""
    driver = query.station()
    driver.commit([query.write(driver.begin(query_id="q"), 0)])
    lease = driver.begin()
    votes = [query.write(lease, 1)]
    with pytest.raises(UnknownCheckpoint, match="the last decision is batch 0 of query q"):
        query.station().begin(query_id="mistyped")
    assert driver.commit(votes) is not None


def test_an_abort_ends_what_did_not_vote_as_well(query: Query) -> None:
    """A clean stop leaves nothing undecided, as far as one task has voted."""
    driver = query.station()
    lease = driver.begin()
    votes = [query.write(lease, 0), None]
    query.write(lease, 0)
    assert len(query.open_ids()) == 2
    driver.try_abort(votes)
    assert query.open_ids() == []


def test_another_prefix_holds_up_no_query(query: Query) -> None:
    """[SPK-24] Its transaction is open in the topic of decisions, for as long as it likes."""
    query.station().begin()
    config = {
        "bootstrap.servers": query.bootstrap,
        "transactional.id": f"{query.prefix}-other",
        "transaction.two.phase.commit.enable": "true",
    }
    with Producer(config) as other:
        other.init_transactions()
        other.begin_transaction()
        other.send("__tallystick_decisions", b"{}", b"other").result(10)
        driver = query.station()
        lease = driver.begin()
        assert driver.commit([query.write(lease, 0)]) is not None
        again = query.station().begin()
        assert again.last_decision is not None
        assert again.last_decision.nonce == lease.nonce
        other.abort_transaction()


def test_a_topic_that_forgets_decisions_is_refused(query: Query) -> None:
    with Admin({"bootstrap.servers": query.bootstrap}) as admin:
        admin.create_topics([NewTopic(name="forgetful", partitions=1)]).all()
    client = {"bootstrap.servers": query.bootstrap}
    with pytest.raises(NoDecisionTopic, match=r"cleanup\.policy=delete"):
        resolve(query.prefix, client, dry_run=True, decisions="forgetful")


def test_a_missing_topic_that_cannot_be_made_is_named_with_the_command(query: Query) -> None:
    """A broker refuses names that differ only in `.` and `_`: any refusal of a grant looks the same here."""
    with Admin({"bootstrap.servers": query.bootstrap}) as admin:
        admin.create_topics([NewTopic(name="made.before", partitions=1)]).all()
    client = {"bootstrap.servers": query.bootstrap}
    with pytest.raises(
        NoDecisionTopic, match=r"made_before.* does not exist .*tallystick topics create --topic made_"
    ):
        resolve(query.prefix, client, decisions="made_before")


def test_who_looks_makes_no_topic(query: Query) -> None:
    """And finds nothing, which is not an error."""
    client = {"bootstrap.servers": query.bootstrap}
    found = resolve(query.prefix, client, dry_run=True, decisions="nobody.decided.here")
    assert (found.decision, found.undecided_ids) == (None, ())
    with Admin(client) as admin:
        assert "nobody.decided.here" not in admin.list_topics()


def test_a_topic_that_takes_no_decision_is_refused(query: Query) -> None:
    """Every produce to it would fail, the first one after all tasks have written."""
    config = {"cleanup.policy": "compact", "min.insync.replicas": "2"}
    with Admin({"bootstrap.servers": query.bootstrap}) as admin:
        admin.create_topics([NewTopic(name="unwritable", partitions=1, config=config)]).all()
    client = {"bootstrap.servers": query.bootstrap}
    with pytest.raises(NoDecisionTopic, match=r"has 1 replicas and min\.insync\.replicas=2"):
        resolve(query.prefix, client, dry_run=True, decisions="unwritable")


def test_the_pair_of_the_coordinator_is_never_two_phase(query: Query) -> None:
    """It times out after ten seconds, so that a driver that died while deciding holds up nobody for long."""
    driver = query.station()
    held = driver.begin().coordinator
    assert isinstance(held, ProducerIdAndEpoch)
    with Admin({"bootstrap.servers": query.bootstrap}) as admin:
        name = f"{query.prefix}/coordinator"
        found = admin.describe_transactions([name]).one(name)
    assert (found.timeout_ms, found.writer) == (10_000, held)
