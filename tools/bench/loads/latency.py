"""Measure end-to-end latency: a steady sender and a reader in two processes, with one monotonic clock.

`python -m tools.bench.loads.latency BOOTSTRAP TOPIC RATE SECONDS WARM_UP` prints percentiles in ms as JSON.
Two processes, because two threads of one interpreter would wait for each other longer than for the broker.
"""

import json
import struct
import subprocess
import sys
import time

from confluent_kafka import Consumer, Producer, TopicPartition

STAMP = struct.Struct(">q")
SIZE = 100
QUANTILES = {"p50": 0.5, "p99": 0.99, "p999": 0.999}


def send(bootstrap: str, topic: str, rate: int, seconds: int) -> None:
    """Send `rate` messages a second, each carrying the time it was due."""
    producer = Producer(
        {"bootstrap.servers": bootstrap, "acks": "all", "enable.idempotence": True, "linger.ms": 0}
    )
    padding = bytes(SIZE - STAMP.size)
    began_ns = time.monotonic_ns()
    for i in range(rate * seconds):
        due = began_ns + i * 1_000_000_000 // rate
        while (wait_ns := due - time.monotonic_ns()) > 0:
            producer.poll(0)
            time.sleep(wait_ns / 1e9)
        # Stamped with the due time, so that a sender that falls behind does not hide the delay.
        producer.produce(topic, STAMP.pack(due) + padding, partition=0)
    producer.flush(30)


def measure_latencies(bootstrap: str, topic: str, count: int, sender: subprocess.Popen[bytes]) -> list[float]:
    """Return the latency of every message in milliseconds, in order of arrival."""
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "latency",
            "enable.auto.commit": False,
            "fetch.queue.backoff.ms": 2,
        }
    )
    consumer.assign([TopicPartition(topic, 0, 0)])
    latencies_ms: list[float] = []
    give_up_at = time.monotonic() + 120
    while len(latencies_ms) < count:
        message = consumer.poll(1.0)
        now = time.monotonic_ns()
        if message is not None and message.error() is None:
            latencies_ms.append((now - STAMP.unpack_from(message.value() or b"")[0]) / 1e6)
        elif sender.poll() not in (None, 0) or time.monotonic() > give_up_at:
            raise RuntimeError(f"{len(latencies_ms)} of {count} messages arrived")
    consumer.close()
    return latencies_ms


def main(arguments: list[str]) -> None:
    """Run the sender if the first argument is `send`, else the reader, which starts the sender."""
    if arguments[0] == "send":
        send(arguments[1], arguments[2], int(arguments[3]), int(arguments[4]))
        return
    bootstrap, topic, rate, seconds, warm_up = arguments[0], arguments[1], *map(int, arguments[2:])
    command = [
        sys.executable,
        "-m",
        "tools.bench.loads.latency",
        "send",
        bootstrap,
        topic,
        str(rate),
        str(seconds),
    ]
    with subprocess.Popen(command) as sender:
        latencies_ms = sorted(measure_latencies(bootstrap, topic, rate * seconds, sender)[rate * warm_up :])
    at = {
        name: latencies_ms[min(len(latencies_ms) - 1, int(len(latencies_ms) * q))]
        for name, q in QUANTILES.items()
    }
    print(json.dumps(at))


if __name__ == "__main__":
    main(sys.argv[1:])
