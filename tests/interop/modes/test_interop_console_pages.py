"""Every page of the console and its metrics over Apache Kafka, where each figure can be counted by hand."""

import asyncio
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families
from tests.support.console_drill import NO_PATIENCE, Watcher, run
from tests.support.console_operator import PACES, SECONDS_MAX
from tests.support.hanging import hang
from tests.support.spark_phases import Phase, PhasedQuery
from tools.servers import apache_kafka

from tallystick import Consumer, Producer
from tallystick import TopicPartition as PublicTopicPartition
from tallystick.admin import Admin
from tallystick.admin.topics import NewTopic
from tallystick.console.collect.collector import Collector
from tallystick.console.collect.config import CollectorConfig
from tallystick.console.collect.feed import StateFeed
from tallystick.console.model.state import ConsoleState
from tallystick.console.web.app import create_app
from tallystick.kernel.ids import TopicPartition

pytestmark = [pytest.mark.gate(0), pytest.mark.kafka, pytest.mark.server]

SETTINGS: Final = {
    "offsets.topic.num.partitions": "1",
    "transaction.state.log.num.partitions": "3",
    "transaction.partition.verification.enable": "false",  # or no transaction would hang
}
HANGING_ID: Final = 990_001

Labels = tuple[tuple[str, str], ...]
Values = Mapping[tuple[str, Labels], float]


@pytest.fixture(scope="module")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    if (lack := apache_kafka.find_missing()) is not None:
        pytest.skip(lack)
    directory: Path = tmp_path_factory.mktemp("kafka")
    with apache_kafka.ApacheKafka(directory=directory, settings=SETTINGS) as running:
        with Admin({"bootstrap.servers": running.bootstrap}) as admin:
            admin.create_topics([NewTopic(name=name, partitions=1) for name in ("orders", "stuck")]).all()
        yield running.bootstrap


@pytest.fixture(scope="module")
def writer(servers: str) -> Iterator[Producer]:
    """Leave three committed records in `orders`, their marker, and two open records; and a group at 1."""
    with Producer({"bootstrap.servers": servers, "transactional.id": "writer"}) as producer:
        producer.init_transactions()
        for count in (3, 2):
            producer.begin_transaction()
            for number in range(count):
                producer.send("orders", b"%d" % number)
            producer.flush()
            if count == 3:
                producer.commit_transaction()
        with Consumer({"bootstrap.servers": servers, "group.id": "readers"}) as consumer:
            at = PublicTopicPartition("orders", 0)
            consumer.assign([at])
            consumer.commit({at: 1})
        hang(servers, TopicPartition("stuck", 0), HANGING_ID)
        yield producer
        producer.abort_transaction()


async def read_pages(servers: str, paths: tuple[str, ...]) -> dict[str, str]:
    """Return pages as soon as every part has been read whole and the group's lag is counted."""
    config = CollectorConfig.check({"bootstrap.servers": servers}, paces=PACES, hanging_limit_ms=0)
    feed = StateFeed(ConsoleState(limits=NO_PATIENCE))
    transport = httpx.ASGITransport(app=create_app(feed))
    async with (
        asyncio.timeout(SECONDS_MAX),
        Collector(config) as collector,
        httpx.AsyncClient(transport=transport, base_url="http://localhost") as client,
    ):
        async for snapshot in collector.follow():
            feed.publish(snapshot)
            offsets = snapshot.groups.offsets.get("readers", {}).values()
            is_counted = bool(offsets) and all(each.data_lag is not None for each in offsets)
            is_hanging = any(each.health.value == "hanging" for each in feed.state.transactions)
            is_whole = all(status.is_complete for status in snapshot.list_statuses())
            if is_whole and is_counted and is_hanging and snapshot.transactions.id_count:
                answers = {path: await client.get(path) for path in paths}
                assert {path: each.status_code for path, each in answers.items() if each.is_error} == {}
                return {path: each.text for path, each in answers.items()}
    raise AssertionError("the collector ended")


@pytest.fixture(scope="module")
def values(servers: str, writer: Producer) -> Values:
    text = asyncio.run(read_pages(servers, ("/metrics",)))["/metrics"]
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def at(topic: str, **labels: str) -> Labels:
    return tuple(sorted({"topic": topic, "partition": "0", **labels}.items()))


