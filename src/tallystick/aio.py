"""The same clients under asyncio, on the caller's own loop. Methods have the same names; some are awaited."""

from tallystick.admin.aio import Admin
from tallystick.client.aio.consumer import Consumer
from tallystick.client.aio.producer import Producer
from tallystick.client.consumer.engine import RebalanceListener

__all__ = ["Admin", "Consumer", "Producer", "RebalanceListener"]
