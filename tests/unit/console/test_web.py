"""The console's pages over HTTP, without a socket: what they show, to whom, and with which headers."""

import asyncio
import hashlib
import json
import re
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import quote

import httpx
import pytest
from starlette.applications import Starlette
from tests.support.console_facts import (
    NOW_MS,
    ORDERS,
    WRITER,
    describe,
    make_case,
    make_prefix,
    make_row,
    make_snapshot,
    make_store,
    pair,
    read_again,
)

from tallystick.admin.model import GroupDescription, MemberDescription
from tallystick.admin.txn.hanging import HangingFinding, HangingVerdict
from tallystick.console.collect.feed import StateFeed
from tallystick.console.model.escaped import show_on_page
from tallystick.console.model.snapshot import (
    GroupFacts,
    GroupOffset,
    PartitionOffsets,
    PartStatus,
    Snapshot,
    TopicFacts,
    Volume,
)
from tallystick.console.web.app import create_app
from tallystick.console.web.gate import WebOptions
from tallystick.console.web.guard import check_request, parse_host
from tallystick.console.web.pages import MENU
from tallystick.kernel.secret import Secret
from tallystick.kernel.value import replace
from tallystick.security.http_auth import HttpCredentials
from tallystick.spark.protocol.committable import Participant
from tallystick.testing import FakeClock

STATIC = Path(__file__).parents[3] / "src/tallystick/console/web/static"
HOSTILE = "<script>alert(1)</script>&\"'\x1b[31m/../\u202e?a=b#c%2e"


def make_full_snapshot() -> Snapshot:
    """Return a snapshot with something on every page, under names that mean harm."""
    name = f"loud/w/{'a' * 16}/0"
    hostile = describe(HOSTILE, writer=pair(14, 0), age_ms=1_800_000)
    known = describe(age_ms=185_000)
    snapshot = make_snapshot(
        known,
        hostile,
        describe(name, writer=pair(12, 0)),
        cases=[
            make_case(HangingFinding.TWO_PHASE, known),
            make_case(
                HangingFinding.UNKNOWN_PRODUCER_ID,
                None,
                pair(77, 0),
                partition=type(ORDERS)(HOSTILE, 0),
                verdict=HangingVerdict.HANGING,
            ),
        ],
        stores=[
            make_store(make_row(state=WRITER), make_row(HOSTILE)),
            make_store(name=HOSTILE, failures=(f"{HOSTILE}: away",)),
        ],
        prefixes=[make_prefix("loud", Participant(transactional_id=name, identity=pair(12, 0)))],
    )
    status = PartStatus(read_ms=NOW_MS - 100)
    member = MemberDescription(
        member_id=HOSTILE,
        instance_id=None,
        client_id=HOSTILE,
        host="/127.0.0.1",
        partitions=frozenset({ORDERS}),
    )
    group = GroupDescription(
        group_id=HOSTILE, coordinator=1, state="Stable", type="classic", assignor="range", members=(member,)
    )
    offset = GroupOffset(committed=4, data_lag=5, passed_markers=1, passed_aborted=2, is_pending=True)
    full = Volume(path=HOSTILE, total_bytes=2**30, usable_bytes=0, topic_bytes={HOSTILE: 2**29})
    return replace(
        snapshot,
        cluster=replace(snapshot.cluster, volumes={1: (full,)}),
        topics=TopicFacts(
            status=status,
            partition_counts={"orders": 1, HOSTILE: 1},
            offsets={ORDERS: PartitionOffsets(start=0, last_stable=10, end=25)},
        ),
        groups=GroupFacts(status=status, groups={HOSTILE: group}, offsets={HOSTILE: {ORDERS: offset}}),
    )


def make_feed(snapshot: Snapshot | None = None) -> StateFeed:
    feed, snapshot = StateFeed(), snapshot or make_full_snapshot()
    feed.publish(snapshot)
    feed.publish(read_again(snapshot))
    return feed


class Client:
    """Asks an application without a socket."""

    def __init__(self, app: Starlette) -> None:
        self._app = app

    def request(self, method: str, url: str, headers: dict[str, str] | None = None) -> httpx.Response:
        async def ask() -> httpx.Response:
            transport = httpx.ASGITransport(app=self._app)
            async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
                return await client.request(method, url, headers=headers)

        return asyncio.run(ask())

    def get(self, url: str, headers: dict[str, str] | None = None) -> httpx.Response:
        return self.request("GET", url, headers)


def make_client(feed: StateFeed | None = None, options: WebOptions | None = None) -> Client:
    return Client(create_app(feed or make_feed(), options, FakeClock(NOW_MS)))


