"""Apache Kafka on three brokers, one of which is killed and comes back; librdkafka reads the result."""

from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Final
from uuid import uuid4

from confluent_kafka import Consumer, ConsumerGroupTopicPartitions, IsolationLevel, KafkaError, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic, OffsetSpec
from tools.servers import apache_kafka
from tools.servers.broker_process import BrokerProcess

from tallystick.testing import eventually

NODES: Final = 3
RETURN_S: Final = 90.0

# A lost broker is noticed in seconds, and the other two elect a controller at once. One partition of the
# internal topic makes one coordinator, whose broker can be named.
SETTINGS: Final = {
    "min.insync.replicas": "2",
    "broker.session.timeout.ms": "3000",
    "broker.heartbeat.interval.ms": "500",
    "controller.quorum.election.timeout.ms": "500",
    "controller.quorum.fetch.timeout.ms": "1000",
    "group.initial.rebalance.delay.ms": "0",
    "offsets.topic.num.partitions": "1",
    "transaction.state.log.num.partitions": "1",
    "unstable.api.versions.enable": "true",
    "transaction.two.phase.commit.enable": "true",
    "num.io.threads": "2",
    "num.network.threads": "2",
}


@dataclass
class ThreeBrokers:
    """A running cluster; topics have three replicas, two of which must acknowledge."""

    kafka: apache_kafka.ApacheKafka

    def __post_init__(self) -> None:
        self._names = count(1)
        self.bootstrap = self.kafka.bootstrap
        self.admin = AdminClient({"bootstrap.servers": self.bootstrap})

    @classmethod
    def start(cls, directory: Path) -> "ThreeBrokers":
        kafka = apache_kafka.ApacheKafka(directory=directory, nodes=NODES, settings=SETTINGS, heap_mb=256)
        kafka.start()
        return cls(kafka)

    def end(self) -> None:
        """End the brokers at once, without handing over leadership: their logs are not read again."""
        for broker in self.kafka.brokers:
            broker.kill()

    def broker(self, node_id: int) -> BrokerProcess:
        return self.kafka.brokers[node_id - 1]

    def topic(self, stem: str, partitions: int = 1, copies: int = NODES) -> str:
        """Create a topic of this test's own, with a leader for each partition, and return its name."""
        name = f"{stem}-{next(self._names)}"
        wanted = NewTopic(name, partitions, copies)
        eventually(lambda: self.admin.create_topics([wanted])[name].result(30) is None, RETURN_S)
        self.settle()
        return name

    def leader(self, topic: str, partition: int = 0) -> int:
        """Return the partition's leader, as soon as the queried broker has heard of the topic."""

        def found() -> list[int]:
            known = self.admin.list_topics(topic, timeout=10).topics[topic].partitions.get(partition)
            return [known.leader] if known is not None and known.leader >= 0 else []

        return int(eventually(found, RETURN_S)[0])

    def bring_back(self) -> None:
        """Start the brokers that are down, and wait until all replicas are in sync again."""
        down = [broker for broker in self.kafka.brokers if not broker.is_running]
        for broker in down:
            broker.launch()
        for broker in down:
            broker.wait_ready(RETURN_S)
        self.settle()

    def settle(self) -> None:
        eventually(self._in_sync, RETURN_S)

    def _in_sync(self) -> bool:
        found = self.admin.list_topics(timeout=10)
        partitions = [p for topic in found.topics.values() for p in topic.partitions.values()]
        late = [p for p in partitions if p.leader < 0 or set(p.isrs) != set(p.replicas)]
        assert len(found.brokers) == NODES, sorted(found.brokers)
        assert not late, late
        return True

    # ---- the result, as librdkafka sees it

    def ended(self, topic: str) -> bool:
        """Return whether no transaction is open, so that read_committed consumers reach the end."""
        partitions = self.admin.list_topics(topic, 10).topics[topic].partitions
        places = [TopicPartition(topic, partition) for partition in partitions]
        latest = dict.fromkeys(places, OffsetSpec.latest())
        ends = []
        for level in (IsolationLevel.READ_COMMITTED, IsolationLevel.READ_UNCOMMITTED):
            told = self.admin.list_offsets(latest, isolation_level=level, request_timeout=10)
            ends.append([told[place].result().offset for place in places])
        assert ends[0] == ends[1], ends
        return True

    def committed(self, topic: str) -> list[list[str]]:
        """Return every committed record by partition, in order, read once from the start to the end."""
        config = {
            "bootstrap.servers": self.bootstrap,
            "group.id": str(uuid4()),
            "isolation.level": "read_committed",
            "enable.partition.eof": True,
            "enable.auto.commit": False,
        }
        partitions = self.admin.list_topics(topic, 10).topics[topic].partitions
        values: list[list[str]] = [[] for _ in partitions]
        left = set(partitions)
        consumer = Consumer(config)
        try:
            consumer.assign([TopicPartition(topic, partition, 0) for partition in partitions])
            while left:
                message = consumer.poll(30)
                assert message is not None, f"{topic}: no more records, and no end, in {left}"
                error = message.error()
                if error is None:
                    values[message.partition()].append(message.value().decode())
                elif error.code() == KafkaError._PARTITION_EOF:
                    left.remove(message.partition())
                else:
                    assert error.retriable(), error
        finally:
            consumer.close()
        return values

    def group_offset(self, group: str, topic: str) -> int:
        """Return the offset at which a member of the group would start, once no transaction on it is open."""
        wanted = ConsumerGroupTopicPartitions(group, [TopicPartition(topic, 0)])
        told = self.admin.list_consumer_group_offsets([wanted], require_stable=True, request_timeout=10)
        return int(told[group].result().topic_partitions[0].offset)
