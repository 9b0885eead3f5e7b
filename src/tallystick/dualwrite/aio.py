"""Public names of the asyncio dual-write API."""

from tallystick.dualwrite.aio_consume import consume_into
from tallystick.dualwrite.aio_pool import WriterPool
from tallystick.dualwrite.aio_writer import DualWriter, Transaction

__all__ = ["DualWriter", "Transaction", "WriterPool", "consume_into"]
