"""Names that mean harm on every page of the browser and in every JSON form: text, and nothing else."""

import asyncio
import json
from collections import Counter
from collections.abc import Iterator
from functools import cache
from html.parser import HTMLParser
from typing import Any
from urllib.parse import quote

import httpx
import pytest
from starlette.applications import Starlette
from tests.support.console_facts import NOW_MS, ORDERS, describe, make_case, make_snapshot, read_again
from tests.support.hostile_console import HARMLESS, HOSTILE, make_hostile_state

from tallystick.admin.txn.hanging import HangingFinding
from tallystick.console.collect.feed import StateFeed
from tallystick.console.model.escaped import show_on_page
from tallystick.console.model.state import ConsoleState
from tallystick.console.web.app import create_app
from tallystick.console.web.pages import PAGES
from tallystick.kernel.value import replace
from tallystick.testing import FakeClock

pytestmark = pytest.mark.slow

LISTS = [page.path for page in PAGES if "{" not in page.path]
OF_ONE = [page.path for page in PAGES if "{" in page.path]


class Elements(HTMLParser):
    """The elements of a page with the names of their attributes, and its text."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.count: Counter[tuple[str, ...]] = Counter()
        self.text = ""
        self.feed(html)
        self.invisible = Counter(each for each in self.text if not each.isprintable())

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if (tag, attrs) == ("span", [("class", "word")]):
            return  # one for each word of a command, however many a name has
        self.count[tag, *sorted(name for name, _ in attrs)] += 1

    def handle_data(self, data: str) -> None:
        self.text += data


def make_app(state: ConsoleState) -> Starlette:
    return create_app(StateFeed(state), None, FakeClock(NOW_MS))


@cache
def make_hostile_app(name: str) -> Starlette:
    return make_app(make_hostile_state(name))


def ask(app: Starlette, url: str) -> httpx.Response:
    async def get() -> httpx.Response:
        transport = httpx.ASGITransport(app=app)
        async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
            return await client.get(url)

    return asyncio.run(get())


def make_url(path: str, name: str) -> str:
    return path.replace("{key:name}", quote(name, safe=""))


def list_texts(value: Any) -> Iterator[str]:
    match value:
        case dict():
            for name, each in value.items():
                yield name
                yield from list_texts(each)
        case list():
            for each in value:
                yield from list_texts(each)
        case str():
            yield value


@pytest.mark.gate(10)
@pytest.mark.parametrize("name", HOSTILE.values(), ids=HOSTILE.keys())
@pytest.mark.parametrize("path", [*LISTS, *OF_ONE])
def test_a_name_adds_no_markup_and_each_character_of_it_is_seen(path: str, name: str) -> None:
    harmless = Elements(ask(make_hostile_app(HARMLESS), make_url(path, HARMLESS)).text)
    assert HARMLESS in harmless.text
    answer = ask(make_hostile_app(name), make_url(path, name))
    assert answer.status_code == 200
    page = Elements(answer.text)
    assert page.count == harmless.count
    assert page.invisible == harmless.invisible  # those of the template
    assert " ".join(show_on_page(name).split()) in " ".join(page.text.split())


@pytest.mark.gate(30)
@pytest.mark.parametrize("name", HOSTILE.values(), ids=HOSTILE.keys())
@pytest.mark.parametrize("path", [*LISTS, *OF_ONE])
def test_the_json_form_has_names_as_they_are_and_only_ascii(path: str, name: str) -> None:
    answer = ask(make_hostile_app(name), f"{make_url(path, name)}?format=json")
    assert answer.text.isascii()
    assert [each for each in answer.text if not each.isprintable() and each != "\n"] == []
    assert any(name in text for text in list_texts(json.loads(answer.text)))


def test_a_time_that_no_calendar_has() -> None:
    """A producer chooses the times of its records: any number of 64 bits."""
    known = describe()
    for ms in (2**63 - 1, -(2**63), -1):
        case = make_case(HangingFinding.TWO_PHASE, known)
        case = replace(case, transaction=replace(case.transaction, last_timestamp_ms=ms))
        feed = StateFeed()
        snapshot = make_snapshot(known, cases=[case])
        feed.publish(snapshot)
        feed.publish(read_again(snapshot))
        answer = ask(make_app(feed.state), "/transactions/pay-1")
        assert answer.status_code == 200
        assert str(ORDERS) in answer.text
