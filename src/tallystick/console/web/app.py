"""The Starlette application: one route for each page, the stream of new snapshots, and the static files.

A page is rendered from the newest state at once. Only what a single page shows, such as the history of one
id, is asked for with it, in a bounded time. With JavaScript an open page asks again when the stream tells of
a new snapshot, and what has changed is replaced in place, by ids; without, a reload shows the same.
`?format=json` returns the view model instead.
"""

import asyncio
import re
from collections.abc import AsyncIterator
from functools import cache, partial
from pathlib import Path
from typing import Final
from urllib.parse import quote

from jinja2 import Environment, FileSystemLoader, StrictUndefined, select_autoescape
from sse_starlette import EventSourceResponse, ServerSentEvent
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import HTMLResponse, PlainTextResponse, Response
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles

from tallystick import __version__
from tallystick.client.errors import ClientError
from tallystick.console.actions.request import find_action_url, find_reset_url, find_rows_url, is_resolvable
from tallystick.console.actions.service import ActionService
from tallystick.console.collect.failures import describe_failure
from tallystick.console.collect.feed import StateFeed
from tallystick.console.lookup.record_page import BadQuery, parse_query
from tallystick.console.model.escaped import show_on_page
from tallystick.console.model.state import ConsoleState
from tallystick.console.views.events import StreamMessage, announce_snapshot, list_unseen, stream_events
from tallystick.console.views.metrics import read_metrics
from tallystick.console.views.page_request import Lookups, PageRequest
from tallystick.console.views.texts import (
    format_ago,
    format_count,
    format_duration,
    format_machine_time,
    format_time,
    pluralize,
)
from tallystick.console.views.transactions import NO_STATE
from tallystick.console.web.action_pages import ActionPages, encode_json, format_url
from tallystick.console.web.gate import Gate, LoginPages, Reception, WebOptions
from tallystick.console.web.pages import MENU, PAGES, Page
from tallystick.kernel.clock import Clock, SystemClock
from tallystick.metrics.exposition import PrometheusText
from tallystick.protocol.records import RecordsError

METRICS_PATH: Final = "/metrics"
PARTS: Final = ("key", "value")
_NOT_IN_A_FILE_NAME: Final = re.compile(r"[^A-Za-z0-9._-]")
FOLDER: Final = Path(__file__).parent
STREAM_TYPE: Final = "text/event-stream"
REQUEST_BYTES_MAX: Final = 256 * 1024
"""A transactional id has up to 32,767 bytes, of which each may take three in a URL, and an open page names
its URL twice in a request: as the target, and in a header of htmx."""
HEARTBEAT_S: Final = 15
"""Seconds between comments in an idle stream, so that proxies do not close it."""


def create_app(
    feed: StateFeed,
    options: WebOptions | None = None,
    clock: Clock | None = None,
    lookups: Lookups | None = None,
    action_service: ActionService | None = None,
) -> Starlette:
    """Create the application. It starts and stops nothing: feed, lookups and action service are its caller's.

    Args:
        lookups: answers what single pages ask for; without it they show the snapshot alone.
        action_service: carries actions out; without one, nothing can be changed and no page offers it.
    """
    options = options or WebOptions()
    shell = _Shell(feed, clock or SystemClock(), lookups, allows_actions=action_service is not None)
    metrics = MetricsPage(feed, clock or SystemClock())
    routes = [
        Route(METRICS_PATH, metrics.show),
        Route("/download", partial(download_record, lookups)),
        Mount("/static", StaticFiles(directory=FOLDER / "static")),
        *(Route(page.path, partial(shell.show, page)) for page in PAGES),
    ]
    if action_service is not None:
        actions = ActionPages(action_service, feed, shell.templates)
        routes += actions.list_routes()
    reception = Reception(options, clock or SystemClock())
    login_pages = LoginPages(reception, shell.templates)
    routes += login_pages.list_routes()
    gate = Middleware(Gate, reception=reception, pages=login_pages)
    return Starlette(routes=routes, middleware=[gate], exception_handlers={404: shell.show_missing})


