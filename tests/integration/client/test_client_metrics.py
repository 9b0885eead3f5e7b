"""Metrics of real clients and dual writes, and the documented example."""

import asyncio
import sqlite3
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families
from sqlalchemy import text
from tests.support.dual_world import World

from tallystick import Admin, Consumer, Producer, aio
from tallystick.dualwrite import CommitUnknown, DualWriter, Lease, WriteInDoubt, WriterPool
from tallystick.dualwrite.block.transaction import DatabaseSide
from tallystick.dualwrite.blocking.writer import Transaction
from tallystick.dualwrite.stores.sql import SqlTransaction
from tallystick.metrics import ClientMetrics
from tallystick.testing import EmbeddedBroker, eventually

pytestmark = pytest.mark.server

Samples = Mapping[tuple[str, tuple[tuple[str, str], ...]], float]
SHOP = ("writer", "shop")


def parse(exposition: str) -> Samples:
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(exposition)
        for sample in family.samples
    }


def scrape(metrics: ClientMetrics) -> Samples:
    registry = CollectorRegistry()
    registry.register(metrics)
    return parse(generate_latest(registry).decode())


def count_step(shown: Samples, step: str) -> float:
    return shown["tallystick_dual_write_step_seconds_count", (("step", step), SHOP)]


def count_outcomes(shown: Samples) -> dict[str, float]:
    names = ("committed", "rolled_back", "in_doubt")
    return {each: shown["tallystick_dual_writes_total", (("outcome", each), SHOP)] for each in names}


def insert(world: World, txn: DatabaseSide[SqlTransaction], n: int) -> None:
    txn.connection.execute(text(f"INSERT INTO {world.table} VALUES ({n}, 'a')"))


def take_back(world: World, writer: DualWriter[SqlTransaction]) -> None:
    with writer.transaction() as txn:
        insert(world, txn, 2)
        raise KeyError("taken back")


def lose_answer(world: World, writer: DualWriter[SqlTransaction]) -> None:
    with writer.transaction() as txn:
        commit = txn.database.commit

        def lose() -> None:
            commit()
            raise CommitUnknown("the connection ended")

        txn.database.commit = lose  # type: ignore[method-assign]
        insert(world, txn, 3)
        txn.send(world.topic, b"a")


@pytest.mark.gate(0)
def test_a_writer_shows_how_its_writes_ended_and_how_long_each_phase_took(world: World) -> None:
    metrics = ClientMetrics()
    with DualWriter(world.store, world.config, watch=metrics.watch_writes("shop")) as writer:
        writer.recover()
        world.pay(writer, 1, "a")
        with pytest.raises(KeyError):
            take_back(world, writer)
        shown = scrape(metrics)
        assert count_outcomes(shown) == {"committed": 1, "rolled_back": 1, "in_doubt": 0}
        phases = ("send", "prepare", "record", "commit database", "commit")
        assert {each: count_step(shown, each) for each in phases} == dict.fromkeys(phases, 1)
        assert shown["tallystick_dual_write_writers", (SHOP,)] == 1
        with pytest.raises(WriteInDoubt):
            lose_answer(world, writer)
        shown = scrape(metrics)
        assert count_outcomes(shown)["in_doubt"] == 1
        assert shown["tallystick_dual_write_writers_in_doubt", (SHOP,)] == 1
        assert shown["tallystick_dual_write_writers_unsettled", (SHOP,)] == 1
        writer.recover()
        shown = scrape(metrics)
        assert shown["tallystick_dual_write_writers_in_doubt", (SHOP,)] == 0
        assert shown["tallystick_dual_write_recoveries_total", (("result", "recovered"), SHOP)] == 2
    assert scrape(metrics)["tallystick_dual_write_writers", (SHOP,)] == 0


def test_repetitions_of_a_pool_are_counted(world: World) -> None:
    metrics = ClientMetrics()
    runs: list[int] = []

    def work(txn: Transaction[SqlTransaction]) -> None:
        insert(world, txn, len(runs))
        runs.append(1)
        if len(runs) == 1:
            conflict = sqlite3.OperationalError("database is locked")
            conflict.sqlite_errorname = "SQLITE_BUSY"
            raise conflict

    with WriterPool(world.store, world.config, 2, watch=metrics.watch_writes("shop")) as pool:
        pool.recover()
        pool.run(work, retries=2)
        shown = scrape(metrics)
        assert shown["tallystick_dual_write_retries_total", (SHOP,)] == 1
        assert shown["tallystick_dual_write_writers", (SHOP,)] == 2
        eventually(lambda: scrape(metrics)["tallystick_dual_write_pool_free", (SHOP,)] == 2)
        with pool.writer():
            assert scrape(metrics)["tallystick_dual_write_pool_free", (SHOP,)] == 1


