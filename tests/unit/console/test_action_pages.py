"""The pages of actions over HTTP, and everyone who must not get through: no socket, no cluster."""

import asyncio
import json
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlencode

import httpx
import pytest
from tests.support.console_facts import (
    NOW_MS,
    SERVERS,
    STORE,
    WRITER,
    describe,
    make_row,
    make_snapshot,
    make_store,
)
from tests.support.console_operator import Form, read_form

from tallystick.console.actions.config import ActionConfig
from tallystick.console.actions.pending import PENDING_AGE_MS_MAX, PENDING_MAX
from tallystick.console.actions.plan import ActionPlan
from tallystick.console.actions.readings import (
    CannotRead,
    CompletionOutlook,
    Reading,
    TransactionReading,
)
from tallystick.console.actions.request import ActionRequest
from tallystick.console.actions.results import ActionResult, report_done, report_unknown
from tallystick.console.actions.service import ActionService
from tallystick.console.collect.feed import StateFeed
from tallystick.console.web.app import create_app
from tallystick.console.web.gate import WebOptions
from tallystick.kernel.secret import Secret
from tallystick.kernel.value import replace
from tallystick.security.http_auth import HttpCredentials
from tallystick.testing import FakeClock

NAME = "pay-1"
ADA = "Basic YWRhOnNlY3JldA=="  # ada:secret
URL = f"/actions/resolve/{NAME}?store={quote(STORE, safe='')}"
FROM_HERE = {"origin": "http://localhost", "sec-fetch-site": "same-origin"}
HOSTILE = "<script>alert(1)</script>&\"'\x1b[31m/../\u202e?a=b#c%2e\n"


@dataclass
class MemoryReadings:
    """What is true, as a value that a test replaces."""

    reading: TransactionReading
    away: bool = False
    count: int = 0

    async def read(self, request: ActionRequest) -> Reading:
        self.count += 1
        if self.away:
            raise CannotRead("Metadata: not within the limit")
        return self.reading

    async def close(self) -> None:
        pass


def read_transaction(name: str = NAME, *, state: str = "Ongoing") -> TransactionReading:
    return TransactionReading(
        snapshot=make_snapshot(
            describe(name, state), stores=[make_store(make_row(name, WRITER), make_row("other", WRITER))]
        ),
        transactional_id=name,
    )


@dataclass
class Visit:
    """A console with actions, and what it has done."""

    client: httpx.AsyncClient
    readings: MemoryReadings
    clock: FakeClock
    actions: list[ActionRequest]

    async def open(self, url: str = URL, **headers: str) -> Form:
        return read_form((await self.client.get(url, headers=headers)).text)

    async def send(
        self,
        form: Form,
        typed: str = NAME,
        headers: Mapping[str, str] | None = None,
        to: str | None = None,
        **changes: str,
    ) -> httpx.Response:
        fields = {**form.fields, "confirmation": typed, **changes}
        return await self.client.post(
            to or form.action, data=fields, headers=FROM_HERE if headers is None else headers
        )


@dataclass
class Site:
    """Settings of a visit. `act` carries actions out."""

    readings: MemoryReadings = field(default_factory=lambda: MemoryReadings(read_transaction()))
    options: WebOptions = field(default_factory=WebOptions)
    audit_log: Path | None = None
    run_limit_ms: int = 60_000
    act: Callable[[ActionPlan], ActionResult] = lambda _: report_done("committed it in Kafka")
    feed: StateFeed = field(default_factory=StateFeed)

    def visit(self, story: Callable[[Visit], Any]) -> list[ActionRequest]:
        """Run a story; return the actions that were carried out."""
        actions: list[ActionRequest] = []

        def act(_: ActionConfig, request: ActionRequest, __: Reading, plan: ActionPlan) -> ActionResult:
            actions.append(request)
            return self.act(plan)

        async def run() -> None:
            clock = FakeClock(NOW_MS)
            settings = {"bootstrap.servers": SERVERS}
            config = ActionConfig(
                admin=settings, producer=settings, audit_log=self.audit_log, run_limit_ms=self.run_limit_ms
            )
            async with ActionService(config, clock=clock, reader=self.readings, act=act) as action_service:
                app = create_app(self.feed, self.options, clock, action_service=action_service)
                async with httpx.AsyncClient(
                    transport=httpx.ASGITransport(app=app), base_url="http://localhost"
                ) as client:
                    await story(Visit(client, self.readings, clock, actions))

        asyncio.run(run())
        return actions


