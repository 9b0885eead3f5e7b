"""The rows of the tables, and the two durability settings under which they are measured."""

import random
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from typing import Final, TypeVar

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Durability:
    """One durability promise, and the settings by which each broker gives it."""

    name: str
    promise: str
    ours: dict[str, str]
    kafka: dict[str, str]


OS: Final = Durability(
    name="os",
    promise="acknowledged when the operating system has it",
    ours={"flush.policy": "os"},
    kafka={},
)
SYNC: Final = Durability(
    name="sync",
    promise="on the disk before it is acknowledged",
    ours={"flush.policy": "ack"},
    kafka={"log.flush.interval.messages": "1"},
)
DURABILITIES: Final = (OS, SYNC)


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One kind of load: message size, partitions and codec."""

    size: int
    partitions: int
    codec: str

    def __str__(self) -> str:
        return f"{self.size} B, {self.partitions} partition{'s'[: self.partitions > 1]}, {self.codec}"

    def choose_count(self, quick: bool) -> int:
        """Return how many messages to send: enough that ramp-up does not dominate."""
        full = 2_000_000 if self.size <= 100 else 500_000
        return full // 5 if quick else full


ROWS: Final = tuple(
    Row(size=size, partitions=partitions, codec=codec)
    for size, partitions, codec in product((100, 1000), (1, 6), ("none", "lz4"))
)
QUICK_ROWS: Final = tuple(row for row in ROWS if row.partitions == 1 or row.codec == "none")

LATENCY_RATE: Final = 1000
# Ten seconds of the same small requests first: bulk load does not warm a JVM for them.
LATENCY_SECONDS: Final = 30
LATENCY_WARM_UP_S: Final = 10
MEMORY_MESSAGES: Final = 3_000_000
STARTS: Final = 7


def shuffle(items: Sequence[T]) -> list[T]:
    """Return the items in random order, so that the same one does not always come first."""
    return random.sample(items, len(items))
