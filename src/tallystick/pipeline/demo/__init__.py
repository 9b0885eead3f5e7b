"""`tallystick demo`: all flights from New York in 2013, through a pipeline whose processes are killed."""

from collections.abc import Sequence
from enum import StrEnum
from typing import TYPE_CHECKING

from tallystick import _lazy
from tallystick.kernel.value import Value

if TYPE_CHECKING:
    from tallystick.pipeline.demo.demo_run import DemoResult, DemoRun

__all__ = ["Crash", "DemoResult", "DemoRun", "DemoSettings", "possible_crashes"]

if not TYPE_CHECKING:
    # The run needs Spark, PostgreSQL's driver and the broker; the command's help needs none of them.
    __getattr__ = _lazy.attributes(
        __name__, {name: f"{__name__}.demo_run:{name}" for name in ("DemoResult", "DemoRun")}
    )


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
