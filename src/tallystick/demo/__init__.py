"""`tallystick demo`: flights through a pipeline, and with `--quick` payments, while processes are killed."""

from collections.abc import Sequence
from enum import StrEnum
from typing import TYPE_CHECKING, Protocol, TypeVar

from tallystick import _lazy
from tallystick.kernel.value import Value

if TYPE_CHECKING:
    from tallystick.demo.demo_run import DemoResult, DemoRun
    from tallystick.demo.payments import PaymentsResult, PaymentsRun

__all__ = [
    "Audience",
    "ContentCheck",
    "Crash",
    "DemoResult",
    "DemoRun",
    "DemoSettings",
    "PaymentsResult",
    "PaymentsRun",
    "possible_crashes",
]

R_contra = TypeVar("R_contra", contravariant=True)

if not TYPE_CHECKING:
    # The runs need Spark, drivers of databases and the broker; the command's help needs none of them.
    __getattr__ = _lazy.attributes(
        __name__,
        {
            "DemoResult": "tallystick.demo.demo_run:DemoResult",
            "DemoRun": "tallystick.demo.demo_run:DemoRun",
            "PaymentsResult": "tallystick.demo.payments:PaymentsResult",
            "PaymentsRun": "tallystick.demo.payments:PaymentsRun",
        },
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
    crashes  parts to kill in this order, one after each batch
    """

    master: str = "local-cluster[2,1,1024]"
    rows: int | None = None
    crashes: Sequence[Crash] = tuple(Crash)


class ContentCheck(Value, kw_only=True):
    """The comparison of one topic or table with its expected content.

    expected    number of expected rows
    actual      number of records, or of rows of the table
    missing     expected and not found
    duplicated  found again after the first time
    wrong       found and not expected, or with different values
    """

    target: str
    expected: int
    actual: int
    missing: int
    duplicated: int
    wrong: int

    @property
    def is_exact(self) -> bool:
        return self.actual == self.expected and not (self.missing or self.duplicated or self.wrong)


class Audience(Protocol[R_contra]):
    """Observer of a demo and its result."""

    def begin(self, bootstrap_servers: str, database_url: str) -> None:
        """Begin to observe: broker and database are there."""

    def end(self, result: R_contra) -> None:
        """Accept the result. Broker and database are there until this returns."""
