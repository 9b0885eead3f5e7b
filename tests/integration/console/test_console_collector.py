"""The collector with a broker and databases that come and go."""

import asyncio
import socket
from collections.abc import Iterator
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import create_engine
from tests.support.broker_with_logins import run_broker_with_logins
from tests.support.collecting import QUICK_PACES, Watch, watch
from tests.support.dual_world import Crash, Crashed, new_name
from tests.support.hanging import hang
from tests.support.raw_producer import RawProducer, make_topic
from tests.support.spark_queries import Query

from tallystick.admin.acls import Acl
from tallystick.admin.aio import Admin
from tallystick.admin.topics import NewTopic
from tallystick.admin.txn.hanging import HangingVerdict
from tallystick.aio import Producer
from tallystick.client.offsets import OffsetAndMetadata
from tallystick.console.collect.config import CollectorConfig, Pace
from tallystick.console.model.snapshot import NEVER_MS, PrefixFacts, Snapshot
from tallystick.console.web.listen import ListenOptions, format_address, open_listener
from tallystick.dualwrite import DualWriter, SqlStore
from tallystick.kernel.ids import TopicPartition
from tallystick.kernel.value import replace
from tallystick.protocol.acls import AclOperation, AclResource
from tallystick.testing import EmbeddedBroker

pytestmark = [pytest.mark.server, pytest.mark.broker(transaction_partition_verification_enable=False)]

AT = TopicPartition("t", 0)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[SqlStore]:
    engine = create_engine(f"sqlite:///{tmp_path}/shop.db")
    store = SqlStore(engine)
    store.create()
    yield store
    engine.dispose()


def config_of(broker: EmbeddedBroker, *urls: str, **more: Any) -> CollectorConfig:
    client = {"bootstrap.servers": broker.bootstrap_servers, "reconnect.backoff.max.ms": 100}
    return CollectorConfig.check(client, urls, **{"paces": QUICK_PACES, "publish_ms": 10, **more})


def die_after(step: str, store: Any, config: dict[str, object]) -> None:
    """Send one record in a dual write, and be gone after a step."""
    crash = Crash(at=step)
    with closing(DualWriter(store, config, watch=crash)) as writer:
        with suppress(Crashed):
            writer.recover()
            with writer.transaction() as txn:
                txn.send(str(config["transactional.id"]), b"1")
        crash.over = True
        for branch in writer._session._branches_by_id:
            producer = branch.detach_producer()
            if producer is not None:
                producer.close(abort=False)


def test_both_sides_of_a_dual_write_are_in_one_snapshot(
    broker: EmbeddedBroker, store: SqlStore, tmp_path: Path
) -> None:
    name = new_name()
    make_topic(broker, name)
    config: dict[str, object] = {"bootstrap.servers": broker.bootstrap_servers, "transactional.id": name}
    die_after("commit database", store, config)

    async def look(seen: Watch) -> None:
        snapshot = await seen.see(lambda s: name in s.transactions.descriptions and bool(s.stores[0].rows))
        row, description = snapshot.stores[0].rows[name], snapshot.transactions.descriptions[name]
        assert description.state == "Ongoing"
        assert row.state.identity == description.writer
        (case,) = (case for case in snapshot.transactions.cases if case.transaction.partition.topic == name)
        assert case.verdict is HangingVerdict.IN_DOUBT
        offsets = (await seen.see(lambda s: TopicPartition(name, 0) in s.topics.offsets)).topics.offsets
        assert offsets[TopicPartition(name, 0)].held_back_count == 1
        assert (await seen.see(lambda s: s.transactions.id_count > 0)).cluster.cluster_id is not None
        async with Admin({"bootstrap.servers": broker.bootstrap_servers}) as admin:
            await admin.force_terminate_transaction(name, force=True)
        # What its row still names is described, although it is no longer open.
        snapshot = await seen.see(lambda s: s.transactions.descriptions[name].state == "CompleteAbort")
        assert snapshot.transactions.descriptions[name].forced_outcomes
        assert not [c for c in snapshot.transactions.cases if c.transaction.partition.topic == name]

    watch(config_of(broker, f"sqlite:///{tmp_path}/shop.db"), look)


def test_an_id_that_no_coordinator_knows_is_told_apart(
    broker: EmbeddedBroker, store: SqlStore, tmp_path: Path
) -> None:
    from tallystick.client.transactions.prepared import PreparedTxnState
    from tallystick.kernel.value import replace

    row = store.claim("gone")
    txn = store.begin()
    txn.record(replace(row, state=PreparedTxnState("7:1")))
    txn.commit()

    async def look(seen: Watch) -> None:
        # A coordinator that is looked up for the first time may count as moved in the first reading.
        snapshot = await seen.see(
            lambda s: bool(s.transactions.unknown_ids) and not s.transactions.status.failures
        )
        assert snapshot.transactions.unknown_ids == {"gone"}
        assert "gone" not in snapshot.transactions.descriptions

    watch(config_of(broker, f"sqlite:///{tmp_path}/shop.db"), look)


