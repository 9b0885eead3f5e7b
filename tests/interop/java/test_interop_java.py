"""Apache's own Java client on the broker under test, driven through Driver.java."""

import time
from typing import Any

import pytest
from confluent_kafka import Producer

from tallystick.testing import eventually

pytestmark = pytest.mark.gate(0)

CODECS = ["none", "gzip", "snappy", "lz4", "zstd"]


def sample() -> list[dict[str, Any]]:
    """Records with everything a record can have, as the driver takes them: base64 or null."""
    records: list[dict[str, Any]] = [
        {"key": "aw==", "value": "cGxhaW4=", "headers": []},
        {"key": "aw==", "value": None, "headers": []},
        {"key": None, "value": "", "headers": []},
        {"key": "", "value": "aA==", "headers": [["a", "MQ=="], ["a", "Mg=="], ["", ""], ["null", None]]},
    ]
    return records + [{"key": None, "value": "dmFsdWU" + "A" * 401, "headers": []} for _ in range(300)]


def produce(java: Any, cluster: Any, topic: str, records: list[dict[str, Any]], **config: str) -> list[int]:
    placed = [{"topic": topic, "partition": 0, **r} for r in records]
    settings = {"bootstrap.servers": cluster.bootstrap, "linger.ms": "5", **config}
    answer = java("produce", config=settings, records=placed)
    assert "error" not in answer, answer
    offsets: list[int] = answer["offsets"]
    return offsets


def consume(java: Any, cluster: Any, topic: str, count: int, partitions: int = 1) -> list[dict[str, Any]]:
    answer = java(
        "consume",
        config={"bootstrap.servers": cluster.bootstrap},
        topic=topic,
        partitions=list(range(partitions)),
        count=count,
    )
    assert "error" not in answer, answer
    records: list[dict[str, Any]] = answer["records"]
    return records


@pytest.mark.parametrize("codec", CODECS)
def test_records_come_back_as_they_were_sent(cluster: Any, java: Any, codec: str) -> None:
    topic = cluster.topic()
    sent = sample()
    assert produce(java, cluster, topic, sent, **{"compression.type": codec}) == list(range(len(sent)))
    back = consume(java, cluster, topic, len(sent))
    assert [{k: r[k] for k in ("key", "value", "headers")} for r in back] == sent


@pytest.mark.parametrize("acks", ["0", "1", "all"])
def test_every_acks_mode_stores(cluster: Any, java: Any, acks: str) -> None:
    topic = cluster.topic()
    idempotent = str(acks == "all").lower()
    produce(java, cluster, topic, sample(), **{"acks": acks, "enable.idempotence": idempotent})
    assert len(consume(java, cluster, topic, len(sample()))) == len(sample())


@pytest.mark.parametrize("codec", CODECS)
def test_java_reads_what_librdkafka_wrote(cluster: Any, java: Any, codec: str) -> None:
    topic = cluster.topic(3)
    producer = Producer({"bootstrap.servers": cluster.bootstrap, "compression.type": codec, "linger.ms": 20})
    for i in range(600):
        producer.produce(topic, b"%d" % i * 20, key=b"%d" % i, partition=i % 3)
    assert producer.flush(30) == 0
    back = consume(java, cluster, topic, 600, 3)
    assert sorted((r["partition"], r["offset"]) for r in back) == [
        (p, o) for p in range(3) for o in range(200)
    ]


def test_a_message_of_a_megabyte(cluster: Any, java: Any) -> None:
    topic = cluster.topic(max_message_bytes="2000000")
    big = {"key": None, "value": "eHh4" * 349_526, "headers": []}  # 1,048,578 bytes
    produce(java, cluster, topic, [big] * 3, **{"max.request.size": "2000000"})
    assert [r["value"] for r in consume(java, cluster, topic, 3)] == [big["value"]] * 3


def test_a_message_above_the_topics_maximum_is_refused(cluster: Any, java: Any) -> None:
    topic = cluster.topic(max_message_bytes="1000")
    answer = java(
        "produce",
        config={"bootstrap.servers": cluster.bootstrap},
        records=[{"topic": topic, "partition": 0, "key": None, "value": "eHh4" * 1000}],
    )
    assert answer["error"] == "RecordTooLargeException", answer


