"""The broker's lives: booted, ended as the plan says or by a failure, and booted again."""

from collections.abc import Callable, Sequence
from typing import Final

from harness.memory_fs import PowerLost
from harness.sim.faults import PowerLoss
from harness.sim.history import History
from harness.sim.loop import VirtualLoop
from harness.sim.machine import BrokerMachine
from tallystick.storage.disk.fs import StorageFailure

_KILLED: Final = PowerLoss(after_effects=None, after_s=0, keep="everything", keep_seed=0, down_s=0.0)
_BROKEN: Final = PowerLoss(after_effects=None, after_s=0, keep="nothing", keep_seed=0, down_s=0.1)
# A broken disk may keep the broker from starting this often in one run.
_FAILED_BOOTS_MAX: Final = 50


class BrokerSupervisor:
    """Boots the broker's machine, and again after each end of a life. `stop_power_losses` lets it live.

    Attributes: `effects_of_first_life`, how many effects the disk saw in the first life.

    Args:
        losses: the ends of the first lives, in their order.
        before_end: called while the broker that is ended is still there.
        after_end: called when it has ended, with what ended it.
        log_line: called with a line for each event.
    """

    def __init__(
        self,
        machine: BrokerMachine,
        clients: VirtualLoop,
        history: History,
        losses: Sequence[PowerLoss],
        *,
        before_end: Callable[[], None],
        after_end: Callable[[PowerLoss], None],
        log_line: Callable[[str], None],
    ) -> None:
        self.effects_of_first_life = 0
        self._machine = machine
        self._clients = clients
        self._history = history
        self._remaining_losses = list(losses)
        self._next_loss: PowerLoss | None = None
        self._before_end = before_end
        self._after_end = after_end
        self._log_line = log_line
        self._is_calm = False
        self._failed_boots = 0

    def stop_power_losses(self) -> None:
        """Let the broker live from now on, and take a failed boot for a violation."""
        self._is_calm = True
        self._machine.fs.crash_after = None

    def boot(self) -> None:
        """Begin a life, and arrange its end."""
        machine = self._machine
        has_plan = bool(self._remaining_losses) and not self._is_calm
        loss = self._next_loss = self._remaining_losses.pop(0) if has_plan else None
        if loss is not None:
            if loss.after_effects is not None:
                machine.fs.crash_after = len(machine.fs.effects) + loss.after_effects
            else:
                self._clients.call_later(loss.after_s, self._lose_power, machine.boot_count + 1)
        self._log_line(f"life {machine.boot_count + 1} begins")
        machine.start()

    def supervise(self) -> None:
        """Handle a broker that died: its power or its disk failed, or it never started."""
        machine = self._machine
        if machine.has_died:
            self._end_life(self._next_loss or _BROKEN)
        elif machine.broker is not None and machine.broker.failure is not None:
            self._end_life(_BROKEN)
        elif machine.broker is None and machine.is_running and machine.booting.done():
            self._handle_failed_boot()

    def kill(self) -> None:
        """End the process, stopped or not; the disk keeps everything."""
        self._end_life(_KILLED)

    def _lose_power(self, life: int) -> None:
        if self._machine.boot_count == life and self._next_loss is not None and not self._is_calm:
            self._end_life(self._next_loss)

    def _handle_failed_boot(self) -> None:
        booting = self._machine.booting
        exc = None if booting.cancelled() else booting.exception()
        if isinstance(exc, PowerLost) or exc is None:
            return
        self._failed_boots += 1
        is_disk_failure = isinstance(exc, OSError | StorageFailure)
        if not is_disk_failure or self._is_calm or self._failed_boots > _FAILED_BOOTS_MAX:
            self._history.report(f"the broker does not start: {exc!r}")
            raise exc
        self._end_life(_BROKEN)

    def _end_life(self, loss: PowerLoss) -> None:
        self._next_loss = None
        machine, effects = self._machine, self._machine.fs.effects
        self.effects_of_first_life = self.effects_of_first_life or len(effects)
        self._log_line(f"life {machine.boot_count} ends, after {len(effects)} effects {effects[-2:]}: {loss}")
        self._before_end()
        machine.end(loss.keep, loss.keep_seed)
        self._after_end(loss)
        self._clients.call_later(loss.down_s, self.boot)
