"""Measure how fast the console's pages open in a browser: `python -m tools.bench.console.console_pages`.

The snapshot has 10,000 open transactions and 1,000 groups. Times are those of the browser (Navigation Timing,
Paint Timing) from the request on: until the answer began, until its text was there, until something was
painted, and until everything was loaded. Browser and server share the machine, so what else runs there
counts; two columns are processor time, for which it does not: that of the answer in the server, and that of
the page's thread in the browser.
"""

import argparse
import asyncio
import statistics
import threading
import time
from typing import TYPE_CHECKING, Final

import httpx
from starlette.types import ASGIApp
from tests.support.browser import open_tab, run_browser
from tests.support.console_site import Site, serve
from tests.support.console_worlds import make_crowd

from tallystick.console.web.app import create_app
from tallystick.console.web.pages import PAGES, Page
from tallystick.kernel.value import Value

if TYPE_CHECKING:
    from playwright.sync_api import Browser

PATHS: Final = {
    "/": "/",
    "/events": "/events",
    "/transactions": "/transactions",
    "/transactions/{key:name}": "/transactions/service-1-1",
    "/stores": "/stores",
    "/pipelines": "/pipelines",
    "/topics": "/topics",
    "/topics/{key:name}": "/topics/topic-1",
    "/groups": "/groups",
    "/groups/{key:name}": "/groups/group-1",
}
TIMES: Final = """() => {
  const [all] = performance.getEntriesByType("navigation");
  const [paint] = performance.getEntriesByName("first-contentful-paint");
  const times = [all.responseStart, all.responseEnd, paint.startTime, all.loadEventEnd];
  return times.map((at) => at - all.requestStart);
}"""


class Opening(Value, kw_only=True):
    """Medians for one page, in milliseconds; `size` in bytes of its HTML."""

    path: str
    server_ms: float
    browser_ms: float
    first_ms: float
    text_ms: float
    paint_ms: float
    load_ms: float
    size: int


def measure(browser: "Browser", site: Site, page: Page, repeats: int) -> Opening:
    """Open a page several times, each in a new window."""
    path = PATHS[page.path]
    times, busy_ms, size = [], [], 0
    for _ in range(repeats):
        with open_tab(browser, site.url) as tab:
            debugger = tab.context.new_cdp_session(tab.page)
            debugger.send("Performance.enable", {"timeDomain": "threadTicks"})
            response = tab.page.goto(site.url + path)
            tab.page.wait_for_function("() => performance.getEntriesByType('paint').length > 0")
            times.append(tab.page.evaluate(TIMES))
            metrics = {
                each["name"]: each["value"] for each in debugger.send("Performance.getMetrics")["metrics"]
            }
            busy_ms.append(metrics["TaskDuration"] * 1000)
            size = 0 if response is None else len(response.body())
    first, text, paint, load = (statistics.median(column) for column in zip(*times, strict=True))
    return Opening(
        path=path,
        server_ms=_measure_server(site, path, repeats),
        browser_ms=statistics.median(busy_ms),
        first_ms=first,
        text_ms=text,
        paint_ms=paint,
        load_ms=load,
        size=size,
    )


def _measure_server(site: Site, path: str, repeats: int) -> float:
    """Return the processor time of one answer, from the request to its last byte, without a socket."""
    app = create_app(site.feed, clock=site.clock)
    times_s: list[float] = []

    def ask() -> None:
        # In a thread of its own: playwright's loop runs in this one.
        for _ in range(repeats):
            began = time.thread_time()
            asyncio.run(_ask(app, path))
            times_s.append(time.thread_time() - began)

    thread = threading.Thread(target=ask)
    thread.start()
    thread.join()
    return statistics.median(times_s) * 1000


async def _ask(app: ASGIApp, path: str) -> None:
    transport = httpx.ASGITransport(app=app)
    async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
        (await client.get(path)).raise_for_status()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--transactions", type=int, default=10_000)
    parser.add_argument("--groups", type=int, default=1_000)
    parser.add_argument("--repeats", type=int, default=7)
    options = parser.parse_args()
    print(
        f"{'page':28}{'server':>9}{'browser':>9}{'answer':>9}{'text':>9}{'painted':>9}{'loaded':>9}{'bytes':>10}"
    )
    with run_browser() as browser, serve(make_crowd(options.transactions, options.groups)) as site:
        for page in (page for page in PAGES if page.path in PATHS):
            opening = measure(browser, site, page, options.repeats)
            columns = (
                opening.server_ms,
                opening.browser_ms,
                opening.first_ms,
                opening.text_ms,
                opening.paint_ms,
                opening.load_ms,
            )
            print(f"{opening.path:28}" + "".join(f"{ms:6.0f} ms" for ms in columns) + f"{opening.size:10,}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