# -------------------------------------------------------------------------------- what is meant to work


def test_a_form_that_is_filled_in_acts_once_and_shows_its_result() -> None:
    async def story(visit: Visit) -> None:
        form = await visit.open()
        assert form.action.startswith(f"/run/resolve/{NAME}?")
        answer = await visit.send(form)
        assert answer.status_code == 200
        assert "committed it in Kafka" in read_form(answer.text).text

    (action,) = Site().visit(story)
    assert action.transactional_id == NAME  # type: ignore[union-attr]


def test_a_dry_run_has_a_json_form_that_a_script_can_send_back() -> None:
    async def story(visit: Visit) -> None:
        page = json.loads((await visit.client.get(f"{URL}&format=json")).text)
        assert page["info"]["title"] == f"Resolve {NAME}"
        assert page["plan"]["guard"] == "ready"
        fields = {"token": page["token"], "digest": page["plan"]["digest"], "confirmation": NAME}
        answer = await visit.client.post(f"{page['run_url']}&format=json", data=fields)
        assert json.loads(answer.text)["result"]["outcome"] == "done"

    assert len(Site().visit(story)) == 1


def test_a_dry_run_acts_on_nothing_whatever_its_query_says() -> None:
    async def story(visit: Visit) -> None:
        form = await visit.open()
        fields = urlencode({**form.fields, "confirmation": NAME})
        for method in ("GET", "HEAD"):
            answer = await visit.client.request(method, f"{URL}&{fields}")
            assert answer.status_code == 200

    assert Site().visit(story) == []


def test_an_unknown_outcome_says_what_to_look_at_and_is_not_repeated() -> None:
    """[ACT-3]"""

    async def story(visit: Visit) -> None:
        form = await visit.open()
        answer = await visit.send(form)
        text = read_form(answer.text).text
        assert answer.status_code == 504
        assert "outcome unknown" in text
        assert "transactions describe" in text
        assert "CompleteCommit or PrepareCommit: it was done" in text
        assert (await visit.send(form)).status_code == 409

    assert len(Site(act=lambda plan: report_unknown("the connection was lost", plan)).visit(story)) == 1


def test_an_action_that_takes_too_long_is_unknown_and_keeps_others_out(tmp_path: Path) -> None:
    """[ACT-3] It is not cancelled: its result is in the audit log as soon as there is one."""
    done = threading.Event()

    def act(_: ActionPlan) -> ActionResult:
        done.wait(60)
        return report_done("at last")

    async def story(visit: Visit) -> None:
        first, second = await visit.open(), await visit.open()
        answer = await visit.send(first)
        assert answer.status_code == 504
        assert "may still be under way" in read_form(answer.text).text
        busy = await visit.send(second)
        assert busy.status_code == 409
        assert "Another action is under way" in read_form(busy.text).text
        done.set()
        while "at last" not in read_form((await visit.send(first)).text).text:
            await turn_the_loop()
        assert (await visit.send(second)).status_code in (200, 504)  # its form is still good

    audit = tmp_path / "audit.jsonl"
    assert len(Site(act=act, run_limit_ms=1, audit_log=audit).visit(story)) == 2
    lines = [json.loads(line) for line in audit.read_text().splitlines()]
    assert [(line["event"], line["text"]) for line in lines] == [("intent", ""), ("result", "at last")] * 2


# ---------------------------------------------------------------------------------- what must be refused


def test_without_actions_there_is_no_route_and_no_button() -> None:
    async def run() -> None:
        app = create_app(StateFeed())
        async with httpx.AsyncClient(
            transport=httpx.ASGITransport(app=app), base_url="http://localhost"
        ) as client:
            for url in (URL, "/run/resolve/pay-1", "/actions/reset-offsets/g", "/run", "/actions"):
                assert (await client.get(url)).status_code == 404
                assert (await client.post(url)).status_code == 404
            assert (await client.post("/transactions/pay-1")).status_code == 405

    asyncio.run(run())


