"""An operator at the console's pages: a collector, an action service, and forms filled in as in a browser.

The forms are read from the HTML, so that what is tested works without JavaScript.
"""

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import httpx

from tallystick.cli.cluster_command import select_role_settings
from tallystick.cli.settings import add_modes
from tallystick.console.actions.config import ActionConfig
from tallystick.console.actions.execution import carry_out
from tallystick.console.actions.service import ActionService, CarryOut
from tallystick.console.collect.collector import Collector
from tallystick.console.collect.config import CollectorConfig, Pace, Paces
from tallystick.console.collect.feed import StateFeed
from tallystick.console.model.health import Limits
from tallystick.console.model.state import ConsoleState
from tallystick.console.web.app import create_app

SECONDS_MAX = 120
FAST = Pace(interval_ms=100, rest_factor=2)
PACES = Paces(
    cluster=FAST, transactions=FAST, named_ids=FAST, topics=FAST, stores=FAST, decisions=FAST, groups=FAST
)

Json = dict[str, Any]


@dataclass
class Form:
    """The form that confirms a dry run, and the page around it."""

    action: str = ""
    fields: dict[str, str] = field(default_factory=dict)
    links: list[str] = field(default_factory=list)
    text: str = ""


class _FormReader(HTMLParser):
    def __init__(self, html: str) -> None:
        super().__init__()
        self.form = Form()
        self._is_inside = False
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = {name: value or "" for name, value in attrs}
        if tag == "form":
            self._is_inside = values.get("method") == "post"
            self.form.action = values["action"] if self._is_inside else self.form.action
        if tag == "input" and self._is_inside:
            self.form.fields[values["name"]] = values.get("value", "")
        if tag == "a" and values.get("class") == "action":
            self.form.links.append(values["href"])

    def handle_endtag(self, tag: str) -> None:
        self._is_inside = self._is_inside and tag != "form"

    def handle_data(self, data: str) -> None:
        self.form.text += data


def read_form(html: str) -> Form:
    """Read a page: its form that is sent by POST, its buttons, its text."""
    return _FormReader(html).form


class Operator:
    """Looks at pages, presses their buttons, types ids."""

    def __init__(self, client: httpx.AsyncClient, collector: Collector, feed: StateFeed) -> None:
        self._client, self._collector, self._feed = client, collector, feed

    async def get(self, url: str, **headers: str) -> httpx.Response:
        return await self._client.get(url, headers=headers)

    async def see(self, path: str, until: Callable[[Json], bool]) -> Json:
        """Return a page's JSON as soon as it is as expected."""
        async for snapshot in self._collector.follow():
            self._feed.publish(snapshot)
            page: Json = json.loads((await self._client.get(path, params={"format": "json"})).text)
            if until(page):
                return page
        raise AssertionError("the collector ended")

    async def see_health(self, key: str, health: str) -> Json:
        """Return the row of a transaction as soon as it has this health."""

        def find(page: Json) -> list[Json]:
            return [row for row in page["rows"] if row["key"] == key and row["health"] == health]

        (row,) = find(await self.see("/transactions", lambda page: bool(find(page))))
        return row

    async def see_green(self, name: str) -> None:
        """Wait until nothing of this name is shown as open."""
        await self.see("/transactions", lambda page: not any(name in str(row) for row in page["rows"]))

    async def open_dry_run(self, page_url: str, kind: str) -> Form:
        """Press the button of an action on a page, and return the dry run."""
        buttons = read_form((await self._client.get(page_url)).text).links
        (url,) = dict.fromkeys(link for link in buttons if link.startswith(f"/actions/{kind}/"))
        return read_form((await self._client.get(url)).text)

    async def send(
        self, form: Form, typed: str, reason: str = "", headers: Mapping[str, str] | None = None
    ) -> httpx.Response:
        """Fill the form in, and send it as a browser does."""
        fields = {**form.fields, "confirmation": typed}
        if "reason" in fields:
            fields["reason"] = reason
        sent_by_browsers = {"origin": "http://localhost", "sec-fetch-site": "same-origin"}
        return await self._client.post(form.action, data=fields, headers=headers or sent_by_browsers)


@asynccontextmanager
async def operate(
    client_settings: Mapping[str, object],
    stores: Sequence[str] = (),
    *,
    audit_log: Path | None = None,
    acting_settings: Mapping[str, object] | None = None,
    act: CarryOut = carry_out,
) -> AsyncIterator[Operator]:
    """Start a console with actions.

    Args:
        acting_settings: settings of the clients that read for an action and act, if they are other ones.
        act: carries a confirmed action out.
    """
    config = CollectorConfig.check(client_settings, stores, paces=PACES, publish_ms=20, hanging_limit_ms=0)
    acting = dict(acting_settings or client_settings)
    actions = ActionConfig(
        admin=select_role_settings("admin", acting),
        producer=add_modes(select_role_settings("producer", acting), (), prepares=True),
        stores=config.stores,
        decision_topics=config.decision_topics,
        audit_log=audit_log,
    )
    feed = StateFeed(ConsoleState(limits=Limits(grace_ms=0, limit_ms=0)))
    async with (
        asyncio.timeout(SECONDS_MAX),
        Collector(config) as collector,
        ActionService(actions, follow_up=collector.read_soon, act=act) as action_service,
        httpx.AsyncClient(
            transport=httpx.ASGITransport(app=create_app(feed, action_service=action_service)),
            base_url="http://localhost",
        ) as client,
    ):
        yield Operator(client, collector, feed)
