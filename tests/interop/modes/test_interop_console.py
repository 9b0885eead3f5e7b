"""What single pages of the console ask of Apache Kafka, which keeps no histories of ids."""

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tools.servers import apache_kafka

from tallystick import Producer
from tallystick.admin import Admin
from tallystick.admin.topics import NewTopic
from tallystick.console.collect.config import CollectorConfig
from tallystick.console.lookup.history import HistorySource
from tallystick.console.lookup.lookups import ClusterLookups
from tallystick.console.lookup.record_page import RecordQuery
from tallystick.kernel.ids import TopicPartition
from tallystick.protocol.transaction_history import TransitionKind
from tallystick.testing import eventually

pytestmark = [pytest.mark.gate(0), pytest.mark.kafka, pytest.mark.server]

K = TransitionKind
SETTINGS = {"offsets.topic.num.partitions": "1", "transaction.state.log.num.partitions": "3"}


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    if (lack := apache_kafka.find_missing()) is not None:
        pytest.skip(lack)
    directory: Path = tmp_path_factory.mktemp("kafka")
    with apache_kafka.ApacheKafka(directory=directory, settings=SETTINGS) as running:
        with Admin({"bootstrap.servers": running.bootstrap}) as admin:
            admin.create_topics([NewTopic(name="t", partitions=1)]).all()
        yield running


def begin(node: Any, name: str) -> Producer:
    producer = Producer({"bootstrap.servers": node.bootstrap, "transactional.id": name})
    producer.init_transactions()
    producer.begin_transaction()
    producer.send("t", name.encode()).result()
    return producer


def test_histories_and_verdicts_on_apache_kafka(node: Any) -> None:
    with begin(node, "committed") as producer:
        producer.commit_transaction()
    with begin(node, "aborted") as producer:
        producer.abort_transaction()
    is_open = begin(node, "open")
    with begin(node, "behind") as producer:
        producer.commit_transaction()

    with Admin({"bootstrap.servers": node.bootstrap}) as admin:

        def has_markers(name: str) -> bool:
            """Tell whether the markers are written, which Kafka does after its answer."""
            return admin.describe_transactions([name]).one(name).state.startswith("Complete")

        eventually(lambda: all(map(has_markers, ("committed", "aborted", "behind"))), 120)

    async def look() -> None:
        config = CollectorConfig.check({"bootstrap.servers": node.bootstrap})
        async with ClusterLookups(config) as lookups:
            history = await lookups.read_history("aborted")
            assert history.source is HistorySource.LOG
            assert history.failure == ""
            assert [each.kind for each in history.transitions] == [
                K.INITIALIZED,
                K.BEGUN,
                K.ABORTED,
                K.COMPLETED,
            ]
            page = await lookups.browse_records(RecordQuery(partition=TopicPartition("t", 0), offset=0))
            assert page.failure == ""
            verdicts = {each.value.data: each.verdict.value for each in page.records if each.value}
            values = {name.encode(): verdicts.get(name.encode()) for name in ("committed", "aborted")}
            assert values == {b"committed": "committed", b"aborted": "aborted"}
            assert (verdicts[b"open"], verdicts[b"behind"]) == ("open", "committed")
            markers = sorted(each.marker for each in page.records if each.marker)
            assert markers == ["ABORT", "COMMIT", "COMMIT"]
            (offset,) = (each.offset for each in page.records if each.value and each.value.data == b"open")
            assert page.last_stable == offset
            assert await lookups.download(TopicPartition("t", 0), offset, is_key=False) == b"open"

    asyncio.run(look())
    is_open.abort_transaction()
    is_open.close()
