"""Virtual time: both processes run whatever is ready, and then the clock moves to the next callback."""

from collections.abc import Callable, Coroutine
from typing import Final

from harness.sim.loop import VirtualLoop, VirtualTime
from harness.sim.machine import BrokerMachine

# A run that has not come to rest by then never will.
SIMULATION_TIMEOUT_S: Final = 900.0


class Scheduler:
    """Runs the clients' loop and the broker's, whichever loop that is in its current life.

    Args:
        supervise: called after each round; ends the broker's lives.
    """

    def __init__(
        self, time: VirtualTime, clients: VirtualLoop, machine: BrokerMachine, supervise: Callable[[], None]
    ) -> None:
        self._time = time
        self._clients = clients
        self._machine = machine
        self._supervise = supervise

    def run(self, work: Coroutine[object, object, None]) -> None:
        """Run a task of the clients to its end; power losses and restarts happen meanwhile."""
        task = self._clients.create_task(work)
        self.run_until(task.done)
        task.result()

    def run_until(self, is_done: Callable[[], bool]) -> None:
        """Run both processes until `done` returns true.

        Raises:
            TimeoutError: nothing is left to do before, or not within any sensible time.
        """
        while not is_done():
            self._clients.run_ready()
            self._machine.loop.run_ready()
            self._supervise()
            if is_done():
                return
            loops = (self._clients, self._machine.loop)
            due = [at for loop in loops if (at := loop.next_callback_s()) is not None]
            if not due or min(due) > SIMULATION_TIMEOUT_S:
                raise TimeoutError(f"at {self._time.now_s:.3f} s there is nothing left to do")
            self._time.now_s = max(self._time.now_s, min(due))
