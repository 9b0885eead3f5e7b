"""A sending client as a process: `python -m tools.bench.loads.client JSON` sends, and prints a JSON line.

Every client sends the same texts to one topic, with acks=all, linger 5 ms and batches of a megabyte, as its
documentation shows: one call per message, or one call for many if it has one. The clock runs from the first
message to the last acknowledgement, after one message that sets up the connection.
"""

import asyncio
import json
import sys
import time
from collections.abc import Callable
from importlib import import_module
from typing import Final, TypedDict

from tools.bench.loads.librdkafka import make_values

BATCH_BYTES: Final = 1_000_000
CHUNK: Final = 100_000
PATIENCE_S: Final = 120.0


class Load(TypedDict):
    """The client, topic and messages of a run."""

    client: str
    bootstrap: str
    topic: str
    messages: int
    size: int
    codec: str
    uneven: bool


Timing = tuple[float, float]
"""Elapsed seconds, and seconds of this process's CPU time."""


def make_messages(load: Load) -> list[bytes]:
    """Return all messages, made beforehand; uneven ones have half to one and a half times the size."""
    size = load["size"]
    if load["uneven"]:
        some = [
            text[: size // 2 + 7 * i % (size + 1)] for i, text in enumerate(make_values(size + size // 2))
        ]
    else:
        some = make_values(size)
    return [some[i % len(some)] for i in range(load["messages"])]


def measure(send_all: Callable[[], object]) -> Timing:
    """Return how long sending takes."""
    began, cpu = time.perf_counter(), time.process_time()
    send_all()
    return time.perf_counter() - began, time.process_time() - cpu


def send_tallystick(load: Load) -> Timing:
    """Send with our Producer, a call per message."""
    producer = _open_producer(load)
    messages, send, topic = make_messages(load), producer.send, load["topic"]

    def send_all() -> None:
        for message in messages:
            send(topic, message)
        producer.flush(PATIENCE_S)

    with producer:
        return measure(send_all)


def send_tallystick_lists(load: Load) -> Timing:
    """Send with our Producer, a list of 100,000 per call."""
    messages = make_messages(load)
    return _split_chunks(load, [messages[at : at + CHUNK] for at in range(0, len(messages), CHUNK)])


def send_tallystick_arrow(load: Load) -> Timing:
    """Send with our Producer, an Arrow array of 100,000 per call."""
    pyarrow = import_module("pyarrow")
    messages = make_messages(load)
    return _split_chunks(
        load, [pyarrow.array(messages[at : at + CHUNK]) for at in range(0, len(messages), CHUNK)]
    )


def _split_chunks(load: Load, chunks: list[list[bytes]]) -> Timing:
    producer = _open_producer(load)

    def send_all() -> None:
        futures = [producer.send_batch(load["topic"], chunk) for chunk in chunks]
        for delivery in futures:
            delivery.result(PATIENCE_S)

    with producer:
        return measure(send_all)


def _open_producer(load: Load):  # type: ignore[no-untyped-def]
    producer = import_module("tallystick").Producer(
        {
            "bootstrap.servers": load["bootstrap"],
            "batch.size": BATCH_BYTES,
            "compression.type": load["codec"],
        }
    )
    producer.send(load["topic"], b"first").result(PATIENCE_S)
    return producer


def send_confluent_kafka(load: Load) -> Timing:
    """Send with librdkafka's Python binding."""
    producer = import_module("confluent_kafka").Producer(
        {
            "bootstrap.servers": load["bootstrap"],
            "acks": "all",
            "enable.idempotence": True,
            "linger.ms": 5,
            "compression.codec": load["codec"],
            "queue.buffering.max.messages": 500_000,
            "queue.buffering.max.kbytes": 262_144,
        }
    )
    messages, produce, topic = make_messages(load), producer.produce, load["topic"]
    produce(topic, b"first")
    producer.flush(PATIENCE_S)

    def send_all() -> None:
        for message in messages:
            while True:
                try:
                    produce(topic, message)
                    break
                except BufferError:
                    producer.poll(0.01)
        if producer.flush(PATIENCE_S):
            raise RuntimeError("not everything was acknowledged")

    return measure(send_all)


def send_kafka_python(load: Load) -> Timing:
    """Send with the pure Python client kafka-python."""
    producer = import_module("kafka").KafkaProducer(
        bootstrap_servers=load["bootstrap"],
        acks="all",
        linger_ms=5,
        batch_size=BATCH_BYTES,
        compression_type=None if load["codec"] == "none" else load["codec"],
    )
    messages, send, topic = make_messages(load), producer.send, load["topic"]
    send(topic, b"first").get(PATIENCE_S)

    def send_all() -> None:
        for message in messages:
            send(topic, message)
        producer.flush(PATIENCE_S)

    return measure(send_all)


def send_aiokafka(load: Load) -> Timing:
    """Send with the asyncio client as its documentation shows: a future per message, awaited later."""

    async def main() -> Timing:
        producer = import_module("aiokafka").AIOKafkaProducer(
            bootstrap_servers=load["bootstrap"],
            acks="all",
            linger_ms=5,
            max_batch_size=BATCH_BYTES,
            compression_type=None if load["codec"] == "none" else load["codec"],
        )
        await producer.start()
        try:
            messages, topic = make_messages(load), load["topic"]
            await producer.send_and_wait(topic, b"first")
            began, cpu = time.perf_counter(), time.process_time()
            for message in messages:
                await producer.send(topic, message)
            await producer.flush()
            return time.perf_counter() - began, time.process_time() - cpu
        finally:
            await producer.stop()

    return asyncio.run(main())


CLIENTS: Final = {
    "tallystick": send_tallystick,
    "tallystick, lists": send_tallystick_lists,
    "tallystick, Arrow": send_tallystick_arrow,
    "confluent-kafka": send_confluent_kafka,
    "kafka-python": send_kafka_python,
    "aiokafka": send_aiokafka,
}
NEEDS: Final = {
    "tallystick, Arrow": "pyarrow",
    "confluent-kafka": "confluent_kafka",
    "kafka-python": "kafka",
    "aiokafka": "aiokafka",
}
"""The package that each client needs to be measured."""


def main() -> None:
    """Read the load from the only argument, send it, and print the time it took."""
    load: Load = json.loads(sys.argv[1])
    seconds, cpu_seconds = CLIENTS[load["client"]](load)
    print(json.dumps({"seconds": seconds, "cpu_seconds": cpu_seconds}))


if __name__ == "__main__":
    main()
