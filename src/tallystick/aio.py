"""The clients for asyncio, on the caller's event loop: same methods, some of which are awaited."""

from tallystick.admin.aio import Admin
from tallystick.client.aio.consumer import Consumer
from tallystick.client.aio.producer import Producer
from tallystick.client.consumer.rebalance import RebalanceListener

__all__ = ["Admin", "Consumer", "Producer", "RebalanceListener"]
