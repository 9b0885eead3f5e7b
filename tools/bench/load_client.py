"""A sending client as a process: `python -m tools.bench.load_client JSON` sends, and prints a JSON line.

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

from tools.bench.load_librdkafka import values

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


Taken = tuple[float, float]
"""Elapsed seconds, and seconds of this process's CPU time."""


def texts(load: Load) -> list[bytes]:
    """Return all messages, made beforehand; uneven ones have half to one and a half times the size."""
    size = load["size"]
    if load["uneven"]:
        some = [text[: size // 2 + 7 * i % (size + 1)] for i, text in enumerate(values(size + size // 2))]
    else:
        some = values(size)
    return [some[i % len(some)] for i in range(load["messages"])]


def measured(send_all: Callable[[], object]) -> Taken:
    """Return how long sending takes."""
    started, cpu = time.perf_counter(), time.process_time()
    send_all()
    return time.perf_counter() - started, time.process_time() - cpu


def tallystick(load: Load) -> Taken:
    """Send with our Producer, a call per message."""
    producer = _ours(load)
    messages, send, topic = texts(load), producer.send, load["topic"]

    def send_all() -> None:
        for message in messages:
            send(topic, message)
        producer.flush(PATIENCE_S)

    with producer:
        return measured(send_all)


def tallystick_lists(load: Load) -> Taken:
    """Send with our Producer, a list of 100,000 per call."""
    messages = texts(load)
    return _in_chunks(load, [messages[at : at + CHUNK] for at in range(0, len(messages), CHUNK)])


def tallystick_arrow(load: Load) -> Taken:
    """Send with our Producer, an Arrow array of 100,000 per call."""
    pyarrow = import_module("pyarrow")
    messages = texts(load)
    return _in_chunks(
        load, [pyarrow.array(messages[at : at + CHUNK]) for at in range(0, len(messages), CHUNK)]
    )


def _in_chunks(load: Load, chunks: list[list[bytes]]) -> Taken:
    producer = _ours(load)

    def send_all() -> None:
        sent = [producer.send_batch(load["topic"], chunk) for chunk in chunks]
        for delivery in sent:
            delivery.result(PATIENCE_S)

    with producer:
        return measured(send_all)


def _ours(load: Load):  # type: ignore[no-untyped-def]
    producer = import_module("tallystick").Producer(
        {
            "bootstrap.servers": load["bootstrap"],
            "batch.size": BATCH_BYTES,
            "compression.type": load["codec"],
        }
    )
    producer.send(load["topic"], b"first").result(PATIENCE_S)
    return producer


def confluent_kafka(load: Load) -> Taken:
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
    messages, produce, topic = texts(load), producer.produce, load["topic"]
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

    return measured(send_all)


def kafka_python(load: Load) -> Taken:
    """Send with the pure Python client kafka-python."""
    producer = import_module("kafka").KafkaProducer(
        bootstrap_servers=load["bootstrap"],
        acks="all",
        linger_ms=5,
        batch_size=BATCH_BYTES,
        compression_type=None if load["codec"] == "none" else load["codec"],
    )
    messages, send, topic = texts(load), producer.send, load["topic"]
    send(topic, b"first").get(PATIENCE_S)

    def send_all() -> None:
        for message in messages:
            send(topic, message)
        producer.flush(PATIENCE_S)

    return measured(send_all)


def aiokafka(load: Load) -> Taken:
    """Send with the asyncio client as its documentation shows: a future per message, awaited later."""

    async def main() -> Taken:
        producer = import_module("aiokafka").AIOKafkaProducer(
            bootstrap_servers=load["bootstrap"],
            acks="all",
            linger_ms=5,
            max_batch_size=BATCH_BYTES,
            compression_type=None if load["codec"] == "none" else load["codec"],
        )
        await producer.start()
        try:
            messages, topic = texts(load), load["topic"]
            await producer.send_and_wait(topic, b"first")
            started, cpu = time.perf_counter(), time.process_time()
            for message in messages:
                await producer.send(topic, message)
            await producer.flush()
            return time.perf_counter() - started, time.process_time() - cpu
        finally:
            await producer.stop()

    return asyncio.run(main())


CLIENTS: Final = {
    "tallystick": tallystick,
    "tallystick, lists": tallystick_lists,
    "tallystick, Arrow": tallystick_arrow,
    "confluent-kafka": confluent_kafka,
    "kafka-python": kafka_python,
    "aiokafka": aiokafka,
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
