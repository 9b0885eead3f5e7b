"""Unloading and reloading of the partitions of a coordinator's own topic, as Kafka does it.

When it is unknown whether an append happened, or an invariant is broken, no more decisions may rest on the
state in memory. The partition goes off, waiting clients get NOT_COORDINATOR, and after a short delay its log,
which is authoritative, is read again; during the read clients get COORDINATOR_LOAD_IN_PROGRESS. A failed read
is retried with exponential backoff; no operator has to intervene.

A log that is offline is not read again: its data directory has failed, and the process ends [LOG-4].
"""

import asyncio
import logging
from collections import Counter
from collections.abc import Iterable
from functools import cache
from typing import Final, Protocol

from tallystick.kernel.clock import Clock
from tallystick.kernel.codes import ErrorCode
from tallystick.kernel.errors import Reject
from tallystick.kernel.ids import Offset
from tallystick.kernel.value import frozen
from tallystick.protocol.records import iter_headers
from tallystick.storage.fs import LogOffline

BACKOFF_MS: Final = 100
BACKOFF_DOUBLINGS: Final = 8
BACKOFF_MAX_MS: Final = 20_000
# A partition that has served for this long counts as healthy: its next loss starts at the shortest backoff.
STEADY_MS: Final = 60_000
_NEVER: Final = -1


@frozen
class Refusals:
    """The coordinator's answers while it cannot decide."""

    stopped: Reject
    loading: Reject
    lost: Reject
    slow: Reject

    @classmethod
    @cache
    def of(cls, topic: str) -> "Refusals":
        """Return the refusals worded for a coordinator's topic."""
        return cls(
            stopped=Reject(ErrorCode.COORDINATOR_NOT_AVAILABLE, "the coordinator is stopping"),
            loading=Reject(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, f"{topic} is being read"),
            lost=Reject(ErrorCode.NOT_COORDINATOR, f"the partition of {topic} is offline"),
            slow=Reject(ErrorCode.COORDINATOR_NOT_AVAILABLE, f"{topic} did not answer in time"),
        )


class Owner(Protocol):
    """The coordinator that owns the partitions."""

    async def read_back(self, index: int) -> None:
        """Read the whole log of the partition and load its state. Order: all that was read is durable."""
        ...

    def resume(self, index: int) -> None:
        """Continue the unfinished work of a partition that serves again."""
        ...

    def wake_at(self, at_ms: int) -> None:
        """Call `run_due` at this monotonic time."""
        ...


class Reloads:
    """The partitions that are off, and when each is read back. Lives on the loop, owned by its coordinator.

    losses  how often each partition was lost; work begun before a loss is void afterwards
    """

    def __init__(self, topic: str, owner: Owner, clock: Clock, log: logging.Logger) -> None:
        self._topic = topic
        self._owner = owner
        self._clock = clock
        self._log = log
        self._refusals = Refusals.of(topic)
        self._due: dict[int, int] = {}  # when each lost partition is read again
        self._reading: set[int] = set()
        self._failures: Counter[int] = Counter()
        self._back_ms: dict[int, int] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._stopped = False
        self.losses: Counter[int] = Counter()
        self.total = 0

    # ---- what is off

    def __bool__(self) -> bool:
        return bool(self._due or self._reading)

    def refusal(self, index: int) -> Reject | None:
        """Return the reason why the partition refuses commands now; None if it serves."""
        if index in self._reading:
            return self._refusals.loading
        return self._refusals.lost if index in self._due else None

    def is_lost(self, index: int) -> bool:
        """Return whether the partition is off, whether or not it is being read back now."""
        return index in self._due

    def is_reading(self, index: int) -> bool:
        return index in self._reading

    @property
    def indexes(self) -> frozenset[int]:
        """All partitions that are off."""
        return frozenset((*self._reading, *self._due))

    @property
    def lost(self) -> int:
        """Number of partitions that are off, without those that the start has yet to read."""
        return len(self._due)

    @property
    def is_loading(self) -> bool:
        """Whether a partition is being read or about to be; repeated failures do not count."""
        return bool(self._reading) or any(self._failures[index] < 2 for index in self._due)

    # ---- reading

    def begin(self, indexes: Iterable[int]) -> None:
        """Mark the partitions that a start will read with `read`."""
        self._reading.update(indexes)

    async def read(self, index: int) -> None:
        """Read a partition at a start, or read it back; lose it if that fails. Never raises."""
        self._reading.add(index)
        losses = self.losses[index]
        try:
            await self._owner.read_back(index)
        except Exception as exc:
            # The log is unreadable or its content impossible: the other partitions must not wait for it.
            self._reading.discard(index)
            self._put_off(index, exc, "cannot be read")
            return
        self._reading.discard(index)
        if self.losses[index] != losses:
            return  # lost again meanwhile
        if self._due.pop(index, None) is not None:
            self.total += 1
            self._back_ms[index] = self._clock.monotonic_ms()
            self._log.warning("%s-%d was read back and serves again", self._topic, index)
        self._owner.resume(index)

    def lose(self, index: int, cause: BaseException) -> None:
        """Declare the partition's state in memory invalid. Order: its waiting callers have been answered."""
        self.losses[index] += 1
        back_ms = self._back_ms.pop(index, None)
        if back_ms is not None and self._clock.monotonic_ms() - back_ms >= STEADY_MS:
            del self._failures[index]
        self._put_off(index, cause, "is off until it is read back")

    def _put_off(self, index: int, cause: BaseException, said: str) -> None:
        if isinstance(cause, LogOffline):
            self._due[index] = _NEVER
            self._log.error("%s-%d is off: %r", self._topic, index, cause, exc_info=cause)
            return
        wait_ms = min(BACKOFF_MS << min(self._failures[index], BACKOFF_DOUBLINGS), BACKOFF_MAX_MS)
        self._failures[index] += 1
        self._due[index] = self._clock.monotonic_ms() + wait_ms
        self._log.error("%s-%d %s, in %d ms: %r", self._topic, index, said, wait_ms, cause, exc_info=cause)
        if not self._stopped:
            self._owner.wake_at(self._due[index])

    def run_due(self, now_ms: int) -> None:
        """Start to read back the partitions whose backoff has passed."""
        waiting = {index: at_ms for index, at_ms in self._due.items() if at_ms != _NEVER}
        for index, at_ms in waiting.items():
            if index in self._reading or self._stopped:
                continue
            if at_ms <= now_ms:
                self._reading.add(index)
                task = asyncio.get_running_loop().create_task(self.read(index))
                self._tasks.add(task)
                task.add_done_callback(self._tasks.discard)
            else:
                self._owner.wake_at(at_ms)

    async def stop(self) -> None:
        """Cancel all reads and start no more."""
        self._stopped = True
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)


def last_offset_of(piece: bytes) -> Offset | None:
    """Return the offset of the last record in whole batches."""
    last = None
    for _, header in iter_headers(piece):
        last = Offset(header.next_offset - 1)
    return last
