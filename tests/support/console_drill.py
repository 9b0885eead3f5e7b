"""The console in a drill: its pages as JSON over a real cluster, and the commands that they show."""

import asyncio
import json
import shlex
from collections.abc import Callable, Sequence
from typing import Any, Final

import httpx
from tests.support.console_operator import PACES, SECONDS_MAX

from tallystick.cli.main import main
from tallystick.console.collect.collector import Collector
from tallystick.console.collect.config import CollectorConfig
from tallystick.console.collect.feed import StateFeed
from tallystick.console.model.health import Limits
from tallystick.console.model.state import ConsoleState
from tallystick.console.web.app import create_app

Json = dict[str, Any]

NO_PATIENCE: Final = Limits(grace_ms=0, limit_ms=0)
"""What is open is too old, and what is decided and open is abandoned."""


class Watcher:
    """Looks at the pages of a console that reads a cluster, stores and topics of decisions."""

    def __init__(
        self, bootstrap_servers: str, stores: Sequence[str] = (), decision_topics: Sequence[str] | None = None
    ) -> None:
        self.bootstrap_servers, self.stores = bootstrap_servers, stores
        self._topics = {} if decision_topics is None else {"decision_topics": tuple(decision_topics)}

    def show(
        self,
        path: str,
        until: Callable[[Json], bool],
        *,
        stores: Sequence[str] | None = None,
        limits: Limits | None = None,
    ) -> Json:
        """Return a page's JSON as soon as it is as expected."""
        config = CollectorConfig.check(
            {"bootstrap.servers": self.bootstrap_servers},
            self.stores if stores is None else stores,
            paces=PACES,
            publish_ms=20,
            hanging_limit_ms=0,
            **self._topics,
        )
        return asyncio.run(follow_page(config, limits or NO_PATIENCE, path, until))

    def find_row(self, health: str, key: str, **options: Any) -> Json:
        """Return the row of a transaction as soon as it has this health."""

        def is_there(page: Json) -> bool:
            return any(_is(row, health, key) for row in page["rows"])

        page = self.show("/transactions", is_there, **options)
        return next(row for row in page["rows"] if _is(row, health, key))

    def expect_gone(self, name: str, **options: Any) -> None:
        """Wait until nothing of this name is shown as open."""
        self.show("/transactions", lambda page: not any(name in str(row) for row in page["rows"]), **options)


def _is(row: Json, health: str, key: str) -> bool:
    return bool(row["health"] == health and row["key"] == key)


async def follow_page(
    config: CollectorConfig, limits: Limits, path: str, until: Callable[[Json], bool]
) -> Json:
    """Run a collector until a page's JSON is as expected, and return that."""
    feed = StateFeed(ConsoleState(limits=limits))
    transport = httpx.ASGITransport(app=create_app(feed))
    page: Json = {}
    try:
        async with (
            asyncio.timeout(SECONDS_MAX),
            Collector(config) as collector,
            httpx.AsyncClient(transport=transport, base_url="http://localhost") as client,
        ):
            async for snapshot in collector.follow():
                feed.publish(snapshot)
                page = json.loads((await client.get(path, params={"format": "json"})).text)
                if until(page):
                    return page
    except TimeoutError:
        raise AssertionError(f"{path} never was as expected; the last one is {page}") from None
    raise AssertionError("the collector ended")


def run(command: str, *more: str) -> int:
    """Run a command as the page shows it."""
    name, *words = shlex.split(command)
    assert name == "tallystick"
    return main([*words, *more])
