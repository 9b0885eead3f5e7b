"""A collector that runs while a test looks at its snapshots."""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress

from tallystick.console.collect.collector import Collector
from tallystick.console.collect.config import CollectorConfig, Pace, Paces
from tallystick.console.model.snapshot import Snapshot

# A loaded machine makes readings slow: 20 times as long a rest after each would be most of a test.
QUICK = Pace(interval_ms=50, limit_ms=3_000, rest_factor=2)
QUICK_PACES = Paces(
    cluster=QUICK,
    transactions=QUICK,
    named_ids=QUICK,
    topics=QUICK,
    stores=QUICK,
    decisions=QUICK,
    groups=QUICK,
)


class Watch:
    """Looks at the snapshots of a collector."""

    def __init__(self, collector: Collector) -> None:
        self.collector = collector

    async def see(self, wanted: Callable[[Snapshot], bool], deadline_s: float = 60.0) -> Snapshot:
        """Return the first snapshot that `wanted` accepts; an exception in it counts as no."""
        with suppress(TimeoutError):
            async with asyncio.timeout(deadline_s):
                async for snapshot in self.collector.follow():
                    with suppress(LookupError, AttributeError):
                        if wanted(snapshot):
                            return snapshot
        last = self.collector.snapshot
        parts = (last.cluster, last.transactions, last.topics, last.groups, last.pipelines, *last.stores)
        raise AssertionError(f"not seen; the statuses are {[part.status for part in parts]}")

    async def see_newer(self, wanted: Callable[[Snapshot], bool] = lambda _: True) -> Snapshot:
        """Return the first wanted snapshot of which every part was tried after this call."""
        now_ms = self.collector.snapshot.at_ms

        def is_newer(snapshot: Snapshot) -> bool:
            parts = (snapshot.cluster, snapshot.transactions, snapshot.topics, *snapshot.stores)
            return all(part.status.tried_ms > now_ms for part in parts) and wanted(snapshot)

        return await self.see(is_newer)


def watch(config: CollectorConfig, look: Callable[[Watch], Awaitable[None]]) -> None:
    """Run a collector, and `look` beside it."""

    async def run() -> None:
        async with Collector(config) as collector:
            await look(Watch(collector))

    asyncio.run(run())
