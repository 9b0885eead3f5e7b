"""Answers what single pages ask of a cluster beside the newest snapshot."""

from types import TracebackType
from typing import Self

from tallystick.admin.aio import Admin
from tallystick.admin.transaction_log import TransactionLogFollower
from tallystick.console.collect.config import CollectorConfig
from tallystick.console.lookup.history import IdHistory
from tallystick.console.lookup.history_reader import HistoryReader
from tallystick.kernel.clock import Clock, SystemClock


class ClusterLookups:
    """Asks the cluster of a collector, over connections of its own. Belongs to one event loop.

    async with ClusterLookups(config) as lookups:
        ...
    """

    def __init__(self, config: CollectorConfig, clock: Clock | None = None) -> None:
        """Prepare without connecting. Raises: BadConfig."""
        clock = clock or SystemClock()
        settings = config.admin_settings
        self._admin = Admin(settings)
        self._histories = HistoryReader(self._admin, lambda: TransactionLogFollower(settings), clock)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """End what is being read, and close the connections."""
        await self._histories.close()
        await self._admin.close()

    async def read_history(self, transactional_id: str) -> IdHistory:
        """Return what has happened to a transactional id."""
        return await self._histories.read(transactional_id)
