"""A group member in a process of its own, so that a test can let it leave (SIGTERM) or die (SIGKILL).

`python member.py BOOTSTRAP GROUP TOPIC STRATEGY` prints a JSON line per assignment, revocation and record.
It commits after what it printed, so what it printed and did not commit is all that may be read twice.
"""

import json
import signal
import sys
from collections.abc import Sequence

from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition


def say(what: str, *values: object) -> None:
    print(json.dumps([what, *values]), flush=True)


def main() -> None:
    bootstrap, group, topic, strategy = sys.argv[1:]
    stopping: list[int] = []
    signal.signal(signal.SIGTERM, lambda number, _: stopping.append(number))
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": group,
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
            "session.timeout.ms": 2000,
            "heartbeat.interval.ms": 300,
            "partition.assignment.strategy": strategy,
            "fetch.queue.backoff.ms": 2,
        }
    )

    def assigned(_: Consumer, partitions: Sequence[TopicPartition]) -> None:
        say("assigned", sorted(p.partition for p in partitions))

    def revoked(_: Consumer, partitions: Sequence[TopicPartition]) -> None:
        say("revoked", sorted(p.partition for p in partitions))

    consumer.subscribe([topic], on_assign=assigned, on_revoke=revoked, on_lost=revoked)
    while not stopping:
        messages = [m for m in consumer.consume(200, 0.05) if m.error() is None]
        for message in messages:
            say("record", message.partition(), message.offset(), (message.value() or b"").decode())
        if messages:
            try:
                consumer.commit(asynchronous=False)
            except KafkaException as exc:
                error: KafkaError = exc.args[0]
                say("not committed", error.name())
    consumer.close()
    say("left")


main()
