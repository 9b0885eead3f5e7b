"""A consumer as a process: `python -m tools.bench.loads.consumer JSON` reads, and prints a JSON line.

Every consumer reads one partition from its beginning, alone, as its documentation shows: some hundred or
thousand messages per call if it has such a call. The clock runs from the first message to the last.
"""

import asyncio
import json
import sys
import time
from importlib import import_module
from typing import Final, TypedDict

PATIENCE_S: Final = 60.0
MANY: Final = 5_000


class Reading(TypedDict):
    """The consumer, topic and number of messages of a run."""

    client: str
    bootstrap: str
    topic: str
    messages: int


class Clock:
    """Counts messages, and measures the time from the first answer to the last message."""

    def __init__(self, reading: Reading) -> None:
        self.remaining, self.count = reading["messages"], 0
        self.until = time.perf_counter() + PATIENCE_S
        self.began = self.cpu = self.seconds = self.cpu_seconds = 0.0

    def add(self, messages: int) -> None:
        """Count the messages of one answer. The first is left out: it includes the connection."""
        now, cpu = time.perf_counter(), time.process_time()
        self.remaining -= messages
        if not self.began:
            if messages:
                self.began, self.cpu = now, cpu
        else:
            self.count += messages
        self.seconds, self.cpu_seconds = now - self.began, cpu - self.cpu
        if now > self.until:
            raise RuntimeError(f"{self.remaining} messages were not read in {PATIENCE_S:g} s")


def read_tallystick(reading: Reading, clock: Clock) -> None:
    """Read with our Consumer, records as objects."""
    package = import_module("tallystick")
    settings = {"bootstrap.servers": reading["bootstrap"], "max.poll.records": MANY}
    with package.Consumer(settings) as consumer:
        consumer.assign([package.TopicPartition(reading["topic"], 0)])
        consumer.seek_to_beginning()
        while clock.remaining > 0:
            clock.add(len(consumer.poll(1.0)))


def read_tallystick_arrow(reading: Reading, clock: Clock) -> None:
    """Read with our Consumer, Arrow batches."""
    package = import_module("tallystick")
    with package.Consumer({"bootstrap.servers": reading["bootstrap"]}) as consumer:
        consumer.assign([package.TopicPartition(reading["topic"], 0)])
        consumer.seek_to_beginning()
        while clock.remaining > 0:
            clock.add(consumer.poll_arrow(1.0).num_rows)


def read_confluent_kafka(reading: Reading, clock: Clock) -> None:
    """Read with librdkafka's Python binding."""
    package = import_module("confluent_kafka")
    consumer = package.Consumer(
        {
            "bootstrap.servers": reading["bootstrap"],
            "group.id": "bench",
            "enable.auto.commit": False,
            # By default it pauses for a second whenever 100,000 messages are queued.
            "queued.min.messages": 1_000_000,
            "fetch.queue.backoff.ms": 1,
        }
    )
    consumer.assign([package.TopicPartition(reading["topic"], 0, 0)])
    while clock.remaining > 0:
        clock.add(len(consumer.consume(MANY, 1.0)))
    consumer.close()


def read_kafka_python(reading: Reading, clock: Clock) -> None:
    """Read with the pure Python client kafka-python."""
    package = import_module("kafka")
    consumer = package.KafkaConsumer(bootstrap_servers=reading["bootstrap"], max_poll_records=MANY)
    at = package.TopicPartition(reading["topic"], 0)
    consumer.assign([at])
    consumer.seek_to_beginning(at)
    while clock.remaining > 0:
        clock.add(sum(map(len, consumer.poll(1000).values())))
    consumer.close()


def read_aiokafka(reading: Reading, clock: Clock) -> None:
    """Read with the asyncio client."""

    async def main() -> None:
        package = import_module("aiokafka")
        consumer = package.AIOKafkaConsumer(bootstrap_servers=reading["bootstrap"], enable_auto_commit=False)
        await consumer.start()
        try:
            at = package.TopicPartition(reading["topic"], 0)
            consumer.assign([at])
            await consumer.seek_to_beginning(at)
            while clock.remaining > 0:
                records = await consumer.getmany(timeout_ms=1000, max_records=MANY)
                clock.add(sum(map(len, records.values())))
        finally:
            await consumer.stop()

    asyncio.run(main())


CONSUMERS: Final = {
    "tallystick": read_tallystick,
    "tallystick, Arrow": read_tallystick_arrow,
    "confluent-kafka": read_confluent_kafka,
    "kafka-python": read_kafka_python,
    "aiokafka": read_aiokafka,
}


def main() -> None:
    """Read as the only argument says, and print the time it took."""
    reading: Reading = json.loads(sys.argv[1])
    clock = Clock(reading)
    CONSUMERS[reading["client"]](reading, clock)
    print(json.dumps({"seconds": clock.seconds, "cpu_seconds": clock.cpu_seconds, "counted": clock.count}))


if __name__ == "__main__":
    main()