@pytest.mark.parametrize(
    "headers",
    [
        {"origin": "https://evil.example"},
        {"origin": "http://localhost:8081"},
        {"origin": "http://localhost.evil.example"},
        {"origin": "null"},
        {"origin": "http://["},
        {"origin": ""},
        {"origin": "http://localhost", "sec-fetch-site": "cross-site"},
        {"origin": "http://localhost", "sec-fetch-site": "same-site"},
        {"sec-fetch-site": "none"},
    ],
    ids=str,
)
@pytest.mark.slow
def test_a_form_from_another_site_is_refused(headers: dict[str, str]) -> None:
    """[ACT-4] Even with a token, which no other site can have read."""

    async def story(visit: Visit) -> None:
        answer = await visit.send(await visit.open(), headers=headers)
        assert answer.status_code == 403

    assert Site().visit(story) == []


def test_a_browser_that_sends_no_referrer_is_no_other_site() -> None:
    async def story(visit: Visit) -> None:
        headers = {"origin": "null", "sec-fetch-site": "same-origin"}
        assert (await visit.send(await visit.open(), headers=headers)).status_code == 200

    assert len(Site().visit(story)) == 1


@pytest.mark.parametrize(
    "changes",
    [
        {"token": ""},
        {"token": "x" * 43},
        {"digest": "0" * 64},
        {"digest": ""},
        {"typed": "pay-2"},
        {"typed": ""},
        {"typed": "PAY-1"},
        {"typed": "pay-1\u200b"},
        {"reason": "x" * 501},
    ],
    ids=str,
)
@pytest.mark.slow
def test_a_form_that_is_not_the_one_that_was_shown_is_refused(changes: dict[str, Any]) -> None:
    """[ACT-4]"""

    async def story(visit: Visit) -> None:
        answer = await visit.send(await visit.open(), **changes)
        assert answer.status_code == 409
        assert "refused" in read_form(answer.text).text

    assert Site().visit(story) == []


def test_a_typing_error_costs_nothing() -> None:
    """The form is still good: the operator goes back and types again."""

    async def story(visit: Visit) -> None:
        form = await visit.open()
        assert (await visit.send(form, "pay-2")).status_code == 409
        assert (await visit.send(form)).status_code == 200

    assert len(Site().visit(story)) == 1


def test_a_form_is_used_once() -> None:
    """[ACT-4] A replayed form does nothing, although everything in it is as it was."""

    async def story(visit: Visit) -> None:
        form = await visit.open()
        assert (await visit.send(form)).status_code == 200
        again = await visit.send(form)
        assert again.status_code == 409
        text = read_form(again.text).text
        assert "used before, and nothing was done again: done: committed it in Kafka" in text

    assert len(Site().visit(story)) == 1


@pytest.mark.parametrize(
    "to", ["/run/resolve/other", "/run/force-terminate/pay-1", "/run/complete/pay-1", "/run/resolve/"]
)
@pytest.mark.slow
def test_a_form_is_good_for_its_own_action_alone(to: str) -> None:
    """[ACT-4] The id in the form and the id in the address are one."""

    async def story(visit: Visit) -> None:
        form = await visit.open()
        for typed in (NAME, "other"):
            assert (await visit.send(form, typed, to=to)).status_code == 409

    assert Site().visit(story) == []


def test_a_form_grows_old() -> None:
    """[ACT-4]"""

    async def story(visit: Visit) -> None:
        form = await visit.open()
        visit.clock.advance(PENDING_AGE_MS_MAX)
        other = await visit.open()
        assert (await visit.send(form, "pay-2")).status_code == 409
        visit.clock.advance(1)
        assert "used before, is older" in (await visit.send(form)).text
        assert (await visit.send(other)).status_code == 200

    assert len(Site().visit(story)) == 1


@pytest.mark.slow
def test_dry_runs_are_forgotten_and_never_fill_the_memory() -> None:
    async def story(visit: Visit) -> None:
        first = await visit.open()
        second = await visit.open()
        for _ in range(PENDING_MAX - 1):
            await visit.client.get(URL)
        assert (await visit.send(first)).status_code == 409
        assert (await visit.send(second)).status_code == 200

    assert len(Site().visit(story)) == 1


def test_nothing_but_post_runs_an_action() -> None:
    async def story(visit: Visit) -> None:
        form = await visit.open()
        fields = {**form.fields, "confirmation": NAME}
        for method in ("GET", "HEAD", "PUT", "DELETE", "PATCH", "OPTIONS"):
            answer = await visit.client.request(method, form.action, params=fields, headers=FROM_HERE)
            assert answer.status_code == 405
        for method in ("POST", "PUT", "DELETE"):
            assert (await visit.client.request(method, URL, headers=FROM_HERE)).status_code == 405

    assert Site().visit(story) == []


