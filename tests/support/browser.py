"""A headless Chromium, driven by playwright; tests that need it are skipped where either is missing.

Debian: `apt-get install --no-install-recommends chromium-headless-shell`. Any Chromium or Chrome on the PATH
will do; TALLYSTICK_BROWSER names another one.
"""

import os
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pytest

if TYPE_CHECKING:
    from playwright.sync_api import Browser, BrowserContext, ConsoleMessage, Page

PROGRAMS: Final = ("chromium-headless-shell", "chromium", "chromium-browser", "google-chrome")
AXE: Final = Path(__file__).parent / "axe" / "axe.min.js"
LAPTOP: Final = {"width": 1280, "height": 800}
PHONE: Final = {"width": 390, "height": 844}
WIDE: Final = {"width": 1920, "height": 1080}
WCAG_22_AA: Final = ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa", "best-practice"]


def find_browser() -> str | None:
    """Return the program of a browser; None if there is none on this machine."""
    return next(filter(None, map(shutil.which, list_programs())), None)


def list_programs() -> tuple[str, ...]:
    """Return the names to look for."""
    chosen = os.environ.get("TALLYSTICK_BROWSER")
    return (chosen,) if chosen else PROGRAMS


_CUT_OFF: Final = """() => [...document.querySelectorAll("th, td, .badge, button, #live")]
  .filter((node) => node.offsetParent && node.scrollWidth > node.clientWidth + 1)
  .map((node) => node.textContent.trim().slice(0, 40))"""
"""What is wider than its place, and stands in that of its neighbour."""


_SIDEWAYS: Final = """() => [...document.querySelectorAll("body *")]
  .filter((node) => node.clientWidth && node.scrollWidth > node.clientWidth + 1)
  .filter((node) => ["auto", "scroll"].includes(getComputedStyle(node).overflowX))
  .map((node) => node.id || node.className)"""
"""What has to be scrolled sideways."""

_BROKEN_WORDS: Final = """() => {
  const broken = [], range = document.createRange();
  const texts = document.createTreeWalker(document.querySelector("#page"), NodeFilter.SHOW_TEXT);
  while (texts.nextNode()) {
    const node = texts.currentNode;
    if (node.parentElement.closest("code, pre, svg, select, .id")) continue;
    for (const word of node.data.matchAll(/(?<!\\w)[A-Z]?[a-z]{1,15}(?!\\w)/g)) {
      range.setStart(node, word.index);
      range.setEnd(node, word.index + word[0].length);
      const lines = new Set([...range.getClientRects()].map((box) => Math.round(box.top)));
      if (lines.size > 1) broken.push(word[0]);
    }
  }
  return broken;
}"""
"""Words that begin on one line and end on another; ids may be broken anywhere."""


@contextmanager
def run_browser() -> Iterator["Browser"]:
    """Run a browser; skip the test where there is none.

    Playwright's loop runs in the thread of the caller, where `asyncio.run` is refused meanwhile: a fixture
    with it must not outlive the tests of its file.
    """
    program = find_browser()
    if program is None:
        names = ", ".join(list_programs())
        pytest.skip(f"no browser on the PATH ({names}); CONTRIBUTING.md, Browser, says how to get one")
    sync_api = pytest.importorskip(
        "playwright.sync_api", reason="playwright is not installed (make sets it up with the extra dev)"
    )
    with sync_api.sync_playwright() as driver:
        # The pages are our own, and the sandbox is not to be had as root or in most containers.
        browser = driver.chromium.launch(executable_path=program, args=["--no-sandbox"])
        try:
            yield browser
        finally:
            browser.close()


class Tab:
    """A page of the console in a window of its own.

    problems  what the browser complained of: errors of scripts, refusals of the content policy, failed loads
    """

    def __init__(self, context: "BrowserContext", url: str) -> None:
        self.url = url
        self.context = context
        self.page: Page = context.new_page()
        self.problems: list[str] = []
        self.page.on("console", self._note)
        self.page.on("pageerror", lambda error: self.problems.append(f"script: {error}"))

    def _note(self, message: "ConsoleMessage") -> None:
        if message.type in ("error", "warning"):
            self.problems.append(f"{message.type}: {message.text}")

    def expect_failed_loads(self) -> None:
        """Forget what the browser said of answers that did not come; nothing else may have been said."""
        others = [each for each in self.problems if each.startswith("script") or "Content Security" in each]
        assert others == []
        self.problems.clear()

    def open(self, path: str) -> "Page":
        """Open a path of the console."""
        self.page.goto(self.url + path)
        return self.page

    def follow(self, path: str) -> "Page":
        """Open a path, and return when the page follows the console's stream."""
        self.open(path)
        self.page.wait_for_selector("#live[data-state=live]")
        return self.page


@contextmanager
def open_tab(browser: "Browser", url: str, **options: Any) -> Iterator[Tab]:
    """Open a window. `options` are those of playwright's `new_context`."""
    context = browser.new_context(**{"viewport": LAPTOP, **options})
    context.set_default_timeout(60_000)
    try:
        yield Tab(context, url)
    finally:
        context.close()


@cache
def _read_axe() -> str:
    return AXE.read_text()


def find_axe_violations(page: "Page") -> list[str]:
    """Return what axe-core has to say against a page by WCAG 2.2 AA and its best practices."""
    # Through the debugger, as the page's policy allows no script but its own.
    page.evaluate(_read_axe())
    result: Mapping[str, Any] = page.evaluate(
        "tags => axe.run(document, {runOnly: {type: 'tag', values: tags}, resultTypes: ['violations']})",
        WCAG_22_AA,
    )
    return [
        f"{each['id']}: {each['help']}: {node['html'][:200]} {node['failureSummary'][:300]}"
        for each in result["violations"]
        for node in each["nodes"]
    ]


def measure_overflow(page: "Page") -> int:
    """Return by how many pixels the page is wider than its window."""
    width: int = page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth")
    return width


def find_cut_off(page: "Page") -> list[str]:
    """Return the beginning of each text that is wider than its place."""
    found: list[str] = page.evaluate(_CUT_OFF)
    return found


def find_sideways(page: "Page") -> list[str]:
    """Return the ids or classes of what has to be scrolled sideways to be seen."""
    found: list[str] = page.evaluate(_SIDEWAYS)
    return found


def find_broken_words(page: "Page") -> list[str]:
    """Return the words of up to 16 letters that are broken into two lines."""
    found: list[str] = page.evaluate(_BROKEN_WORDS)
    return found