class Page(HTMLParser):
    """Links, ids and visible text of a page."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.links: list[str] = []
        self.live_url = ""
        self.ids: list[str] = []
        self.text = ""
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        for name, value in attrs:
            if name == "hx-get":
                self.live_url = value or ""
            if name == "id":
                self.ids.append(value or "")
            if name == "href" and tag == "a":
                self.links.append(value or "")

    def handle_data(self, data: str) -> None:
        self.text += data


def list_pages(client: Client) -> dict[str, Page]:
    """Follow every link from the menu on, and return the pages by their URL."""
    pages: dict[str, Page] = {}
    due = [entry.path for entry in MENU]
    while due:
        url = due.pop()
        if url in pages or "format=json" in url or url.startswith("#"):
            continue
        answer = client.get(url)
        assert answer.status_code == 200, url
        pages[url] = Page(answer.text)
        due += pages[url].links
    return pages


@pytest.mark.slow
def test_every_link_leads_to_a_page() -> None:
    pages = list_pages(make_client())
    assert len([url for url in pages if url.startswith("/transactions/")]) >= 4
    assert any(url.startswith("/topics/%3C") for url in pages)
    assert any(url.startswith("/groups/%3C") for url in pages)


def test_a_live_page_asks_for_itself_whatever_its_name_is() -> None:
    """A name may have `/..`, `?` and `%2e` of its own: the page asks for the path as it was sent."""
    url = f"/transactions/{quote(HOSTILE, safe='')}"
    page = Page(make_client().get(f"{url}?a=%26").text)
    assert page.live_url == f"{url}?a=%26"
    assert f"{url}?a=%26&format=json" in page.links


def test_a_name_survives_its_url() -> None:
    client = make_client()
    (url,) = {link for link in Page(client.get("/").text).links if link.startswith("/transactions/%3C")}
    assert "older than the limit" in client.get(url).text


@pytest.mark.slow
def test_ids_are_unique_so_that_live_parts_find_their_place() -> None:
    for url, page in list_pages(make_client()).items():
        assert len(page.ids) == len(set(page.ids)), url


@pytest.mark.slow
def test_every_page_has_a_json_form_with_the_same_title() -> None:
    client = make_client()
    for url, page in list_pages(client).items():
        separator = "&" if "?" in url else "?"
        answer = client.get(f"{url}{separator}format=json")
        assert answer.headers["content-type"] == "application/json"
        assert show_on_page(json.loads(answer.text)["info"]["title"]) in page.text


def test_pages_are_there_before_anything_was_read() -> None:
    client = make_client(StateFeed())
    for entry in MENU:
        assert "Nothing has been read yet." in client.get(entry.path).text


def test_what_could_not_be_read_is_on_the_page() -> None:
    assert ": away" in Page(make_client().get("/stores").text).text


def test_unknown_paths_and_names_are_said_to_be_unknown() -> None:
    client = make_client()
    assert client.get("/nothing").status_code == 404
    assert "no topic of this name" in client.get("/topics/nothing").text
    assert "no group of this name" in client.get("/groups/nothing").text
    assert "No transaction of this id is open" in client.get("/transactions/nothing").text


@pytest.mark.parametrize("path", ["/", "/transactions?format=json", "/static/console.css", "/nothing"])
def test_every_answer_has_the_headers(path: str) -> None:
    headers = make_client().get(path).headers
    assert "default-src 'none'" in headers["content-security-policy"]
    assert "unsafe" not in headers["content-security-policy"]
    assert headers["x-content-type-options"] == "nosniff"


def test_other_host_names_are_refused() -> None:
    """The page of another site cannot read the console under a name of its own (DNS rebinding)."""
    client = make_client(options=WebOptions(names=frozenset({"127.0.0.1", "localhost"})))
    assert client.get("/", headers={"host": "localhost:8080"}).status_code == 200
    refused = client.get("/?format=json", headers={"host": "evil.example:8080"})
    assert refused.status_code == 421
    assert "pay-1" not in refused.text


@pytest.mark.parametrize(
    ("header", "name"),
    [("a:80", "a"), ("A", "a"), ("[::1]:80", "::1"), ("[::1]", "::1"), (None, ""), ("a:b", "a:b")],
)
def test_the_name_in_a_host_header(header: str | None, name: str) -> None:
    assert parse_host(header) == name


def test_credentials_are_asked_for_where_they_are_needed() -> None:
    credentials = HttpCredentials(token=Secret("abc"))
    client = make_client(options=WebOptions(read_credentials=lambda: credentials))
    refused = client.get("/")
    assert refused.status_code == 401
    assert refused.headers["www-authenticate"].startswith("Bearer")
    assert client.get("/events").status_code == 401
    assert client.get("/static/live.js").status_code == 401
    assert client.get("/", headers={"authorization": "Bearer abc"}).status_code == 200


def test_wrong_logins_leave_one_line_for_a_flood_and_none_for_a_browser(
    caplog: pytest.LogCaptureFixture,
) -> None:
    credentials = HttpCredentials(token=Secret("abc"))
    client = make_client(options=WebOptions(read_credentials=lambda: credentials))
    client.get("/")
    client.get("/", headers={"authorization": "Bearer abc"})
    assert caplog.messages == []
    for number in range(30):
        client.get("/metrics", headers={"authorization": f"Bearer {number}"})
    assert 1 <= len(caplog.messages) < 30
    assert caplog.messages[0] == "127.0.0.1 is not let in: its request has wrong credentials"
    assert "Bearer" not in caplog.text


def test_a_refusal_comes_before_a_login() -> None:
    refusal = check_request("evil", None, {"localhost"}, HttpCredentials(token=Secret("abc")))
    assert refusal is not None
    assert refusal.status == 421


def test_only_reading_is_possible() -> None:
    client = make_client()
    assert {client.request(method, "/").status_code for method in ("POST", "PUT", "DELETE")} == {405}


def test_vendored_files_are_as_their_authors_published_them() -> None:
    sums: dict[str, str] = dict(
        reversed(line.split("  ", 1))
        for line in (STATIC / "VENDORED.txt").read_text().splitlines()
        if "  " in line
    )
    scripts = sorted(path.name for path in STATIC.glob("*.min.js"))
    assert sorted(sums) == scripts
    for name in scripts:
        assert hashlib.sha256((STATIC / name).read_bytes()).hexdigest() == sums[name]
        assert (STATIC / f"{name.partition('.')[0].replace('hx-sse', 'htmx')}.LICENSE.txt").is_file()


def test_the_accessibility_checker_is_as_its_authors_published_it() -> None:
    folder = Path(__file__).parents[2] / "support" / "axe"
    lines = [line.split("  ", 1) for line in (folder / "VENDORED.txt").read_text().splitlines()]
    sums = {name: sum_ for sum_, name in (line for line in lines if len(line) == 2)}
    assert sorted(sums) == ["LICENSE", "LICENSE-3RD-PARTY.txt", "axe.min.js"]
    for name, expected in sums.items():
        assert hashlib.sha256((folder / name).read_bytes()).hexdigest() == expected


def test_styles_and_templates_load_nothing_from_elsewhere() -> None:
    sources = [*STATIC.glob("*.css"), *(STATIC.parent / "templates").glob("*.html")]
    for path in sources:
        assert not re.search(r"(?:src|href|url)\s*[=(]\s*[\"']?(?:https?:)?//", path.read_text()), path.name


def test_followers_get_the_newest_state_and_never_wait_for_each_other() -> None:
    async def follow() -> list[int]:
        feed = StateFeed()
        quick, slow = feed.follow(), feed.follow()
        first = asyncio.ensure_future(anext(quick))
        await asyncio.sleep(0)
        numbers = []
        for number in (1, 2, 3):
            feed.publish(make_snapshot(number=number))
            numbers.append((await first).snapshot.number)
            first = asyncio.ensure_future(anext(quick))
            await asyncio.sleep(0)
        first.cancel()
        late = asyncio.ensure_future(anext(slow))
        await asyncio.sleep(0)
        feed.publish(make_snapshot(number=4))
        feed.publish(make_snapshot(number=5))
        return [*numbers, (await late).snapshot.number]

    assert asyncio.run(follow()) == [1, 2, 3, 5]


@pytest.mark.parametrize("url", ["/topics/nowhere", "/groups/nobody", "/transactions/nothing"])
@pytest.mark.parametrize("form", ["", "?format=json"])
@pytest.mark.slow
def test_an_unknown_name_is_not_found(url: str, form: str) -> None:
    feed, snapshot = StateFeed(), make_snapshot()
    feed.publish(replace(snapshot, groups=GroupFacts(status=snapshot.topics.status)))
    client = make_client(feed)
    assert client.get(url + form).status_code == 404
    # An open page takes no 404 from htmx in, and would go on to show what has gone.
    assert client.get(url + form, headers={"hx-request": "true"}).status_code == 200


def test_before_anything_was_read_nothing_is_called_unknown() -> None:
    client = make_client(StateFeed())
    assert {client.get(f"/{section}/x").status_code for section in ("topics", "groups", "transactions")} == {
        200
    }
