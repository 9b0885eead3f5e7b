"""One load with librdkafka, whose settings are given whole: python -m tools.bench.loads.secured JSON.

Prints {"seconds": ..., "count": ...}: of messages produced or read, or of transactions committed.
"""

import json
import sys
import threading
import time
from typing import Any

from confluent_kafka import Consumer, Producer, TopicPartition

MESSAGE = bytes(100)
QUEUE = 200_000


def produce(load: dict[str, Any]) -> tuple[float, int]:
    """Produce `messages` messages, and wait until they are acknowledged."""
    producer = Producer(
        {**load["config"], "acks": "all", "linger.ms": 5, "queue.buffering.max.messages": 2 * QUEUE}
    )
    producer.produce(load["topic"], MESSAGE)
    producer.flush(60)  # connected, logged in, and the topic is known
    count, start = load["messages"], time.monotonic()
    for number in range(count):
        if number % 1000 == 0:
            producer.poll(0)
            while len(producer) > QUEUE:
                producer.poll(0.01)
        producer.produce(load["topic"], MESSAGE)
    remaining = producer.flush(120)
    if remaining:
        raise RuntimeError(f"{remaining} messages were not acknowledged")
    return time.monotonic() - start, count


def consume(load: dict[str, Any]) -> tuple[float, int]:
    """Read `messages` messages from the start of the topic's only partition."""
    consumer = Consumer(
        {
            **load["config"],
            "group.id": "bench-readers",
            "enable.auto.commit": False,
            "fetch.queue.backoff.ms": 2,  # its default of 1 s stalls the reader when its queue is full
            "queued.min.messages": 1_000_000,
        }
    )
    consumer.assign([TopicPartition(load["topic"], 0, 0)])
    messages_read, start = 0, 0.0
    while messages_read < load["messages"]:
        messages = consumer.consume(10_000, 1.0)
        if not start and messages:
            start, messages_read = time.monotonic(), -len(messages)  # the first ones waited for the login
        error = next((each.error() for each in messages if each.error()), None)
        if error is not None:
            raise RuntimeError(str(error))
        messages_read += len(messages)
    seconds = time.monotonic() - start
    consumer.close()
    return seconds, messages_read


def commit(load: dict[str, Any]) -> tuple[float, int]:
    """Commit one message after another for `seconds`, with `producers` producers at once."""
    counts = [0] * load["producers"]
    barrier = threading.Barrier(load["producers"] + 1)

    def commit_until_end(number: int) -> None:
        settings = {"transactional.id": f"bench-{load['topic']}-{number}", "linger.ms": 0}
        producer = Producer({**load["config"], **settings})
        producer.init_transactions(60)
        barrier.wait()
        end = time.monotonic() + load["seconds"]
        while time.monotonic() < end:
            producer.begin_transaction()
            producer.produce(load["topic"], MESSAGE)
            producer.commit_transaction(60)
            counts[number] += 1

    threads = [
        threading.Thread(target=commit_until_end, args=(number,), daemon=True)
        for number in range(len(counts))
    ]
    for thread in threads:
        thread.start()
    barrier.wait()
    start = time.monotonic()
    for thread in threads:
        thread.join()
    return time.monotonic() - start, sum(counts)


def main() -> None:
    load = json.loads(sys.argv[1])
    load["config"]["log_level"] = 3  # errors
    seconds, count = {"produce": produce, "consume": consume, "commit": commit}[load["mode"]](load)
    print(json.dumps({"seconds": seconds, "count": count}))


if __name__ == "__main__":
    main()
