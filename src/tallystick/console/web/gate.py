"""Stands before every page: refuses what may not be answered, and asks a browser for the token."""

import logging
from collections.abc import Callable
from typing import Final

from jinja2 import Environment
from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from tallystick.console.model.escaped import show_on_page
from tallystick.console.web.forms import FORM_HEADERS, answer_refusal, read_form
from tallystick.console.web.guard import (
    HEADERS,
    LOGIN_PATH,
    Refusal,
    check_form_origin,
    check_request,
    find_own_path,
    is_open_to_all,
    name_user,
)
from tallystick.console.web.logins import Logins
from tallystick.kernel.clock import Clock
from tallystick.kernel.log_throttle import LogThrottle
from tallystick.kernel.secret import Secret
from tallystick.kernel.value import Value
from tallystick.security.http_auth import HttpCredentials

_log = logging.getLogger("tallystick.console.web")

LOGOUT_PATH: Final = "/logout"


class WebOptions(Value, kw_only=True):
    """Options of the pages.

    names             host names that requests may come under; empty: any
    read_credentials  called for each request, so that a changed secret is in force at once
    """

    names: frozenset[str] = frozenset()
    read_credentials: Callable[[], HttpCredentials] = HttpCredentials


class Reception:
    """Knows who has logged in, and slows down who guesses. Lives on the loop."""

    def __init__(self, options: WebOptions, clock: Clock) -> None:
        self.options, self.logins = options, Logins(clock)
        self._throttle = LogThrottle(lambda: clock.monotonic_ms() / 1_000)

    def check(self, request: Request) -> Refusal | None:
        """Return why a request is not answered; None if it is, and then note who has sent it."""
        credentials = self.options.read_credentials()
        headers = request.headers
        authorization = headers.get("authorization")
        session = request.cookies.get(name_cookie(request), "")
        has_session = self.logins.has_session(session, credentials.token)
        request.state.has_session = has_session
        request.state.user = name_user(authorization, credentials, has_session=has_session)
        is_let_in = has_session or (credentials.token is not None and is_open_to_all(request.scope["path"]))
        refusal = check_request(
            headers.get("host"), authorization, self.options.names, credentials, is_let_in=is_let_in
        )
        # A browser's first request has no credentials, and is no attempt.
        if (refusal is not None and refusal.status == 421) or is_let_in or authorization is None:
            return refusal
        return self.find_wait(request) or (refusal and self.note_failure(request, refusal))

    def find_wait(self, request: Request) -> Refusal | None:
        """Return the refusal of an address that has to wait; what it sends meanwhile is not looked at."""
        wait_ms = self.logins.find_wait_ms(_find_address(request))
        if not wait_ms:
            return None
        seconds = -(-wait_ms // 1_000)
        text = f"Wrong credentials came from this address again and again. Try again in {seconds} s."
        return Refusal(429, text, retry_after_s=seconds)

    def note_failure(self, request: Request, refusal: Refusal) -> Refusal:
        """Remember and log wrong credentials, and return their refusal."""
        self.logins.note_failure(_find_address(request))
        more = self._throttle.take()
        if more is not None:
            # The host may be the text of a proxy's header.
            text = "%s is not let in: its request has wrong credentials%s"
            _log.warning(text, show_on_page(_find_address(request)), more)
        return refusal


class LoginPages:
    """The form that asks for the token, and its two answers."""

    def __init__(self, reception: Reception, templates: Environment) -> None:
        self._reception, self._templates = reception, templates

    def list_routes(self) -> list[Route]:
        """Return the routes."""
        return [
            Route(LOGIN_PATH, self.show, methods=["GET"]),
            Route(LOGIN_PATH, self.log_in, methods=["POST"]),
            Route(LOGOUT_PATH, self.log_out, methods=["POST"]),
        ]

    async def show(self, request: Request) -> Response:
        """Answer with the form; where no token is demanded, or there is a session, with the first page."""
        has_token = self._reception.options.read_credentials().token is not None
        if not has_token or request.state.has_session:
            return RedirectResponse("/", 303)
        return self.ask(request, 200)

    async def log_in(self, request: Request) -> Response:
        """Open a session for a sender of the token."""
        refusal = check_form_origin(request.headers)
        fields = refusal or await read_form(request)
        if isinstance(fields, Refusal):
            return answer_refusal(fields)
        target = find_own_path(fields.get("next", ""))
        wait = self._reception.find_wait(request)
        if wait is not None:
            return self.ask(request, wait.status, target, wait)
        token = self._reception.options.read_credentials().token
        if token is None or Secret(fields.get("token", "").strip()) != token:
            wrong = Refusal(401, "This is not the console's token.")
            return self.ask(request, 401, target, self._reception.note_failure(request, wrong))
        answer = RedirectResponse(target, 303)
        # Strict: no page of another site comes in under the session, not even by a link.
        answer.set_cookie(
            name_cookie(request),
            self._reception.logins.open_session(token),
            secure=request.url.scheme == "https",
            httponly=True,
            samesite="strict",
        )
        return answer

    async def log_out(self, request: Request) -> Response:
        """End the session, wherever its cookie is."""
        refusal = check_form_origin(request.headers)
        if refusal is not None:
            return answer_refusal(refusal)
        self._reception.logins.close_session(request.cookies.get(name_cookie(request), ""))
        answer = RedirectResponse(LOGIN_PATH, 303)
        answer.delete_cookie(name_cookie(request), httponly=True, samesite="strict")
        return answer

    def ask(
        self, request: Request, status: int, target: str = "/", refusal: Refusal | None = None
    ) -> Response:
        """Return the form, which leads to `target`, with what was wrong about the attempt before."""
        html = self._templates.get_template("login.html").render(
            section="", url=target, problem="" if refusal is None else refusal.text
        )
        headers = dict(FORM_HEADERS)
        if refusal is not None and refusal.retry_after_s:
            headers["Retry-After"] = str(refusal.retry_after_s)
        return HTMLResponse(html, status, headers=headers)


class Gate:
    """Middleware: answers what is refused itself, and gives every answer the headers of `guard`."""

    def __init__(self, app: ASGIApp, reception: Reception, pages: LoginPages) -> None:
        self._app, self._reception, self._pages = app, reception, pages

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        request = Request(scope)
        refusal = self._reception.check(request)
        answer: ASGIApp = self._app if refusal is None else self._refuse(request, refusal)

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                known = {name.lower() for name, _ in message["headers"]}
                message["headers"] = [
                    *message["headers"],
                    *(
                        (name.lower().encode(), value.encode())
                        for name, value in HEADERS.items()
                        if name.lower().encode() not in known
                    ),
                ]
            await send(message)

        await answer(scope, receive, send_with_headers)

    def _refuse(self, request: Request, refusal: Refusal) -> Response:
        """Return the form where a person can log in by it, and the refusal's text otherwise."""
        is_page = request.method == "GET" and "text/html" in request.headers.get("accept", "")
        has_token = self._reception.options.read_credentials().token is not None
        if refusal.status != 401 or not is_page or not has_token:
            return answer_refusal(refusal)
        path, query = request.scope["raw_path"].decode("ascii"), request.url.query
        answer = self._pages.ask(request, 401, f"{path}?{query}" if query else path)
        for challenge in refusal.challenges:
            answer.headers.append("WWW-Authenticate", challenge)
        return answer


def name_cookie(request: Request) -> str:
    """Return the name of the session's cookie: cookies know no ports, and a host may have two consoles."""
    server = request.scope.get("server") or ("", 0)
    return f"tallystick-console-{server[1]}"


def _find_address(request: Request) -> str:
    return "unknown" if request.client is None else request.client.host
