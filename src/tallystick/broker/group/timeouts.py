"""Timers of groups: sessions, rebalances, and the expiration of offsets."""

import heapq
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Final

from tallystick.broker.coordinator.timer import CoordinatorTimer
from tallystick.broker.group.machine.commands import ExpireOffsets, GroupCommand
from tallystick.broker.group.machine.events import GroupEvent, MemberIdAssigned, SessionExtended
from tallystick.broker.group.machine.expiry import find_due_timeouts, find_next_deadline
from tallystick.broker.group.machine.model import ClassicGroup, DeadlineMs
from tallystick.kernel.ids import GroupId

EXPIRED_GROUPS_PER_TICK: Final = 64
# Kafka's CoordinatorRuntime delays a timer whose operation failed by as much.
BACKOFF_MS: Final = 500


class GroupDeadlines:
    """Wake-ups, at most one per group, and the backoff of a deadline whose record was refused."""

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
        """Record that deadlines up to `now_ms` were acted on, successfully or not."""
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


class GroupTimeouts:
    """Timers of all groups. Lives on the loop, owned by the group coordinator."""

    def __init__(
        self,
        groups: Mapping[GroupId, ClassicGroup],
        timer: CoordinatorTimer,
        submit: Callable[[GroupId, GroupCommand], object],
        is_busy: Callable[[GroupId], bool],
        check_interval_ms: Callable[[], int],
    ) -> None:
        """Create timers that are not started.

        Args:
            is_busy: whether a write of the group is becoming durable. `schedule` is called when it is
                durable.
            check_interval_ms: returns the current offsets.retention.check.interval.ms.
        """
        self._groups = groups
        self._timer = timer
        self._submit = submit
        self._is_busy = is_busy
        self._check_interval_ms = check_interval_ms
        self._deadlines = GroupDeadlines()
        self._next_expiry_ms = 0
        self._groups_to_expire: deque[GroupId] = deque()

    def start(self) -> None:
        """Start the timer of offset expiration."""
        self._next_expiry_ms = self._timer.monotonic_ms() + self._check_interval_ms()
        self._timer.arm(self._next_expiry_ms)

    def clear_backoff(self, group_id: GroupId) -> None:
        """Drop the backoff of a group."""
        self._deadlines.clear_backoff(group_id)

    def schedule(self, group_id: GroupId) -> None:
        """Schedule a look at the group for its next deadline."""
        group = self._groups.get(group_id)
        deadline = find_next_deadline(group) if group is not None else None
        if deadline is not None:
            self._schedule_wake_up(group_id, self._deadlines.apply_backoff(group_id, deadline))
        else:
            self._deadlines.clear_backoff(group_id)

    def schedule_after(self, group_id: GroupId, events: Sequence[GroupEvent]) -> None:
        """Schedule the group after these events. Cost: linear in members, except for frequent events."""
        for event in events:
            match event:
                case SessionExtended():
                    pass  # the deadline only moves later; the wake-up notices that
                case MemberIdAssigned(deadline_ms=deadline):
                    self._schedule_wake_up(group_id, deadline)
                case _:
                    self.schedule(group_id)
                    return

    def _schedule_wake_up(self, group_id: GroupId, at_ms: int) -> None:
        if self._deadlines.schedule(group_id, at_ms):
            self._timer.arm(at_ms)

    def run_due(self, now_ms: int) -> int:
        """Run everything that is due.

        Returns:
            Monotonic milliseconds of the next deadline.
        """
        for group_id in self._deadlines.take_due(now_ms):
            self._submit_timeouts(group_id, now_ms)
        self._expire_some(now_ms)
        if self._groups_to_expire:
            return now_ms
        next_ms = self._deadlines.next_ms
        return self._next_expiry_ms if next_ms is None else min(next_ms, self._next_expiry_ms)

    def _submit_timeouts(self, group_id: GroupId, now_ms: int) -> None:
        if self._is_busy(group_id):
            return  # the end of the write schedules the group again, sooner than its timeouts matter
        group = self._groups.get(group_id)
        timeouts = find_due_timeouts(group, now_ms) if group is not None else ()
        if timeouts:
            self._deadlines.record_attempt(group_id, now_ms)
        for timeout in timeouts:
            self._submit(group_id, timeout)
        if not self._is_busy(group_id):
            self.schedule(group_id)

    def _expire_some(self, now_ms: int) -> None:
        """Expire offsets every offsets.retention.check.interval.ms, in a few groups per tick."""
        if now_ms >= self._next_expiry_ms:
            self._next_expiry_ms = now_ms + self._check_interval_ms()
            self._groups_to_expire = deque(self._groups)
        for _ in range(min(EXPIRED_GROUPS_PER_TICK, len(self._groups_to_expire))):
            self._submit(self._groups_to_expire.popleft(), ExpireOffsets())
