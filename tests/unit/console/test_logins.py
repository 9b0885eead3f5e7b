"""A console that demands a token, in a browser: the form, its session, and how long a wrong one waits."""

import asyncio
from urllib.parse import urlencode

import httpx
import pytest
from tests.support.console_facts import NOW_MS, describe, make_snapshot

from tallystick.console.collect.feed import StateFeed
from tallystick.console.web.app import create_app
from tallystick.console.web.gate import WebOptions
from tallystick.console.web.guard import find_own_path, name_user
from tallystick.console.web.logins import (
    ADDRESSES_MAX,
    FREE_ATTEMPTS,
    SESSION_MS_MAX,
    SESSIONS_MAX,
    WAIT_MS_MAX,
    Logins,
)
from tallystick.kernel.secret import Secret
from tallystick.kernel.value import replace
from tallystick.security.http_auth import HttpCredentials
from tallystick.testing import FakeClock

TOKEN = Secret("right")
PAGE = {"accept": "text/html"}
FORM = {"content-type": "application/x-www-form-urlencoded", "sec-fetch-site": "same-origin"}


class Browser:
    """Keeps cookies, and follows no redirection."""

    def __init__(self, credentials: HttpCredentials, base_url: str = "http://localhost:8080") -> None:
        self.credentials, self.clock = credentials, FakeClock(NOW_MS)
        self.cookies = httpx.Cookies()
        feed = StateFeed()
        feed.publish(make_snapshot(describe("pay-1", age_ms=1)))
        self._app = create_app(feed, WebOptions(read_credentials=lambda: self.credentials), self.clock)
        self._base_url = base_url

    def request(
        self, method: str, url: str, headers: dict[str, str] | None = None, **fields: str
    ) -> httpx.Response:
        async def ask() -> httpx.Response:
            transport = httpx.ASGITransport(app=self._app)
            async with httpx.AsyncClient(
                transport=transport, base_url=self._base_url, cookies=self.cookies
            ) as client:
                answer = await client.request(method, url, headers=headers, content=urlencode(fields))
                self.cookies = client.cookies
                return answer

        return asyncio.run(ask())

    def get(self, url: str, headers: dict[str, str] | None = None) -> httpx.Response:
        return self.request("GET", url, PAGE if headers is None else headers)

    def log_in(self, token: str, target: str = "/") -> httpx.Response:
        return self.request("POST", "/login", FORM, token=token, next=target)


def open_browser(base_url: str = "http://localhost:8080") -> Browser:
    return Browser(HttpCredentials(token=TOKEN), base_url)


def test_a_token_only_console_is_usable_in_a_browser() -> None:
    """Wanted: "token-only console usable in a browser (a login form)"."""
    browser = open_browser()
    asked = browser.get("/transactions?health=slow")
    assert asked.status_code == 401
    assert asked.headers["www-authenticate"].startswith("Bearer")
    assert 'name="token"' in asked.text
    assert "pay-1" not in asked.text
    let_in = browser.log_in("right", "/transactions?health=slow")
    assert (let_in.status_code, let_in.headers["location"]) == (303, "/transactions?health=slow")
    assert browser.get("/").status_code == 200
    assert "Log out" in browser.get("/").text
    assert browser.get("/login").headers["location"] == "/"


def test_the_cookie_of_a_session_goes_to_this_console_alone() -> None:
    plain = open_browser().log_in("right").headers["set-cookie"]
    assert plain.startswith("tallystick-console-8080=")
    assert {"HttpOnly", "SameSite=strict", "Path=/"} <= set(plain.split("; "))
    assert "right" not in plain
    assert "Secure" in open_browser("https://localhost").log_in("right").headers["set-cookie"]


def test_a_session_ends_by_logging_out_with_its_time_and_with_its_token() -> None:
    browser = open_browser()
    browser.log_in("right")
    cookies = httpx.Cookies(browser.cookies)
    assert browser.request("POST", "/logout", FORM).status_code == 303
    browser.cookies = cookies  # a copy of the cookie does not outlive it
    assert browser.get("/").status_code == 401
    browser.log_in("right")
    browser.clock.advance(SESSION_MS_MAX)
    assert browser.get("/").status_code == 401
    browser.log_in("right")
    browser.credentials = replace(browser.credentials, token=Secret("another"))
    assert browser.get("/").status_code == 401


def test_programs_are_answered_as_before_and_need_no_cookie() -> None:
    browser = open_browser()
    refused = browser.get("/", {"accept": "*/*"})
    assert (refused.status_code, refused.headers["content-type"]) == (401, "text/plain; charset=utf-8")
    assert "Authorization: Bearer" in refused.text
    assert browser.get("/metrics", {"authorization": "Bearer right"}).status_code == 200
    assert not browser.cookies