@pytest.mark.parametrize(
    ("content", "kind", "status"),
    [
        (b"token=a", "text/plain", 415),
        (b"token=a", "multipart/form-data; boundary=a", 415),
        (b'{"token": "a"}', "application/json", 415),
        (b"token=a", "", 415),
        (b"token=a&token=b", "application/x-www-form-urlencoded", 400),
        (b"&".join(b"f%d=1" % n for n in range(17)), "application/x-www-form-urlencoded", 400),
        (b"token=%ff", "application/x-www-form-urlencoded", 400),
        (b"token=\xff", "application/x-www-form-urlencoded", 400),
        (b"token=" + b"a" * (256 * 1024), "application/x-www-form-urlencoded", 413),
        (b"", "application/x-www-form-urlencoded", 409),
    ],
)
@pytest.mark.slow
def test_a_body_that_is_no_form_is_refused(content: bytes, kind: str, status: int) -> None:
    async def story(visit: Visit) -> None:
        form = await visit.open()
        headers = {**FROM_HERE, **({"content-type": kind} if kind else {})}
        answer = await visit.client.post(form.action, content=content, headers=headers)
        assert answer.status_code == status

    assert Site().visit(story) == []


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"sec-fetch-site": "cross-site", "sec-fetch-dest": "image"}, 403),
        ({"sec-fetch-site": "cross-site", "sec-fetch-dest": "iframe"}, 403),
        ({"sec-fetch-site": "same-site", "sec-fetch-dest": "empty"}, 403),
        ({"sec-fetch-site": "cross-site", "sec-fetch-dest": "document"}, 200),
        ({"sec-fetch-site": "none", "sec-fetch-dest": "document"}, 200),
        ({"sec-fetch-site": "same-origin", "sec-fetch-dest": "empty"}, 200),
        ({}, 200),
    ],
    ids=str,
)
def test_other_sites_may_link_to_a_dry_run_and_not_load_it(headers: dict[str, str], status: int) -> None:
    async def story(visit: Visit) -> None:
        assert (await visit.client.get(URL, headers=headers)).status_code == status
        assert visit.readings.count == (status == 200)

    Site().visit(story)


def test_host_names_and_logins_are_asked_for_as_everywhere(tmp_path: Path) -> None:
    """And the audit log names the user."""
    credentials = HttpCredentials(user="ada", password=Secret("secret"))
    options = WebOptions(names=frozenset({"localhost"}), read_credentials=lambda: credentials)
    login = {**FROM_HERE, "authorization": ADA}

    async def story(visit: Visit) -> None:
        assert (await visit.client.get(URL)).status_code == 401
        form = await visit.open(authorization=login["authorization"])
        assert (await visit.send(form)).status_code == 401
        assert (await visit.send(form, headers={**login, "host": "evil.example"})).status_code == 421
        assert (await visit.send(form, headers=login)).status_code == 200

    audit = tmp_path / "audit.jsonl"
    assert len(Site(options=options, audit_log=audit).visit(story)) == 1
    assert {json.loads(line)["user"] for line in audit.read_text().splitlines()} == {"ada"}


def test_a_bearer_token_has_no_name() -> None:
    credentials = HttpCredentials(token=Secret("abc"))
    options = WebOptions(read_credentials=lambda: credentials)

    async def story(visit: Visit) -> None:
        form = await visit.open(authorization="Bearer abc")
        assert (await visit.send(form, headers={"authorization": "Bearer abc"})).status_code == 200

    assert len(Site(options=options).visit(story)) == 1


def test_names_in_a_dry_run_are_text_and_their_confirmation_can_be_typed(tmp_path: Path) -> None:
    """[ACT-4] An id that is markup, turns the writing direction, and has a line break in it."""
    readings = MemoryReadings(read_transaction(HOSTILE))
    url = f"/actions/resolve/{quote(HOSTILE, safe='')}?store={quote(STORE, safe='')}"
    confirmation = HOSTILE.encode("unicode_escape").decode()

    async def story(visit: Visit) -> None:
        html = (await visit.client.get(url)).text
        assert "<script>alert" not in html
        assert html.count("<script") == 4
        form = read_form(html)
        assert confirmation in form.text
        assert (await visit.send(form, HOSTILE)).status_code == 409
        answer = await visit.send(form, confirmation)
        assert answer.status_code == 200
        assert "<script>alert" not in answer.text

    audit = tmp_path / "audit.jsonl"
    (action,) = Site(readings=readings, audit_log=audit).visit(story)
    assert action.transactional_id == HOSTILE  # type: ignore[union-attr]
    assert [json.loads(line)["subject"] for line in audit.read_text().splitlines()] == [HOSTILE] * 2


