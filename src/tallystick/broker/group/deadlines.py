"""When each group is looked at next, and when a deadline whose record was refused is tried again."""

import heapq
from collections.abc import Iterator
from typing import Final

from tallystick.broker.group.machine.model import DeadlineMs
from tallystick.kernel.ids import GroupId

# As Kafka: CoordinatorRuntime puts a timer whose operation failed off for so long.
BACKOFF_MS: Final = 500


class Deadlines:
    """One wake-up a group at most. Lives on the loop, owned by the group coordinator."""

    def __init__(self) -> None:
        self._wakes: list[tuple[int, GroupId]] = []
        self._wake_at: dict[GroupId, int] = {}
        self._tried_ms: dict[GroupId, int] = {}

    @property
    def next_ms(self) -> int | None:
        """Monotonic time of the next wake-up; one that was moved forward is counted, too."""
        return self._wakes[0][0] if self._wakes else None

    def wake(self, group_id: GroupId, at_ms: int) -> bool:
        """See to it that the group is looked at then, or before. Returns whether that is news."""
        planned = self._wake_at.get(group_id)
        if planned is not None and planned <= at_ms:
            return False
        self._wake_at[group_id] = at_ms
        heapq.heappush(self._wakes, (at_ms, group_id))
        return True

    def take_due(self, now_ms: int) -> Iterator[GroupId]:
        """The groups to be looked at by now, earliest first, with those that come up meanwhile."""
        while self._wakes and self._wakes[0][0] <= now_ms:
            at_ms, group_id = heapq.heappop(self._wakes)
            if self._wake_at.get(group_id) == at_ms:
                del self._wake_at[group_id]
                yield group_id

    def tried(self, group_id: GroupId, now_ms: int) -> None:
        """What had passed by `now_ms` has been decided, and need not have come about."""
        self._tried_ms[group_id] = now_ms

    def forget(self, group_id: GroupId) -> None:
        """Nothing of the group is waited for any more."""
        self._tried_ms.pop(group_id, None)

    def after_backoff(self, group_id: GroupId, deadline: DeadlineMs) -> int:
        """When to act on a deadline: later than it says if it was tried, and is still there.

        Its record was refused then (a full disk, no descriptor), or could not be made. Trying again at once
        would keep the loop from everything else until the disk answers.
        """
        tried_ms = self._tried_ms.get(group_id)
        if tried_ms is None:
            return deadline
        if deadline <= tried_ms:
            return tried_ms + BACKOFF_MS
        del self._tried_ms[group_id]
        return deadline
