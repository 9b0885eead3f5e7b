"""The Spark source: `format("tallystick")` as a batch or a stream, planned on the driver and read in tasks.

Nothing here writes. For a query that continues after a sink, `start_offsets` reads the sink's decisions.
"""

from typing import TYPE_CHECKING

from tallystick import _lazy

if TYPE_CHECKING:
    from tallystick.spark.source import batch_reader, decoding, start_offsets, stream_reader

__all__ = ["batch_reader", "decoding", "start_offsets", "stream_reader"]

if not TYPE_CHECKING:
    # Each of them needs libraries that not every process with this package has or should load.
    __getattr__ = _lazy.attributes(__name__, {name: f"{__name__}.{name}" for name in __all__})