def test_a_state_that_moves_while_the_page_is_read_is_said_and_nothing_is_done(tmp_path: Path) -> None:
    """[ACT-1]"""

    async def story(visit: Visit) -> None:
        form = await visit.open()
        visit.readings.reading = read_transaction(state="CompleteCommit")
        answer = await visit.send(form)
        text = read_form(answer.text).text
        assert answer.status_code == 409
        assert "Kafka, now: CompleteCommit" in text
        visit.readings.reading = read_transaction()
        visit.readings.away, form = False, await visit.open()
        visit.readings.away = True
        away = await visit.send(form)
        assert "could not be read, so nothing was done" in read_form(away.text).text

    audit = tmp_path / "audit.jsonl"
    assert Site(audit_log=audit).visit(story) == []
    assert [json.loads(line)["event"] for line in audit.read_text().splitlines()] == ["refused"] * 2


def test_an_audit_log_that_cannot_be_written_stops_the_action(tmp_path: Path) -> None:
    """[ACT-5]"""
    folder = tmp_path / "log"
    folder.mkdir()

    async def story(visit: Visit) -> None:
        form = await visit.open()
        (folder / "audit.jsonl").unlink()
        folder.rmdir()
        answer = await visit.send(form)
        assert answer.status_code == 409
        assert "audit log cannot be written, so nothing was done" in read_form(answer.text).text

    assert Site(audit_log=folder / "audit.jsonl").visit(story) == []


def test_the_intent_is_on_the_disk_before_the_action_begins(tmp_path: Path) -> None:
    """[ACT-5]"""
    audit = tmp_path / "audit.jsonl"
    seen: list[str] = []

    def act(_: ActionPlan) -> ActionResult:
        seen.extend(json.loads(line)["event"] for line in audit.read_text().splitlines())
        return report_done("done")

    async def story(visit: Visit) -> None:
        await visit.send(await visit.open())

    Site(act=act, audit_log=audit).visit(story)
    assert seen == ["intent"]


def test_what_is_refused_has_no_form_and_cannot_be_sent() -> None:
    readings = MemoryReadings(read_transaction(state="CompleteAbort"))

    async def story(visit: Visit) -> None:
        page = json.loads((await visit.client.get(f"{URL}&format=json")).text)
        assert (await visit.open()).action == ""
        fields = {"token": page["token"], "digest": page["plan"]["digest"], "confirmation": NAME}
        answer = await visit.client.post(page["run_url"], data=fields, headers=FROM_HERE)
        assert answer.status_code == 409

    assert Site(readings=readings).visit(story) == []


def test_an_address_that_names_no_action_is_said_to_be_none() -> None:
    async def story(visit: Visit) -> None:
        assert (await visit.client.get("/actions/explode/pay-1")).status_code == 404
        assert (await visit.client.post("/run/explode/pay-1", headers=FROM_HERE)).status_code == 404
        wrong = await visit.client.get("/actions/abort/orders-0?start-offset=x")
        assert wrong.status_code == 400
        assert "is not an offset" in wrong.text
        chooser = await visit.client.get("/actions/complete/pay-1")
        assert (chooser.status_code, read_form(chooser.text).action) == (200, "")
        visit.readings.away = True
        away = await visit.client.get(URL)
        assert (away.status_code, read_form(away.text).action) == (503, "")

    Site().visit(story)


