"""The few files of a checkpoint that are ours or that we read, wherever the checkpoint is.

On a local disk they are read here. Elsewhere they go through the file system that Spark has: `hadoop`, in the
driver's own Python, where py4j reaches it; `served`, in Python workers of the driver's host, which have no
py4j and ask the driver's Python.
"""

from typing import TYPE_CHECKING

from tallystick import _lazy

if TYPE_CHECKING:
    from tallystick.spark.files import hadoop

__all__ = ["hadoop"]

if not TYPE_CHECKING:
    # It needs PySpark, which is loaded for a query, and not to print a command's help.
    __getattr__ = _lazy.attributes(__name__, {name: f"{__name__}.{name}" for name in __all__})