@pytest.mark.parametrize(
    ("name", "labels", "expected"),
    [
        ("tallystick_cluster_brokers", (), 1),
        ("tallystick_cluster_open_transactions", (("kind", "open"),), 2),
        ("tallystick_cluster_open_transactions", (("kind", "in_doubt"),), 0),
        ("tallystick_cluster_transactions", (("health", "hanging"),), 1),
        ("tallystick_cluster_transactions", (("health", "slow"),), 1),
        ("tallystick_cluster_transactions_by_state", (("state", "Ongoing"),), 1),
        ("tallystick_cluster_transactions_by_state", (("state", "none"),), 1),
        # 3 committed records and their marker are below the last stable offset, 2 open records above.
        ("tallystick_cluster_partition_held_back_records", at("orders"), 2),
        ("tallystick_cluster_partition_held_back_records", at("stuck"), 1),
        ("tallystick_cluster_held_back_records", (), 3),
        ("tallystick_cluster_held_back_partitions", (), 2),
        # The group has read one of three records; offsets count the marker and what is open as well.
        ("tallystick_group_lag_records", (("group", "readers"),), 2),
        ("tallystick_group_lag_offsets", (("group", "readers"),), 5),
        ("kafka_consumergroup_lag", at("orders", consumergroup="readers"), 2),
        ("kafka_consumergroup_current_offset", at("orders", consumergroup="readers"), 1),
        ("tallystick_cluster_refusing", (("kind", "broker"),), 0),
    ],
)
def test_metrics_count_what_is_there(values: Values, name: str, labels: Labels, expected: float) -> None:
    known = {key: value for key, value in values.items() if key[0] == name}
    assert values.get((name, labels)) == expected, known


def test_ages_are_those_of_what_holds_readers_back(values: Values) -> None:
    """The hanging one is an hour old by its record; the open one is younger."""
    assert values["tallystick_cluster_oldest_transaction_seconds", (("kind", "open"),)] >= 3600
    assert 3600 <= values["tallystick_cluster_partition_held_back_seconds", at("stuck")] < 7200
    assert 0 <= values["tallystick_cluster_partition_held_back_seconds", at("orders")] < 3600


def test_a_broker_tells_its_room(values: Values) -> None:
    sizes, room = (
        [value for (each, _), value in values.items() if each == name]
        for name in ("tallystick_cluster_broker_disk_bytes", "tallystick_cluster_broker_disk_free_bytes")
    )
    assert len(sizes) == len(room) == 1
    assert 0 < room[0] <= sizes[0]


PAGES: Final = (
    "/",
    "/events",
    "/transactions",
    "/transactions/writer",
    f"/transactions/producer:{HANGING_ID}:0",
    "/stores",
    "/pipelines",
    "/topics",
    "/topics/orders",
    "/groups",
    "/groups/readers",
)


def test_every_page_shows_apache_kafka(servers: str, writer: Producer) -> None:
    """As HTML and as JSON; with what an operator of this cluster has to know on the first one."""
    paths = (*PAGES, *(f"{path}?format=json" for path in PAGES))
    pages = asyncio.run(read_pages(servers, paths))
    shown: dict[str, Any] = {path: json.loads(pages[f"{path}?format=json"]) for path in PAGES}
    assert all("<html" in pages[path] for path in PAGES)
    first = shown["/"]
    assert (first["health"], first["problems"][0]["key"]) == ("hanging", f"producer:{HANGING_ID}:0")
    assert "transactions abort" in first["problems"][0]["command"]
    assert first["features"]["transaction.version"] == 2
    assert len(first["disks"]) == 1
    assert {row["key"] for row in shown["/transactions"]["rows"]} == {"writer", f"producer:{HANGING_ID}:0"}
    (partition,) = shown["/topics/orders"]["partitions"]
    assert (partition["held_back_count"], partition["holder"]) == (2, "writer")
    (row,) = shown["/groups"]["groups"]
    assert (row["data_lag"], row["held_back_count"]) == (2, 2)


def test_a_dead_spark_driver_on_apache_kafka(servers: str) -> None:
    """The mode `resume`, which is all that Kafka 4.3 has: the command needs to be told."""
    query = PhasedQuery(servers, modes=("resume",))
    query.make_topic()
    query.run_batch(0, Phase.PARTLY_COMMITTED)
    (name,) = query.open_ids()
    watcher = Watcher(servers)
    row = watcher.find_row("recover", name)
    assert row["verdict"] == "commit"
    assert run(row["command"], "--yes", "--mode", "resume") == 0
    watcher.expect_gone(query.prefix)
    query.close()
