"""Reads from a cluster for single pages, in addition to the newest snapshot."""

import asyncio
from types import TracebackType
from typing import Self

from tallystick.admin.aio import Admin
from tallystick.admin.txn.transaction_log import TransactionLogFollower
from tallystick.client.net.cluster import Cluster
from tallystick.console.collect.config import CollectorConfig
from tallystick.console.lookup.history import IdHistory
from tallystick.console.lookup.history_reader import HistoryReader
from tallystick.console.lookup.record_browser import RecordBrowser
from tallystick.console.lookup.record_page import RecordPage, RecordQuery
from tallystick.kernel.clock import Clock, SystemClock
from tallystick.kernel.ids import TopicPartition


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
        self._cluster = Cluster(self._admin.config.client)  # for requests that no administrator sends
        self._records = RecordBrowser(self._admin, self._cluster, clock)
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
        await self._records.close()
        await asyncio.gather(self._admin.close(), self._cluster.close())

    async def read_history(self, transactional_id: str) -> IdHistory:
        """Return what has happened to a transactional id."""
        return await self._histories.read(transactional_id)

    async def browse_records(self, query: RecordQuery) -> RecordPage:
        """Return a page of records of one partition."""
        return await self._records.browse(query)

    async def download(self, at: TopicPartition, offset: int, *, is_key: bool) -> bytes | None:
        """Return the whole value of one record, or its key; None if there is none.

        Raises: ClientError, RecordsError; TimeoutError.
        """
        return await self._records.download(at, offset, is_key=is_key)
