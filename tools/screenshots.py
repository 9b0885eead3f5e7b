"""Write the console's pictures for the documentation: `make screenshots`.

They show the pages as a browser does, over the same snapshot that the browser's tests use, so that nothing in
them depends on the day or on a cluster; fonts are the machine's. Look at each before it is committed.
"""

import argparse
import base64
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from tests.support.browser import open_tab, run_browser
from tests.support.console_answers import serve_shop
from tests.support.console_pages import PAGE_CASES, PageCase
from tests.support.console_site import Site

from tallystick.kernel.value import Value

if TYPE_CHECKING:
    from playwright.sync_api import Browser

IMAGES: Final = Path(__file__).parents[1] / "docs" / "images"
BYTES_MAX: Final = 150_000
QUALITY: Final = 82
"""Of WebP: text is sharp, and a picture a quarter of a PNG's size."""


class Picture(Value, kw_only=True):
    """One picture: a page in a window."""

    name: str
    case: PageCase
    window: dict[str, Any]
    format: str = "webp"

    @property
    def file(self) -> str:
        return f"console-{self.name}.{self.format}"


def list_pictures() -> Iterator[Picture]:
    """List every page on a laptop in the light, and some in the dark and on a phone."""
    cases = {case.name: case for case in PAGE_CASES}
    laptop = {"viewport": {"width": 1200, "height": 200}, "device_scale_factor": 2}
    phone = {"viewport": {"width": 390, "height": 844}, "device_scale_factor": 2}
    for name, case in cases.items():
        yield Picture(name=name, case=case, window=laptop)
    yield Picture(
        name="transaction-dark", case=cases["transaction"], window={**laptop, "color_scheme": "dark"}
    )
    yield Picture(name="transactions-phone", case=cases["transactions-filtered"], window=phone)


def list_every() -> Iterator[Picture]:
    """List every page at 420 and at 1,400 pixels, in the light and in the dark: to look at, not to keep."""
    for case in PAGE_CASES:
        for width in (420, 1400):
            for scheme in ("light", "dark"):
                window = {"viewport": {"width": width, "height": 200}, "color_scheme": scheme}
                name = f"{case.name}-{width}-{scheme}"
                yield Picture(name=name, case=case, window=window, format="png")


def take(browser: "Browser", site: Site, picture: Picture) -> bytes:
    """Return a picture of the whole page."""
    with open_tab(browser, site.url, **picture.window) as tab:
        page = picture.case.open(tab)
        size: dict[str, int] = page.evaluate(
            "({width: innerWidth, height: Math.ceil(document.body.getBoundingClientRect().height)})"
        )
        answer: dict[str, str] = tab.context.new_cdp_session(page).send(
            "Page.captureScreenshot",
            {
                "format": picture.format,
                **({"quality": QUALITY} if picture.format == "webp" else {}),
                "captureBeyondViewport": True,
                "clip": {"x": 0, "y": 0, "scale": 1, **size},
            },
        )
        return base64.b64decode(answer["data"])


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", help="only these; default: those that docs/ shows")
    parser.add_argument("--folder", type=Path, default=IMAGES)
    parser.add_argument("--all", action="store_true", help="those that docs/ does not show, too")
    parser.add_argument("--every", action="store_true", help="each page, small and wide, light and dark")
    options = parser.parse_args()
    options.folder.mkdir(parents=True, exist_ok=True)
    with run_browser() as browser, serve_shop() as site:
        for picture in list_every() if options.every else list_pictures():
            target = options.folder / picture.file
            is_asked = options.all or options.every or target.exists()
            is_due = picture.name in options.names if options.names else is_asked
            if is_due:
                target.write_bytes(take(browser, site, picture))
                print(f"{target.stat().st_size:9,} {target}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
