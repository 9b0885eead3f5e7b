"""Unloading and reloading of the partitions of a coordinator's own topic, as Kafka does it.

When it is unknown whether an append happened, or an invariant is broken, no more decisions may rest on the
state in memory. The partition goes off, waiting clients get NOT_COORDINATOR, and after a short delay its log,
which is authoritative, is read again; during the read clients get COORDINATOR_LOAD_IN_PROGRESS. A failed read
is retried with exponential backoff; no operator has to intervene.

A log that is offline is not read again: its data directory has failed, and the process ends [LOG-4]. Neither
is one whose bytes have changed: it would read the same again, until a person restores it.
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
from tallystick.kernel.value import Value
from tallystick.protocol.records import iter_headers
from tallystick.storage.disk.fs import CorruptLog, LogOffline

BACKOFF_MS: Final = 100
BACKOFF_DOUBLINGS: Final = 8
BACKOFF_MAX_MS: Final = 20_000
# A partition that has served for this long counts as healthy: its next loss starts at the shortest backoff.
HEALTHY_AFTER_MS: Final = 60_000
_NEVER: Final = -1


class CoordinatorRefusals(Value):
    """The coordinator's answers while it cannot decide."""

    stopped: Reject
    loading: Reject
    lost: Reject
    damaged: Reject
    timed_out: Reject

    @classmethod
    @cache
    def for_topic(cls, topic: str) -> "CoordinatorRefusals":
        """Return the refusals worded for a coordinator's topic."""
        return cls(
            stopped=Reject(
                ErrorCode.COORDINATOR_NOT_AVAILABLE, "the broker is stopping; find the coordinator again"
            ),
            loading=Reject(
                ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, f"the coordinator is reading {topic}; retry"
            ),
            lost=Reject(
                ErrorCode.NOT_COORDINATOR, f"the partition of {topic} is offline; find the coordinator again"
            ),
            damaged=Reject(
                ErrorCode.COORDINATOR_NOT_AVAILABLE,
                f"the partition of {topic} is damaged and is not served; the broker's log names the file",
            ),
            timed_out=Reject(
                ErrorCode.COORDINATOR_NOT_AVAILABLE,
                f"an append to {topic} took too long, and may still succeed; find the coordinator again and"
                " retry",
            ),
        )


class ReloadOwner(Protocol):
    """The coordinator that owns the partitions."""

    async def load(self, index: int) -> None:
        """Read the whole log of the partition and load its state. Order: all that was read is durable."""
        ...

    def on_loaded(self, index: int) -> None:
        """Continue the unfinished work of a partition that serves again."""
        ...

    def wake_at(self, at_ms: int) -> None:
        """Call `run_due` at this monotonic time."""
        ...


