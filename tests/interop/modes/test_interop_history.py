"""What happens to transactional ids on Apache Kafka, read from its own transaction log."""

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tools.servers import apache_kafka

from tallystick import Producer
from tallystick.admin import Admin, HangingVerdict
from tallystick.admin.topics import NewTopic
from tallystick.admin.txn.transaction_log import TransactionLogFollower
from tallystick.protocol.transaction_history import TransactionTransition, TransitionKind
from tallystick.testing import eventually

pytestmark = [pytest.mark.gate(0), pytest.mark.kafka, pytest.mark.server]

K = TransitionKind
SETTINGS = {
    "offsets.topic.num.partitions": "1",
    "transaction.state.log.num.partitions": "3",
    "transaction.abort.timed.out.transaction.cleanup.interval.ms": "200",
}


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    if (lack := apache_kafka.find_missing()) is not None:
        pytest.skip(lack)
    directory: Path = tmp_path_factory.mktemp("kafka")
    with apache_kafka.ApacheKafka(directory=directory, settings=SETTINGS) as running:
        assert follow(running) == [], "there is no transaction log yet"
        with Admin(config(running)) as admin:
            admin.create_topics([NewTopic(name="t", partitions=2)]).all()
        yield running


def config(node: Any) -> dict[str, object]:
    return {"bootstrap.servers": node.bootstrap}


def producing(node: Any, name: str, **more: object) -> Producer:
    return Producer({**config(node), "transactional.id": name, **more})


def follow(node: Any, **how: Any) -> list[TransactionTransition]:
    """Return all that a new follower reads."""

    async def main() -> list[TransactionTransition]:
        async with TransactionLogFollower(config(node), **how) as follower:
            told = list(await follower.poll())
            while follower.is_behind:
                told += await follower.poll()
            assert follower.take_failures() == ()
            assert follower.unreadable_count == 0
            return told

    return asyncio.run(main())


def kinds(node: Any, name: str) -> list[TransitionKind | int]:
    return [each.kind for each in follow(node) if each.transactional_id == name]


def test_kafka_s_log_tells_what_happened(node: Any) -> None:
    """Commit, abort by the client, a new incarnation; the follower leaves no group behind."""
    with Admin(config(node)) as admin:
        with producing(node, "shop") as producer:
            producer.init_transactions()
            producer.begin_transaction()
            producer.send("t", b"a", partition=0)
            producer.flush()
            producer.send("t", b"b", partition=1)
            producer.commit_transaction()
            producer.begin_transaction()
            producer.send("t", b"c", partition=0)
            producer.flush()
            producer.abort_transaction()
        eventually(lambda: kinds(node, "shop")[-2:] == [K.ABORTED, K.COMPLETED])
        told = [each for each in follow(node) if each.transactional_id == "shop"]
        assert [each.kind for each in told if each.kind is not K.PARTITIONS_ADDED] == [
            K.INITIALIZED,
            K.BEGUN,
            K.COMMITTED,
            K.COMPLETED,
            K.BEGUN,
            K.ABORTED,
            K.COMPLETED,
        ]
        decided = next(each for each in told if each.kind is K.COMMITTED)
        assert (decided.state, decided.partition_count) == ("PrepareCommit", 2)
        described = admin.describe_transactions(["shop"], history=True).one("shop")
        assert described.history is None, "Kafka skips the tag"
        assert told[-1].producer == described.writer
        with producing(node, "shop") as again:
            again.init_transactions()
        eventually(lambda: kinds(node, "shop")[-1] is K.INITIALIZED)
        assert follow(node, since_ms=told[-1].at_ms + 3_600_000) == []
        assert len(follow(node, backlog_max=3)) <= 3
        assert admin.list_groups().one(1) == ()


def test_open_transactions_of_kafka_are_judged_in_one_snapshot(node: Any) -> None:
    with Admin(config(node)) as admin, producing(node, "open") as producer:
        producer.init_transactions()
        producer.begin_transaction()
        producer.send("t", b"a", partition=0)
        producer.flush()
        report = admin.describe_open_transactions()
        assert report.complete
        assert list(report.descriptions) == ["open"]
        (case,) = report.cases
        assert case.verdict is HangingVerdict.OPEN
        assert case.description is not None
        assert case.description.transactional_id == "open"
        producer.abort_transaction()
        eventually(lambda: admin.describe_open_transactions().cases == ())
