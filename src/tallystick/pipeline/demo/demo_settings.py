"""Settings of a demo. This module loads neither Spark nor the broker, because `--help` needs it."""

from collections.abc import Sequence
from enum import StrEnum

from tallystick.kernel.value import Value


class Crash(StrEnum):
    """A part of the system that is killed with SIGKILL."""

    TASK = "task"
    EXECUTOR = "executor"
    BROKER = "broker"
    DRIVER = "driver"


def possible_crashes(master: str) -> tuple[Crash, ...]:
    """Return the parts that can be killed: on `local[2]` the driver runs its tasks, without executors."""
    alone = master == "local" or master.startswith("local[")
    return tuple(each for each in Crash if each is not Crash.EXECUTOR or not alone)


class DemoSettings(Value, kw_only=True):
    """The settings of a demo.

    master   Spark master; executors are separate processes on `local-cluster` and on clusters
    rows     number of flights; None for all 336,776
    crashes  parts to kill in this order, one after every second batch
    """

    master: str = "local-cluster[2,1,1024]"
    rows: int | None = None
    crashes: Sequence[Crash] = tuple(Crash)