@cache
def _load_templates(*, allows_actions: bool) -> Environment:
    """Return the templates of the pages, each compiled once in a process."""
    templates = Environment(
        loader=FileSystemLoader(FOLDER / "templates"),
        autoescape=select_autoescape(default=True),
        undefined=StrictUndefined,
        finalize=_make_visible,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    templates.filters |= {
        "duration": format_duration,
        "count": format_count,
        "time": format_time,
        "machine_time": format_machine_time,
        "ago": format_ago,
        "plural": pluralize,
        "path": partial(quote, safe=""),
    }
    templates.globals |= {
        "menu": MENU,
        "no_state": NO_STATE,
        "version": __version__,
        "allows_actions": allows_actions,
        "find_action_url": find_action_url if allows_actions else _find_nothing,
        "find_rows_url": find_rows_url if allows_actions else _find_nothing,
        "is_resolvable": is_resolvable,
        "find_reset_url": find_reset_url if allows_actions else _find_nothing,
    }
    return templates


class _Shell:
    """Renders pages from the feed's newest state."""

    def __init__(
        self, feed: StateFeed, clock: Clock, lookups: Lookups | None, *, allows_actions: bool
    ) -> None:
        self._feed, self._clock, self._lookups = feed, clock, lookups
        self.templates = _load_templates(allows_actions=allows_actions)

    async def show(self, page: Page, request: Request) -> Response:
        """Answer with a page, or with its view model as JSON, or with the stream where it is asked for."""
        if page.is_stream and _wants_stream(request):
            return self._stream(request)
        page_request = PageRequest(
            state=self._feed.state,
            query=dict(request.query_params),
            key=request.path_params.get("key", ""),
            now_ms=self._clock.now_ms(),
        )
        if page.ask is not None and self._lookups is not None:
            page_request = await page.ask(self._lookups, page_request)
        model = page.build(page_request)
        # An open page takes no 404 from htmx in: it has to show that what it was about has gone.
        status = 200 if page.is_known(model) or "hx-request" in request.headers else 404
        if request.query_params.get("format") == "json":
            return Response(encode_json(model), status, media_type="application/json")
        template = self.templates.get_template(page.template)
        html = template.render(
            page=model,
            section=page.section,
            url=format_url(request),
            now_ms=page_request.now_ms,
            has_session=request.state.has_session,
        )
        return HTMLResponse(html, status)

    async def show_missing(self, request: Request, exc: Exception) -> Response:
        """Answer a path that no page has."""
        template = self.templates.get_template("missing.html")
        return HTMLResponse(template.render(section="", url="/", path=request.url.path), status_code=404)

    def _stream(self, request: Request) -> Response:
        """Stream events from the one after Last-Event-ID on, and tell of each new snapshot.

        A slow reader is told of the newest only. One whose page shows another snapshot than the present one
        is told of that at once: it would wait for the next otherwise.
        """
        last_id = request.headers.get("last-event-id", "")
        seen = request.query_params.get("seen")
        return EventSourceResponse(self._list_messages(last_id, seen), ping=HEARTBEAT_S)

    async def _list_messages(self, last_id: str, seen: str | None) -> AsyncIterator[ServerSentEvent]:
        state: ConsoleState | None = self._feed.state
        announced: tuple[StreamMessage, ...] = list_unseen(self._feed.state, seen)
        while state is not None:
            for message in (*stream_events(state, last_id), *announced):
                yield ServerSentEvent(data=message.data, event=message.name, id=message.id)
            last_id = str(state.events.last_number)
            state = await self._feed.wait_for_next(state)
            announced = () if state is None else (announce_snapshot(state),)


def _wants_stream(request: Request) -> bool:
    """Return whether the stream is asked for, and not the page of the same path.

    htmx accepts a stream in answer to whatever it asks for; only an open page's stream names a snapshot.
    """
    accepted = request.headers.get("accept", "")
    return STREAM_TYPE in accepted and ("seen" in request.query_params or "text/html" not in accepted)


def _find_nothing(text: str) -> str:
    """Return no URL: what `text` stands for is left to the command line."""
    return ""


def _make_visible(value: object) -> object:
    """Return what a template inserts; texts so that each of their characters is seen, markup as it is."""
    return show_on_page(value) if type(value) is str else value


async def download_record(lookups: Lookups | None, request: Request) -> Response:
    """Answer with the bytes of one record's key or value, as a file. They are never shown.

    `nosniff` is among the headers of every answer: no browser takes the bytes for a page or a script.
    """
    parameters = request.query_params
    topic, part = parameters.get("topic", ""), parameters.get("part", "value")
    try:
        query = parse_query(topic, parameters)
    except BadQuery as exc:
        return PlainTextResponse(str(exc), 400)
    if lookups is None or query is None or query.offset is None or part not in PARTS or not topic:
        return PlainTextResponse("topic, partition, offset, and part=key or part=value are needed.", 400)
    try:
        content = await lookups.download(query.partition, query.offset, is_key=part == "key")
    except (ClientError, RecordsError, TimeoutError) as exc:
        return PlainTextResponse(describe_failure(exc), 502)
    if content is None:
        return PlainTextResponse(f"{query.partition} has no {part} at offset {query.offset}.", 404)
    name = f"{_NOT_IN_A_FILE_NAME.sub('_', str(query.partition))}-{query.offset}-{part}.bin"
    headers = {"Content-Disposition": f"attachment; filename={quote(name)}"}
    return Response(content, media_type="application/octet-stream", headers=headers)


class MetricsPage:
    """Exports the newest state to Prometheus. Used on one event loop.

    A scrape reads nothing from the cluster. Its text is written in a thread, one scrape at a time, so that
    several scrapers, or one with a short interval, hold up no page.
    """

    def __init__(self, feed: StateFeed, clock: Clock) -> None:
        """Load prometheus_client. Raises: MissingLibrary."""
        self._feed, self._clock = feed, clock
        self._text = PrometheusText()
        self._lock = asyncio.Lock()

    async def show(self, request: Request) -> Response:
        """Answer with the metrics, as OpenMetrics if the scraper accepts that."""
        accept = request.headers.get("accept", "")
        async with self._lock:
            body, content_type = await asyncio.to_thread(
                self._format, accept, self._feed.state, self._clock.now_ms()
            )
        return Response(body, media_type=content_type)

    def _format(self, accept: str, state: ConsoleState, now_ms: int) -> tuple[bytes, str]:
        readings = [(family, list(samples)) for family, samples in read_metrics(state, now_ms, __version__)]
        return self._text.format_for(accept, readings)