def test_what_hangs_is_judged(broker: EmbeddedBroker) -> None:
    name = new_name()
    make_topic(broker, name)
    with RawProducer(broker, "first") as first:  # a coordinator that has begun
        first.find()
    hang(broker.bootstrap_servers, TopicPartition(name, 0), 888_100)

    async def look(seen: Watch) -> None:
        await seen.see(
            lambda s: any(
                case.verdict is HangingVerdict.HANGING and case.transaction.partition.topic == name
                for case in s.transactions.cases
            )
        )

    watch(config_of(broker), look)


def test_a_store_that_is_away_delays_nothing_and_is_said_with_its_last_rows(
    broker: EmbeddedBroker, store: SqlStore, tmp_path: Path
) -> None:
    file = tmp_path / "shop.db"
    store.claim("kept")
    dead = "postgresql+psycopg://me:hush@127.0.0.1:1/shop"

    async def look(seen: Watch) -> None:
        await seen.see(lambda s: bool(s.stores[0].rows))
        away = seen.collector.snapshot.stores[1]
        assert away.name == "postgresql+psycopg://me@127.0.0.1:1/shop"
        assert away.status.read_ms == NEVER_MS
        (failure,) = away.status.failures
        assert "refused" in failure
        assert "hush" not in str(seen.collector.snapshot)
        file.rename(tmp_path / "moved.db")
        file.write_bytes(b"no database at all, but a file of that name" * 100)
        snapshot = await seen.see(lambda s: bool(s.stores[0].status.failures))
        status = snapshot.stores[0].status
        assert list(snapshot.stores[0].rows) == ["kept"]
        assert NEVER_MS < status.read_ms < status.tried_ms
        (tmp_path / "moved.db").rename(file)
        snapshot = await seen.see_newer(lambda s: not s.stores[0].status.failures)
        assert snapshot.stores[0].status.read_ms > status.tried_ms

    watch(config_of(broker, f"sqlite:///{file}", dead), look)


def test_a_store_that_hangs_keeps_no_other_waiting(
    broker: EmbeddedBroker, store: SqlStore, tmp_path: Path
) -> None:
    """It takes the connection and says nothing: each reading is given up, and none is begun beside it."""
    store.claim("kept")
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"postgresql+psycopg://me@127.0.0.1:{silent.getsockname()[1]}/shop"

        async def look(seen: Watch) -> None:
            await seen.see(lambda s: s.stores[0].status.is_away)
            snapshot = await seen.see(lambda s: "no answer yet" not in s.stores[0].status.failures[0])
            (failure,) = snapshot.stores[0].status.failures
            assert "timeout" in failure or "not read within" in failure
            assert list(snapshot.stores[1].rows) == ["kept"]
            assert snapshot.stores[0].status.read_ms == NEVER_MS
            then_ms = snapshot.at_ms
            await seen.see(
                lambda s: s.stores[1].status.read_ms > then_ms and s.topics.status.read_ms > then_ms
            )

        watch(config_of(broker, url, f"sqlite:///{tmp_path}/shop.db"), look)


def test_a_broker_that_is_killed_and_comes_back() -> None:
    with EmbeddedBroker() as broker:
        make_topic(broker, "orders")

        async def look(seen: Watch) -> None:
            before = await seen.see(lambda s: TopicPartition("orders", 0) in s.topics.offsets)
            await asyncio.to_thread(broker.kill)
            parts = ("cluster", "transactions", "topics")
            gone = await seen.see(lambda s: all(getattr(s, each).status.failures for each in parts))
            assert gone.topics.offsets == before.topics.offsets
            assert gone.cluster.brokers == before.cluster.brokers
            assert gone.number > before.number
            await asyncio.to_thread(broker.start)
            back = await seen.see_newer(lambda s: not any(getattr(s, each).status.failures for each in parts))
            assert back.topics.status.read_ms > gone.topics.status.read_ms

        watch(config_of(broker), look)


def test_another_cluster_at_the_same_address_is_known_with_its_first_transactions(tmp_path: Path) -> None:
    """What is open there must never be compared with rows of the cluster before."""
    with EmbeddedBroker(tmp_path / "one") as broker:
        port = broker.bootstrap_servers.rpartition(":")[2]
        config = config_of(broker, paces=replace(QUICK_PACES, cluster=Pace(interval_ms=600_000)))

        async def look(seen: Watch) -> None:
            first = await seen.see(lambda s: bool(s.cluster.cluster_id and s.transactions.status.read_ms))
            await asyncio.to_thread(broker.kill)
            with EmbeddedBroker(tmp_path / "two", listeners=f"PLAINTEXT://127.0.0.1:{port}") as other:
                async with Producer(
                    {"bootstrap.servers": other.bootstrap_servers, "transactional.id": "t"}
                ) as p:
                    await p.init_transactions()
                    await p.begin_transaction()
                    await p.send("t", b"1")
                    await p.flush()
                    second = await seen.see(lambda s: "t" in s.transactions.descriptions)
            assert second.cluster.cluster_id != first.cluster.cluster_id

        watch(config, look)


