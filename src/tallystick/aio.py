"""The same clients under asyncio, on the caller's own loop: methods have the same names, and are awaited."""

from tallystick.client.aio.producer import Producer

__all__ = ["Producer"]