def test_an_orphan_has_two_buttons_that_say_what_the_stored_state_means() -> None:
    """Wanted: "what the state means here, two labelled buttons, a reason", and no empty box."""

    async def story(visit: Visit) -> None:
        page = (await visit.client.get("/actions/complete/pay-1")).text
        assert "No database and no decision log that this console reads knows this id." in page
        assert "<input" not in page.partition("<main")[2]
        assert read_form(page).links == [
            "/actions/complete/pay-1?state=5%3A3",
            "/actions/complete/pay-1?state=",
        ]
        assert page.index("It says <code") < page.index(">Commit<") < page.index("or there is no row")
        assert (
            page.index(">Commit<") < page.index("end nothing. The cluster has lost") < page.index(">Abort<")
        )
        assert "<code>5</code> with a number above <code>3</code>" in page
        assert "?state=" not in (await visit.client.get("/actions/complete/pay-2")).text
        known = (await visit.client.get("/actions/complete/pay-3")).text
        assert f"{STORE}</span> decides this id: resolve it instead" in known

    site = Site()
    descriptions = (describe("pay-1"), describe("pay-2", timeout_ms=60_000), describe("pay-3"))
    site.feed.publish(make_snapshot(*descriptions, stores=[make_store(make_row("pay-3"))]))
    assert site.visit(story) == []


@pytest.mark.parametrize(("state", "outcome"), [("5:3", "commit"), ("", "abort")])
def test_either_end_of_an_orphan_needs_a_reason(state: str, outcome: str) -> None:
    async def story(visit: Visit) -> None:
        form = await visit.open(f"/actions/complete/{NAME}?state={state}")
        assert "reason" in form.fields
        assert (await visit.send(form)).status_code == 409
        assert (await visit.send(form, reason="its row says so")).status_code == 200

    outlook = CompletionOutlook(outcome=outcome, text="as its row says", sends_request=True)
    reading = TransactionReading(
        snapshot=make_snapshot(describe()), transactional_id=NAME, completion=outlook
    )
    assert len(Site(readings=MemoryReadings(reading)).visit(story)) == 1


def test_a_dry_run_follows_no_stream_and_may_send_its_origin() -> None:
    """What is typed would be lost, and every snapshot would be a reading of the cluster."""

    async def story(visit: Visit) -> None:
        answer = await visit.client.get(URL)
        assert "hx-get" not in answer.text
        assert answer.headers["referrer-policy"] == "same-origin"
        assert "form-action 'self'" in answer.headers["content-security-policy"]
        assert (await visit.client.get("/")).headers["referrer-policy"] == "no-referrer"

    Site().visit(story)


@pytest.mark.slow
def test_pages_have_buttons_where_they_have_commands_that_change_something() -> None:
    async def story(visit: Visit) -> None:
        overview = read_form((await visit.client.get("/")).text)
        assert overview.links == []

    Site().visit(story)
    snapshot = replace(make_snapshot(describe(age_ms=10**8)), number=1)
    feed = StateFeed()
    feed.publish(snapshot)

    async def run() -> None:
        settings = {"bootstrap.servers": SERVERS}
        config = ActionConfig(admin=settings, producer=settings)
        async with ActionService(config, reader=MemoryReadings(read_transaction())) as action_service:
            for app, expected in (
                (create_app(feed, clock=FakeClock(NOW_MS), action_service=action_service), 2),
                (create_app(feed, clock=FakeClock(NOW_MS)), 0),
            ):
                async with httpx.AsyncClient(
                    transport=httpx.ASGITransport(app=app), base_url="http://localhost"
                ) as client:
                    page = read_form((await client.get(f"/transactions/{NAME}")).text)
                    assert len(set(page.links)) == expected

    asyncio.run(run())


async def turn_the_loop() -> None:
    """Let the loop hear of a thread's result."""
    await asyncio.sleep(0)


def test_an_action_survives_the_browser_that_sent_it(tmp_path: Path) -> None:
    """[ACT-3] The request is given up while the action runs: it goes on, and its result is written."""
    running, may_end = threading.Event(), threading.Event()

    def act(_: ActionPlan) -> ActionResult:
        running.set()
        may_end.wait(60)
        return report_done("done without a reader")

    async def story(visit: Visit) -> None:
        form = await visit.open()
        request = asyncio.create_task(visit.send(form))
        await asyncio.to_thread(running.wait, 60)
        request.cancel()
        await asyncio.gather(request, return_exceptions=True)
        again = await visit.send(form)
        assert "it is still under way" in read_form(again.text).text
        may_end.set()
        while "done without a reader" not in read_form((await visit.send(form)).text).text:
            await turn_the_loop()

    audit = tmp_path / "audit.jsonl"
    assert len(Site(act=act, audit_log=audit).visit(story)) == 1
    lines = [json.loads(line) for line in audit.read_text().splitlines()]
    assert [line["text"] for line in lines] == ["", "done without a reader"]
