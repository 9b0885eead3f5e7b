"""What becomes due in groups: sessions, rebalances, and offsets that nobody has committed for long."""

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Final

from tallystick.broker.coordinator.serving_time import ServingTimer
from tallystick.broker.group.deadlines import Deadlines
from tallystick.broker.group.machine.commands import Command, ExpireOffsets
from tallystick.broker.group.machine.events import Event, MemberPending, SessionExtended
from tallystick.broker.group.machine.expiry import due, next_deadline
from tallystick.broker.group.machine.model import Group
from tallystick.kernel.ids import GroupId

EXPIRED_GROUPS_PER_TICK: Final = 64


class GroupTimeouts:
    """Lives on the loop, owned by the group coordinator."""

    def __init__(
        self,
        groups: Mapping[GroupId, Group],
        timer: ServingTimer,
        submit: Callable[[GroupId, Command], object],
        is_busy: Callable[[GroupId], bool],
        check_interval_ms: Callable[[], int],
    ) -> None:
        """Args:
        is_busy: whether a write of the group is becoming durable. `schedule` is called when it is.
        check_interval_ms: offsets.retention.check.interval.ms, as of now.
        """
        self._groups = groups
        self._timer = timer
        self._submit = submit
        self._is_busy = is_busy
        self._check_interval_ms = check_interval_ms
        self._deadlines = Deadlines()
        self._expire_at_ms = 0
        self._to_expire: deque[GroupId] = deque()

    def start(self) -> None:
        """Begin to keep time."""
        self._expire_at_ms = self._timer.monotonic_ms() + self._check_interval_ms()
        self._timer.arm(self._expire_at_ms)

    def forget(self, group_id: GroupId) -> None:
        """Nothing of the group is waited for any more."""
        self._deadlines.forget(group_id)

    def schedule(self, group_id: GroupId) -> None:
        """See to it that the group is looked at when its next deadline passes."""
        group = self._groups.get(group_id)
        deadline = next_deadline(group) if group is not None else None
        if deadline is not None:
            self._wake(group_id, self._deadlines.after_backoff(group_id, deadline))
        else:
            self._deadlines.forget(group_id)

    def plan(self, group_id: GroupId, events: Sequence[Event]) -> None:
        """Look at the group in time, after these. Cost: linear in members, but for what members do often."""
        for event in events:
            match event:
                case SessionExtended():
                    pass  # it only moves a deadline away; the wake-up finds out
                case MemberPending(deadline_ms=deadline):
                    self._wake(group_id, deadline)
                case _:
                    self.schedule(group_id)
                    return

    def _wake(self, group_id: GroupId, at_ms: int) -> None:
        if self._deadlines.wake(group_id, at_ms):
            self._timer.arm(at_ms)

    def run(self, now_ms: int) -> int:
        """Let everything happen whose time has come.

        Returns: monotonic milliseconds of the next thing to happen.
        """
        for group_id in self._deadlines.take_due(now_ms):
            self._look_at(group_id, now_ms)
        self._expire_some(now_ms)
        if self._to_expire:
            return now_ms
        next_ms = self._deadlines.next_ms
        return self._expire_at_ms if next_ms is None else min(next_ms, self._expire_at_ms)

    def _look_at(self, group_id: GroupId, now_ms: int) -> None:
        if self._is_busy(group_id):
            return  # clients do not wait as long as timeouts take; the end of the write schedules them again
        group = self._groups.get(group_id)
        timeouts = due(group, now_ms) if group is not None else ()
        if timeouts:
            self._deadlines.tried(group_id, now_ms)
        for timeout in timeouts:
            self._submit(group_id, timeout)
        if not self._is_busy(group_id):
            self.schedule(group_id)

    def _expire_some(self, now_ms: int) -> None:
        """offsets.retention.check.interval.ms: all groups get their turn, a few a tick."""
        if now_ms >= self._expire_at_ms:
            self._expire_at_ms = now_ms + self._check_interval_ms()
            self._to_expire = deque(self._groups)
        for _ in range(min(EXPIRED_GROUPS_PER_TICK, len(self._to_expire))):
            self._submit(self._to_expire.popleft(), ExpireOffsets())
