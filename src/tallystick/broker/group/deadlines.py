"""Wake-up times of groups, and the backoff of a deadline whose record was refused."""

import heapq
from collections.abc import Iterator
from typing import Final

from tallystick.broker.group.machine.model import DeadlineMs
from tallystick.kernel.ids import GroupId

# Kafka's CoordinatorRuntime delays a timer whose operation failed by as much.
BACKOFF_MS: Final = 500


class GroupDeadlines:
    """Wake-ups, at most one per group. Lives on the loop, owned by the group coordinator."""

    def __init__(self) -> None:
        self._wake_heap: list[tuple[int, GroupId]] = []
        self._wake_at: dict[GroupId, int] = {}
        self._attempted_ms: dict[GroupId, int] = {}

    @property
    def next_ms(self) -> int | None:
        """Monotonic time of the next wake-up; superseded wake-ups count, too."""
        return self._wake_heap[0][0] if self._wake_heap else None

    def schedule(self, group_id: GroupId, at_ms: int) -> bool:
        """Schedule a look at the group for this time, or before. Returns whether the schedule changed."""
        scheduled_ms = self._wake_at.get(group_id)
        if scheduled_ms is not None and scheduled_ms <= at_ms:
            return False
        self._wake_at[group_id] = at_ms
        heapq.heappush(self._wake_heap, (at_ms, group_id))
        return True

    def take_due(self, now_ms: int) -> Iterator[GroupId]:
        """Yield the groups that are due, earliest first, with those that become due meanwhile."""
        while self._wake_heap and self._wake_heap[0][0] <= now_ms:
            at_ms, group_id = heapq.heappop(self._wake_heap)
            if self._wake_at.get(group_id) == at_ms:
                del self._wake_at[group_id]
                yield group_id

    def record_attempt(self, group_id: GroupId, now_ms: int) -> None:
        """Note that deadlines up to `now_ms` were acted on, successfully or not."""
        self._attempted_ms[group_id] = now_ms

    def clear_backoff(self, group_id: GroupId) -> None:
        """Drop the backoff of a group."""
        self._attempted_ms.pop(group_id, None)

    def apply_backoff(self, group_id: GroupId, deadline: DeadlineMs) -> int:
        """Return when to act on a deadline: with a delay if it was tried before, and still stands.

        Its record was refused then (a full disk, no descriptor), or could not be encoded. Retrying at once
        would block the loop until the disk recovers.
        """
        tried_ms = self._attempted_ms.get(group_id)
        if tried_ms is None:
            return deadline
        if deadline <= tried_ms:
            return tried_ms + BACKOFF_MS
        del self._attempted_ms[group_id]
        return deadline
