"""Members join, leave and die while a producer runs: nothing is lost, nothing twice within a generation."""

import json
import queue
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import KafkaError, Message, Producer

from tallystick.testing import eventually

MEMBER = Path(__file__).parent / "member.py"
PARTITIONS = 6


class MemberProcess:
    """member.py as a child; `lines` is what it has said so far."""

    def __init__(self, *arguments: str) -> None:
        self.lines: list[list[Any]] = []
        self.process = subprocess.Popen(
            [sys.executable, str(MEMBER), *arguments], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
        )
        self._reader = threading.Thread(target=self._read)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            if line.endswith(b"\n"):  # a killed member may leave half a line
                self.lines.append(json.loads(line))

    def end(self, *, kill: bool) -> None:
        if self.process.poll() is None:
            self.process.kill() if kill else self.process.terminate()
        self.process.wait(30)
        self._reader.join(30)
        assert self.process.stdout is not None
        self.process.stdout.close()

    @property
    def owned(self) -> set[int]:
        """The partitions it holds, from its assignments and revocations, eager or cooperative."""
        held: set[int] = set()
        for what, *values in list(self.lines):
            if what == "assigned":
                held |= set(values[0])
            elif what == "revoked":
                held -= set(values[0])
        return held

    @property
    def records(self) -> list[tuple[int, int, str]]:
        return [(v[0], v[1], v[2]) for what, *v in list(self.lines) if what == "record"]

    def check_no_repeats_while_owned(self) -> None:
        """Between two changes of its assignment a member sees each offset of a partition once, in order."""
        last: dict[int, int] = {}
        for what, *values in self.lines:
            if what == "record":
                partition, offset, _ = values
                assert offset == last.get(partition, offset - 1) + 1, (partition, offset, last)
                last[partition] = offset
            elif what in ("assigned", "revoked"):
                for partition in values[0]:
                    last.pop(partition, None)


@contextmanager
def steady_producer(bootstrap: str, topic: str) -> Iterator[list[str]]:
    """An idempotent producer that goes on in the background; yields the values acknowledged so far."""
    acknowledged: list[str] = []
    failures: queue.Queue[KafkaError] = queue.Queue()
    stop = threading.Event()

    def delivered(error: KafkaError | None, message: Message) -> None:
        if error is None:
            acknowledged.append((message.value() or b"").decode())
        else:
            failures.put(error)

    def run() -> None:
        producer = Producer({"bootstrap.servers": bootstrap, "enable.idempotence": True, "linger.ms": 5})
        number = 0
        while not stop.wait(0.005):
            for _ in range(10):
                producer.produce(topic, str(number), partition=number % PARTITIONS, on_delivery=delivered)
                number += 1
            producer.poll(0)
        producer.flush(60)

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield acknowledged
    finally:
        stop.set()
        thread.join(90)
    assert failures.empty(), failures.get()


@pytest.mark.gate(1)
@pytest.mark.parametrize("strategy", ["range", "cooperative-sticky"])
def test_nothing_is_lost_when_members_join_leave_and_die(cluster: Any, strategy: str) -> None:
    topic, group = cluster.topic(PARTITIONS), cluster.fresh_name("group")
    members: list[MemberProcess] = []
    with ExitStack() as stack:

        def join() -> MemberProcess:
            member = MemberProcess(cluster.bootstrap, group, topic, strategy)
            stack.callback(member.end, kill=True)
            members.append(member)
            return member

        def settled(*alive: MemberProcess) -> bool:
            """Every partition has exactly one owner, and the shares are even."""
            shares = [m.owned for m in alive]
            even = all(len(s) == PARTITIONS // len(alive) for s in shares)
            return even and set().union(*shares) == set(range(PARTITIONS))

        with steady_producer(cluster.bootstrap, topic) as acknowledged:
            first = join()
            eventually(lambda: settled(first) and len(first.records) > 100)
            second, third = join(), join()
            eventually(lambda: settled(first, second, third) and len(third.records) > 100, 40)
            second.end(kill=False)
            eventually(lambda: len(first.owned) == len(third.owned) == 3, 40)
            seen = len(first.records)
            third.end(kill=True)
            eventually(lambda: settled(first) and len(first.records) > seen + 500, 40)
        eventually(lambda: {v for m in members for _, _, v in m.records} >= set(acknowledged), 40)
        first.end(kill=False)
    for member in members:
        member.check_no_repeats_while_owned()
    everything = [(p, o) for m in members for p, o, _ in m.records]
    by_offset: dict[tuple[int, int], set[str]] = {}
    for member in members:
        for partition, offset, value in member.records:
            by_offset.setdefault((partition, offset), set()).add(value)
    assert all(len(values) == 1 for values in by_offset.values())
    # The values of one partition, in the order of offsets, are what the producer sent there, once each.
    for partition in range(PARTITIONS):
        values = [int(next(iter(by_offset[key]))) for key in sorted(by_offset) if key[0] == partition]
        assert values == list(range(partition, partition + PARTITIONS * len(values), PARTITIONS))
    # Only a change of owner may repeat records; a commit precedes every one of them but a death.
    assert len(everything) - len(set(everything)) < len(everything) // 2
