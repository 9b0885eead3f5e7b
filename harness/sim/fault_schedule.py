"""Faults of the machine that come at given times: a full disk, a broken one, a clock that jumps."""

from collections.abc import Callable

from harness.memory_fs import UNLIMITED
from harness.sim.faults import FaultPlan
from harness.sim.loop import VirtualLoop, VirtualTime
from harness.sim.machine import BrokerMachine


class FaultSchedule:
    """Brings the faults of a plan about when their time comes, until `stop`."""

    def __init__(
        self, machine: BrokerMachine, time: VirtualTime, plan: FaultPlan, *, log_line: Callable[[str], None]
    ) -> None:
        self._machine = machine
        self._time = time
        self._plan = plan
        self._log_line = log_line
        self._is_stopped = False
        self._latest_ms = 0  # of the broker's clock, before its last jump

    def start(self, loop: VirtualLoop) -> None:
        """Arrange all faults on a loop."""
        for begins, ends, room in self._plan.disk_full:
            loop.call_at(begins, self._fill_disk, room)
            loop.call_at(ends, self._fill_disk, None)
        for at in self._plan.disk_breaks_at_s:
            loop.call_at(at, self._break_disk)
        for at, by_ms in self._plan.clock_jumps:
            loop.call_at(at, self._set_clock, by_ms)

    def stop(self) -> None:
        """End the faults of the disk. The clock stays as it is, and may jump again."""
        self._is_stopped = True
        fs = self._machine.fs
        fs.capacity, fs.sync_failure = UNLIMITED, None

    def latest_wall_ms(self) -> int:
        """Return the latest time that the broker's clock has ever shown."""
        self._latest_ms = max(self._latest_ms, self._time.now_ms())
        return self._latest_ms

    def _fill_disk(self, room: int | None) -> None:
        fs = self._machine.fs
        used_bytes = (
            UNLIMITED - fs.free_bytes() if fs.capacity == UNLIMITED else fs.capacity - fs.free_bytes()
        )
        fs.capacity = UNLIMITED if room is None or self._is_stopped else used_bytes + room

    def _break_disk(self) -> None:
        if not self._is_stopped:
            self._machine.fs.sync_failure = OSError(5, "the disk is broken")

    def _set_clock(self, by_ms: int) -> None:
        self._log_line(f"the clock jumps by {by_ms} ms")
        self.latest_wall_ms()
        self._time.wall_clock_lag_ms -= by_ms