class Member:
    """A member in the driver's JVM, on a thread of its own."""

    def __init__(self, java: Any, name: str, **config: str) -> None:
        self._java, self._name = java, name
        self.log: dict[str, Any] = {"seen": [], "assigned": []}
        topics = [config.pop("topic")]
        settings = {
            "auto.offset.reset": "earliest",
            "enable.auto.commit": "false",
            "session.timeout.ms": "3000",
            "heartbeat.interval.ms": "300",
            "max.poll.interval.ms": "4000",
            **{k.replace("_", "."): v for k, v in config.items()},
        }
        answer = java("member-start", name=name, config=settings, topics=topics)
        assert "error" not in answer, answer

    def look(self) -> dict[str, Any]:
        self.log = self._java("member-log", name=self._name)
        assert self.log["failure"] is None, self.log["failure"]
        return self.log

    def stop(self, how: str) -> None:
        self.log = self._java("member-stop", name=self._name, how=how)
        assert self.log.get("failure") is None, self.log


@pytest.mark.parametrize("assignor", ["RangeAssignor", "CooperativeStickyAssignor"])
def test_members_join_leave_and_stall_while_a_producer_runs(cluster: Any, java: Any, assignor: str) -> None:
    topic, group = cluster.topic(6), cluster.fresh_name("java-group")
    members: list[Member] = []
    sent = 0
    producer = Producer({"bootstrap.servers": cluster.bootstrap, "enable.idempotence": True})

    def more() -> None:
        nonlocal sent
        for _ in range(60):
            producer.produce(topic, b"%d" % sent, partition=sent % 6)
            sent += 1
        assert producer.flush(30) == 0

    def join() -> Member:
        member = Member(
            java,
            f"{group}-{len(members)}",
            topic=topic,
            bootstrap_servers=cluster.bootstrap,
            group_id=group,
            partition_assignment_strategy=f"org.apache.kafka.clients.consumer.{assignor}",
        )
        members.append(member)
        return member

    def shared_by(*alive: Member) -> bool:
        more()
        shares = [m.look()["assigned"] for m in alive]
        assert sorted(p for share in shares for p in share) == list(range(6)), shares
        return all(len(share) == 6 // len(alive) for share in shares)

    first = join()
    eventually(lambda: shared_by(first))
    second, third = join(), join()
    eventually(lambda: shared_by(first, second, third))
    second.stop("close")
    eventually(lambda: shared_by(first, third))
    third.stop("abandon")  # it goes on sending heartbeats, and is out after max.poll.interval.ms
    eventually(lambda: shared_by(first))
    wanted = {(p, o) for p in range(6) for o in range(sent // 6)}
    eventually(lambda: first.look() and {(p, o) for m in members for _, p, o, _ in m.log["seen"]} >= wanted)
    first.stop("close")
    seen = [(generation, p, o) for m in members for generation, p, o, _ in m.log["seen"]]
    assert len(seen) == len(set(seen)), "a record came twice within one generation"
    assert {(p, o) for _, p, o in seen} == wanted


def test_a_static_member_returns_without_a_rebalance(cluster: Any, java: Any) -> None:
    """KIP-345: a member with an instance id that comes back in time finds its partitions as they were."""
    topic, group = cluster.topic(4), cluster.fresh_name("static-group")

    def join(name: str) -> Member:
        return Member(
            java,
            f"{group}-{name}-{time.monotonic_ns()}",
            topic=topic,
            bootstrap_servers=cluster.bootstrap,
            group_id=group,
            group_instance_id=name,
            session_timeout_ms="20000",
        )

    def feed() -> None:
        produce(java, cluster, topic, [{"key": None, "value": "eA==", "partition": p} for p in range(4)])

    a, b = join("a"), join("b")
    eventually(lambda: len(a.look()["assigned"]) == len(b.look()["assigned"]) == 2)
    before = a.log["assigned"]
    feed()
    eventually(lambda: len(b.look()["seen"]) == 2)
    generation = b.log["seen"][-1][0]
    a.stop("close")
    again = join("a")
    eventually(lambda: again.look()["assigned"] == before)
    feed()
    eventually(lambda: len(b.look()["seen"]) == 4)
    assert b.log["seen"][-1][0] == generation
    for member in (again, b):
        member.stop("close")