def test_each_right_that_is_missing_is_named_with_the_command_that_grants_it(tmp_path: Path) -> None:
    """A user who may describe and not read sees topics and groups, and no transactions."""
    with run_broker_with_logins(tmp_path) as secured:
        client = {**secured.java_config("SCRAM-SHA-512", "alice"), "reconnect.backoff.max.ms": 100}
        config = CollectorConfig.check(client, paces=QUICK_PACES, publish_ms=10)
        describing = [
            Acl(resource=kind, name="t", principal="User:alice", operation=AclOperation.DESCRIBE)
            for kind in (AclResource.TOPIC, AclResource.GROUP)
        ]

        async def look(seen: Watch) -> None:
            snapshot = await seen.see_newer()
            assert snapshot.cluster.brokers
            assert snapshot.topics.offsets == {}
            admin_config = secured.java_config("SCRAM-SHA-512", "admin")
            async with Admin(admin_config) as admin, Producer(admin_config) as producer:
                (await admin.create_topics([NewTopic(name="t", partitions=1)])).all()
                (await admin.create_acls(describing)).all()
                await producer.send("t", b"x")
                await producer.flush()
                (await admin.alter_group_offsets("t", {AT: OffsetAndMetadata(0)})).all()
            snapshot = await seen.see(lambda s: s.groups.offsets["t"][AT].committed == 0)
            snapshot = await seen.see_newer(lambda s: AT in s.topics.offsets)
            assert snapshot.groups.offsets["t"][AT].data_lag is None
            for part in (snapshot.transactions, snapshot.groups):
                (failure,) = part.status.failures
                assert failure.endswith("--operation Read --topic t")
            (failure,) = snapshot.pipelines.status.failures
            assert failure.endswith("--operation Describe --topic __tallystick_decisions")
            assert snapshot.pipelines.status.read_ms == NEVER_MS

        watch(config, look)


def test_snapshots_of_the_past_do_not_change(broker: EmbeddedBroker) -> None:
    async def look(seen: Watch) -> None:
        first = await seen.see(lambda s: s.number > 0)
        kept = str(first)
        make_topic(broker, new_name())
        second = await seen.see_newer(lambda s: s.number > first.number)
        assert str(first) == kept
        assert second.topics.partition_counts != first.topics.partition_counts

    watch(config_of(broker), look)


def test_who_waits_is_served_before_the_interval_is_over(broker: EmbeddedBroker) -> None:
    from tallystick.console.collect.config import Paces

    async def look(seen: Watch) -> None:
        first = await seen.see(lambda s: s.topics.status.read_ms != NEVER_MS)
        seen.collector.read_soon()
        await seen.see(lambda s: s.topics.status.read_ms > first.topics.status.read_ms)

    slow = Paces()
    watch(config_of(broker, paces=slow), look)


def test_decisions_of_every_query_are_read_with_what_they_leave_open(broker: EmbeddedBroker) -> None:
    decided, done = Query(broker.bootstrap_servers), Query(broker.bootstrap_servers)
    for query in (decided, done):
        query.make_topic()
    decided.decide_and_die()
    driver = done.station()
    lease = driver.begin()
    driver.commit([done.write(lease, 0)])

    async def look(seen: Watch) -> None:
        def find(snapshot: Snapshot, query: Query) -> PrefixFacts:
            return {each.prefix: each for each in snapshot.pipelines.prefixes}[query.prefix]

        snapshot = await seen.see(lambda s: find(s, done).is_complete and bool(find(s, decided)))
        facts = find(snapshot, decided)
        assert (facts.source, facts.is_complete) == ("__tallystick_decisions", False)
        assert facts.decision is not None
        open_ids = {each.transactional_id for each in facts.decision.participants}
        await seen.see(lambda s: open_ids <= s.transactions.descriptions.keys())
        await asyncio.to_thread(lambda: decided.station().begin())
        await seen.see(lambda s: find(s, decided).is_complete)

    watch(config_of(broker, decision_topics=("__tallystick_decisions", "of-nobody")), look)
    for query in (decided, done):
        query.close()


def test_a_browser_may_connect_as_soon_as_the_address_is_printed() -> None:
    options = ListenOptions(host="127.0.0.1", port=0)
    with open_listener(options) as listener:
        port = int(format_address(options, listener).rstrip("/").rpartition(":")[2])
        socket.create_connection(("127.0.0.1", port)).close()