class PartitionReloader:
    """The partitions that are off, and when each is read back. Lives on the loop, owned by its coordinator.

    loss_counts  how often each partition was lost; work begun before a loss is void afterwards
    """

    def __init__(self, topic: str, owner: ReloadOwner, clock: Clock, log: logging.Logger) -> None:
        self._topic = topic
        self._owner = owner
        self._clock = clock
        self._log = log
        self._refusals = CoordinatorRefusals.for_topic(topic)
        self._reload_at_ms: dict[int, int] = {}  # when each lost partition is read again
        self._loading_indexes: set[int] = set()
        self._damaged_indexes: set[int] = set()
        self._failures: Counter[int] = Counter()
        self._serving_since_ms: dict[int, int] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._is_stopped = False
        self.loss_counts: Counter[int] = Counter()
        self.reload_count = 0

    # ---- what is off

    def __bool__(self) -> bool:
        return bool(self._reload_at_ms or self._loading_indexes)

    def find_refusal(self, index: int) -> Reject | None:
        """Return the reason why the partition refuses commands now; None if it serves."""
        if index in self._loading_indexes:
            return self._refusals.loading
        if index in self._damaged_indexes:
            return self._refusals.damaged
        return self._refusals.lost if index in self._reload_at_ms else None

    def is_lost(self, index: int) -> bool:
        """Return whether the partition is off, whether or not it is being read back now."""
        return index in self._reload_at_ms

    def is_partition_loading(self, index: int) -> bool:
        return index in self._loading_indexes

    @property
    def unavailable_indexes(self) -> frozenset[int]:
        """All partitions that are off."""
        return frozenset((*self._loading_indexes, *self._reload_at_ms))

    @property
    def lost_count(self) -> int:
        """Number of partitions that are off, without those that the start has yet to read."""
        return len(self._reload_at_ms)

    @property
    def is_loading(self) -> bool:
        """Whether a partition is being read or about to be; repeated failures do not count."""
        return bool(self._loading_indexes) or any(
            at_ms != _NEVER and self._failures[index] < 2 for index, at_ms in self._reload_at_ms.items()
        )

    # ---- reading

    def mark_loading(self, indexes: Iterable[int]) -> None:
        """Mark the partitions that a start will read with `load`."""
        self._loading_indexes.update(indexes)

    async def load(self, index: int) -> None:
        """Read a partition at a start, or read it back; lose it if that fails. Never raises."""
        self._loading_indexes.add(index)
        losses = self.loss_counts[index]
        try:
            await self._owner.load(index)
        except Exception as exc:
            # The log is unreadable or its content impossible: the other partitions must not wait for it.
            self._loading_indexes.discard(index)
            self._schedule_reload(index, exc, "could not be read and is not served; it is read again")
            return
        self._loading_indexes.discard(index)
        if self.loss_counts[index] != losses:
            return  # lost again meanwhile
        if self._reload_at_ms.pop(index, None) is not None:
            self.reload_count += 1
            self._serving_since_ms[index] = self._clock.monotonic_ms()
            self._log.warning("%s-%d was read again and is served", self._topic, index)
        self._owner.on_loaded(index)

    def mark_lost(self, index: int, cause: BaseException) -> None:
        """Declare the partition's state in memory invalid. Order: its waiting callers have been answered."""
        self.loss_counts[index] += 1
        back_ms = self._serving_since_ms.pop(index, None)
        if back_ms is not None and self._clock.monotonic_ms() - back_ms >= HEALTHY_AFTER_MS:
            del self._failures[index]
        self._schedule_reload(index, cause, "failed and is not served; it is read again")

    def _schedule_reload(self, index: int, cause: BaseException, text: str) -> None:
        if isinstance(cause, LogOffline):
            self._reload_at_ms[index] = _NEVER
            self._log.error(
                "%s-%d is not served until the broker restarts: %r", self._topic, index, cause, exc_info=cause
            )
            return
        if isinstance(cause, CorruptLog):
            self._reload_at_ms[index] = _NEVER
            self._damaged_indexes.add(index)
            self._log.error(
                "%s-%d is damaged and is not served until the broker restarts: %s", self._topic, index, cause
            )
            return
        wait_ms = min(BACKOFF_MS << min(self._failures[index], BACKOFF_DOUBLINGS), BACKOFF_MAX_MS)
        self._failures[index] += 1
        self._reload_at_ms[index] = self._clock.monotonic_ms() + wait_ms
        self._log.error("%s-%d %s in %d ms: %r", self._topic, index, text, wait_ms, cause, exc_info=cause)
        if not self._is_stopped:
            self._owner.wake_at(self._reload_at_ms[index])

    def run_due(self, now_ms: int) -> None:
        """Start to read back the partitions whose backoff has passed."""
        scheduled = {index: at_ms for index, at_ms in self._reload_at_ms.items() if at_ms != _NEVER}
        for index, at_ms in scheduled.items():
            if index in self._loading_indexes or self._is_stopped:
                continue
            if at_ms <= now_ms:
                self._loading_indexes.add(index)
                task = asyncio.get_running_loop().create_task(self.load(index))
                self._tasks.add(task)
                task.add_done_callback(self._tasks.discard)
            else:
                self._owner.wake_at(at_ms)

    async def stop(self) -> None:
        """Cancel all reads and start no more."""
        self._is_stopped = True
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)


def find_last_offset(chunk: bytes) -> Offset | None:
    """Return the offset of the last record in whole batches."""
    last = None
    for _, header in iter_headers(chunk):
        last = Offset(header.next_offset - 1)
    return last