def test_only_the_form_and_its_looks_are_open_to_all() -> None:
    browser = open_browser()
    assert {browser.get(path).status_code for path in ("/login", "/static/console.css")} == {200}
    for path in ("/static/live.js", "/login/x", "/events", "/metrics", "/static/console.css/../live.js"):
        assert browser.get(path, {}).status_code == 401
    assert browser.request("POST", "/logout", FORM).status_code == 401


def test_a_host_header_opens_no_path() -> None:
    """Starlette makes `request.url` of the Host header, too, and such a host would end before the path."""
    browser = open_browser()
    assert browser.get("/transactions", {"host": "x/login?"}).status_code == 401


def test_a_form_of_another_site_opens_and_ends_no_session() -> None:
    browser = open_browser()
    for more in ({"sec-fetch-site": "same-site"}, {"origin": "http://localhost:9999"}):
        headers = FORM | more
        assert browser.request("POST", "/login", headers, token="right").status_code == 403
    browser.log_in("right")
    away = browser.request("POST", "/logout", FORM | {"sec-fetch-site": "cross-site"})
    assert away.status_code == 403
    assert browser.get("/").status_code == 200


def test_thirty_wrong_tokens_leave_a_line_and_wait(caplog: pytest.LogCaptureFixture) -> None:
    """Who guesses is seen, and waits."""
    browser = open_browser()
    statuses = [browser.log_in(f"wrong{number}").status_code for number in range(30)]
    assert statuses == [401] * FREE_ATTEMPTS + [429] * (30 - FREE_ATTEMPTS)
    lines = [each.getMessage() for each in caplog.records if each.name.startswith("tallystick")]
    assert lines == ["127.0.0.1 is not let in: its request has wrong credentials"]
    assert "wrong0" not in caplog.text
    waiting = browser.log_in("right")  # not looked at, or a guess would cost nothing
    assert (waiting.status_code, waiting.headers["retry-after"]) == (429, "1")
    assert browser.get("/", {"authorization": "Bearer right"}).status_code == 429
    browser.clock.advance(1_000)
    assert browser.log_in("right").status_code == 303


def test_who_has_logged_in_does_not_wait_for_who_guesses() -> None:
    browser = open_browser()
    browser.log_in("right")
    for number in range(FREE_ATTEMPTS + 1):
        browser.get("/", {"authorization": f"Bearer {number}", "cookie": "other=1"})
    assert browser.get("/").status_code == 200


def test_each_failure_after_the_free_ones_waits_twice_as_long() -> None:
    clock = FakeClock()
    logins = Logins(clock)
    waits = []
    for _ in range(FREE_ATTEMPTS + 8):
        clock.advance(logins.find_wait_ms("a"))
        logins.note_failure("a")
        waits.append(logins.find_wait_ms("a"))
    grown = [min(WAIT_MS_MAX, 1_000 * 2**power) for power in range(9)]
    assert waits == [0] * (FREE_ATTEMPTS - 1) + grown
    assert logins.find_wait_ms("b") == 0


def test_what_is_remembered_of_logins_is_bounded() -> None:
    clock = FakeClock()
    logins = Logins(clock, make_id=iter(map(str, range(SESSIONS_MAX + 1))).__next__)
    ids = [logins.open_session(TOKEN) for _ in range(SESSIONS_MAX + 1)]
    assert [logins.has_session(each, TOKEN) for each in (ids[0], ids[1], ids[-1])] == [False, True, True]
    for _ in range(FREE_ATTEMPTS):
        logins.note_failure("first")
    for number in range(ADDRESSES_MAX):
        logins.note_failure(str(number))
    assert logins.find_wait_ms("first") == 0


@pytest.mark.parametrize(
    ("text", "path"),
    [
        ("/topics/a%2Fb?x=1", "/topics/a%2Fb?x=1"),
        ("//evil.example/", "/"),
        ("/\\evil.example", "/"),
        ("/\t/evil.example", "/"),
        ("https://evil.example", "/"),
        ("javascript:alert(1)", "/"),
        ("", "/"),
    ],
)
def test_a_login_leads_to_a_page_of_this_console(text: str, path: str) -> None:
    assert find_own_path(text) == path


def test_the_audit_log_names_a_session() -> None:
    assert name_user(None, HttpCredentials(token=TOKEN), has_session=True) == "token, by the login form"
    assert name_user("Bearer right", HttpCredentials(token=TOKEN)) == "bearer token"
