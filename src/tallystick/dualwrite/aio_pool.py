"""WriterPool under asyncio: as `tallystick.dualwrite.WriterPool`, awaited."""

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from types import TracebackType
from typing import Generic, Self, TypeVar

from tallystick.dualwrite.aio_writer import DualWriter, Transaction
from tallystick.dualwrite.errors import NoFreeId, NotRecovered
from tallystick.dualwrite.pool import WAIT_S, beyond, ids_of
from tallystick.dualwrite.recovery import Report
from tallystick.dualwrite.stores.base import AsyncStore, AsyncStoreTransaction

D = TypeVar("D", bound=AsyncStoreTransaction)


class WriterPool(Generic[D]):
    """Hands out writers, at most `size` at a time, to the tasks of one loop."""

    def __init__(
        self,
        store: AsyncStore[D],
        producer_config: Mapping[str, object],
        size: int,
        *,
        wait_s: float = WAIT_S,
    ) -> None:
        """Connects to nothing yet. Raises: BadConfig."""
        self._store = store
        self._config = producer_config
        self._size = size
        self._wait_s = wait_s
        self._ids = ids_of(producer_config, size)
        self._writers: list[DualWriter[D]] = []
        self._free: asyncio.LifoQueue[DualWriter[D]] = asyncio.LifoQueue()
        self._recovered = False

    def _writer(self, transactional_id: str) -> DualWriter[D]:
        return DualWriter(self._store, {**self._config, "transactional.id": transactional_id})

    async def recover(self) -> Report:
        """Recover every id, those of a larger pool before this one included."""
        self._writers = self._writers or [self._writer(each) for each in self._ids]
        found = [line for writer in self._writers for line in (await writer.recover()).ids]
        base = self._config["transactional.id"]
        for each in beyond(base, self._size, await self._store.transactional_ids()):
            async with self._writer(each) as left:
                found += (await left.recover()).ids
        if not self._recovered:
            self._recovered = True
            for writer in reversed(self._writers):
                self._free.put_nowait(writer)
        return Report(tuple(found))

    @asynccontextmanager
    async def writer(self, wait_s: float | None = None) -> AsyncIterator[DualWriter[D]]:
        """A writer for this caller alone. Raises: NoFreeId after `wait_s`; NotRecovered."""
        if not self._recovered:
            raise NotRecovered("the pool has not been recovered: call recover() first")
        limit_s = self._wait_s if wait_s is None else wait_s
        try:
            writer = await asyncio.wait_for(self._free.get(), limit_s)
        except TimeoutError:
            raise NoFreeId(f"none of {self._size} ids became free within {limit_s:g} s") from None
        try:
            if not writer.ready:
                await writer.recover()
            yield writer
        finally:
            self._free.put_nowait(writer)

    @asynccontextmanager
    async def transaction(
        self, *, wait_visible: bool = False, wait_s: float | None = None
    ) -> AsyncIterator[Transaction[D]]:
        """A dual write under a free id."""
        async with self.writer(wait_s) as writer, writer.transaction(wait_visible=wait_visible) as txn:
            yield txn

    async def close(self) -> None:
        """Close every writer; again is harmless."""
        for writer in self._writers:
            await writer.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()