@pytest.mark.gate(0)
def test_leases_of_a_pool_are_counted(world: World) -> None:
    metrics = ClientMetrics()
    watch = metrics.watch_writes("shop")
    with WriterPool(world.store, world.config, 2, lease=Lease(), watch=watch) as pool:
        pool.recover()
        shown = scrape(metrics)
        assert shown["tallystick_dual_write_pool_leases", (SHOP,)] == 2
        assert shown["tallystick_dual_write_leases_total", (("event", "taken"), SHOP)] == 2


@pytest.mark.gate(0)
def test_leases_that_are_lost_and_those_that_others_let_expire_are_counted(world: World) -> None:
    metrics = ClientMetrics()
    watched = {"lease": Lease(duration_ms=60_000), "watch": metrics.watch_writes("shop")}
    with (
        WriterPool(world.store, world.config, 1, **watched) as loser,  # type: ignore[arg-type]
        WriterPool(world.store, world.config, 1, **watched) as finder,  # type: ignore[arg-type]
    ):
        loser.recover()
        finder.recover()
        assert loser._leases is not None
        assert finder._leases is not None
        (id_of_loser,) = loser._leases.held_ids
        with world.engine.begin() as connection:
            connection.execute(
                text(
                    "UPDATE kafka_transactional_id_leases SET expires_at_ms = 1 "
                    f"WHERE id_number = {id_of_loser.rpartition('-')[2]}"
                )
            )
        finder._leases.keep_up()
        loser._leases.renew()
        shown = scrape(metrics)
        counts = {
            each: shown["tallystick_dual_write_leases_total", (("event", each), SHOP)]
            for each in ("expired", "lost")  # in place of what was lost, another id is taken at once
        }
        assert counts == {"expired": 1, "lost": 1}


def test_real_clients_are_exported(broker: EmbeddedBroker, world: World) -> None:
    metrics = ClientMetrics()
    settings = {"bootstrap.servers": broker.bootstrap_servers}
    with (
        Producer(settings) as producer,
        Consumer({**settings, "auto.offset.reset": "earliest"}) as consumer,
        Admin(settings) as admin,
    ):
        metrics.add_producer(producer, "p")
        metrics.add_consumer(consumer, "c")
        metrics.add_admin(admin, "a")
        producer.send(world.topic, b"x").result(30)
        admin.list_topics()
        shown = scrape(metrics)
        assert shown["kafka_producer_producer_metrics_record_send_total", (("client_id", "p"),)] == 1
        assert shown["kafka_admin_client_admin_client_metrics_request_total", (("client_id", "a"),)] >= 1
        assert ("kafka_consumer_consumer_metrics_request_total", (("client_id", "c"),)) in shown
    scrape(metrics)  # a closed client hides no other


def test_asyncio_clients_are_exported(broker: EmbeddedBroker) -> None:
    async def run() -> Samples:
        metrics = ClientMetrics()
        settings = {"bootstrap.servers": broker.bootstrap_servers}
        async with (
            aio.Producer(settings) as producer,
            aio.Admin(settings) as admin,
            aio.Consumer(settings) as c,
        ):
            metrics.add_producer(producer, "p")
            metrics.add_admin(admin, "a")
            metrics.add_consumer(c, "c")
            await admin.list_topics()
            return scrape(metrics)

    shown = asyncio.run(run())
    assert shown["kafka_admin_client_admin_client_metrics_request_total", (("client_id", "a"),)] >= 1
    assert ("kafka_producer_producer_metrics_record_send_total", (("client_id", "p"),)) in shown
    assert ("kafka_consumer_consumer_metrics_request_total", (("client_id", "c"),)) in shown


@pytest.mark.gate(0)
def test_the_documented_example_prints_what_it_says(broker: EmbeddedBroker, tmp_path: Path) -> None:
    program = Path(__file__).parents[3] / "examples/client_metrics.py"
    database = f"sqlite:///{tmp_path / 'payments.db'}"
    run = [sys.executable, "-W", "error", str(program), broker.bootstrap_servers, database, "coffee", "tea"]
    shown = parse(subprocess.run(run, check=True, timeout=60, capture_output=True, text=True).stdout)
    assert count_outcomes(shown) == {"committed": 2, "rolled_back": 0, "in_doubt": 0}
    assert shown["tallystick_dual_write_pool_free", (SHOP,)] == 2
