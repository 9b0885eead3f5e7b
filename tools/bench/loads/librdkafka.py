"""A load of librdkafka as a process: `python -m tools.bench.loads.librdkafka JSON` prints a JSON line."""

import ctypes
import json
import statistics
import sys
import time
from typing import Final, TypedDict

from tools.bench import librdkafka
from tools.bench.librdkafka import LIB, Client, LoadFailed, Message

BATCH: Final = 10_000
PATIENCE_S: Final = 60.0
VARIANTS: Final = 512
CONSUME_PASSES: Final = 3


class Load(TypedDict):
    """The load: what to send or to read."""

    mode: str
    bootstrap: str
    topic: str
    partitions: int
    messages: int
    size: int
    codec: str


def make_values(size: int) -> list[bytes]:
    """Return JSON-like texts of one size that compress about as well as real ones (lz4: 2x)."""
    texts = []
    for i in range(VARIANTS):
        fields = []
        seed = i + 1
        while sum(map(len, fields)) < size:
            seed = (seed * 1_103_515_245 + 12_345) & 0x7FFFFFFF
            fields.append(
                f'{{"id":{seed},"carrier":"{seed % 16:02d}","delay":{seed % 997},"tail":"N{seed:x}"}},'
            )
        texts.append("".join(fields)[:size].encode())
    return texts


def produce(load: Load) -> float:
    """Send everything, wait for every acknowledgement, and return the seconds this took."""
    client = Client(
        librdkafka.PRODUCER,
        {
            "bootstrap.servers": load["bootstrap"],
            "acks": "all",
            "enable.idempotence": "true",
            "linger.ms": "5",
            "compression.codec": load["codec"],
            # Room for five batches in flight to six partitions; with more the client touches fresh memory.
            "queue.buffering.max.messages": "500000",
            "queue.buffering.max.kbytes": "262144",
        },
    )
    topic = client.open_topic(load["topic"])
    before = sum(client.read_offsets(load["topic"], p)[1] for p in range(load["partitions"]))
    texts = [ctypes.create_string_buffer(v, len(v)) for v in make_values(load["size"])]
    batch = (Message * BATCH)()
    for i in range(BATCH):
        text = texts[i % VARIANTS]
        batch[i].payload, batch[i].len = ctypes.addressof(text), len(text)
        batch[i].partition = i % load["partitions"]
    flags = librdkafka.FLAG_COPY | librdkafka.FLAG_BLOCK | librdkafka.FLAG_PARTITION
    began = time.monotonic()
    for at in range(0, load["messages"], BATCH):
        count = min(BATCH, load["messages"] - at)
        if LIB.rd_kafka_produce_batch(topic, 0, flags, batch, count) != count:
            raise LoadFailed("librdkafka accepted only a part of a batch")
    if LIB.rd_kafka_flush(client.handle, int(PATIENCE_S * 1000)):
        raise LoadFailed(f"not everything was acknowledged {PATIENCE_S:g} s after the last message")
    seconds = time.monotonic() - began
    after = sum(client.read_offsets(load["topic"], p)[1] for p in range(load["partitions"]))
    if after - before != load["messages"]:
        raise LoadFailed(f"{load['messages']} messages sent, the broker shows {after - before}")
    LIB.rd_kafka_topic_destroy(topic)
    client.close()
    return seconds


def consume(load: Load) -> float:
    """Read everything from the beginning; return the seconds from the first request to the last message."""
    client = Client(
        librdkafka.CONSUMER,
        {
            "bootstrap.servers": load["bootstrap"],
            "group.id": "bench",
            "fetch.queue.backoff.ms": "2",  # its default of 1 s stalls the reader when its queue is full
            "queued.min.messages": "1000000",
            "check.crcs": "true",
        },
    )
    topic = client.open_topic(load["topic"])
    queue = LIB.rd_kafka_queue_new(client.handle)
    client.read_offsets(load["topic"], 0)
    messages, began = 0, time.monotonic()
    for partition in range(load["partitions"]):
        LIB.rd_kafka_consume_start_queue(topic, partition, librdkafka.OFFSET_BEGINNING, queue)
    while messages < load["messages"]:
        count = LIB.rd_kafka_consume_callback_queue(queue, 1000, librdkafka.NO_OP, None)
        if count < 0 or time.monotonic() > began + PATIENCE_S:
            raise LoadFailed(f"read {messages} of {load['messages']} messages in {PATIENCE_S:g} s")
        messages += count
    seconds = time.monotonic() - began
    for partition in range(load["partitions"]):
        LIB.rd_kafka_consume_stop(topic, partition)
    LIB.rd_kafka_queue_destroy(queue)
    LIB.rd_kafka_topic_destroy(topic)
    client.close()
    return seconds


def main() -> None:
    """Read the load from the only argument, run it, and print the time it took."""
    load: Load = json.loads(sys.argv[1])
    # A topic is read in a fraction of a second, and can be read again; it cannot be written again.
    seconds = [produce(load)] if load["mode"] == "produce" else [consume(load) for _ in range(CONSUME_PASSES)]
    print(json.dumps({"seconds": statistics.median(seconds), "all_seconds": sum(seconds)}))


if __name__ == "__main__":
    main()
