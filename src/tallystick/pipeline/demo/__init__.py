"""`tallystick demo`: all flights from New York in 2013, through a pipeline whose processes are killed."""

from typing import TYPE_CHECKING

from tallystick import _lazy

if TYPE_CHECKING:
    from tallystick.pipeline.demo.demo_run import DemoResult, DemoRun

__all__ = ["DemoResult", "DemoRun"]

if not TYPE_CHECKING:
    # The run needs Spark, PostgreSQL's driver and the broker; the command's help needs none of them.
    __getattr__ = _lazy.attributes(__name__, {name: f"{__name__}.demo_run:{name}" for name in __all__})
