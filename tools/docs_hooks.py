"""Hooks for mkdocs: generated pages, plain text for links that leave docs/, the search's order, and diagrams.

Pages are read both in the repository and on the site. In the repository a link may lead to an example or a
test; the site has no such file, so it shows the link's text alone.

A reader of the site asks no other site: the theme would load mermaid from a CDN, unless it is there already.
"""

import re
from pathlib import Path
from typing import Final

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page
from mkdocs.utils import get_relative_url

_LINK: Final = re.compile(r"(?<!!)\[([^\]]+)\]\(((?:\.\./)+[^)#]*)(#[^)]*)?\)")
_FOLDERS: Final = {"formats": "File formats"}
_MERMAID: Final = "vendor/mermaid.tiny.js"
# Who searches wants to know what to do. Why it is built as it is comes after that.
_SEARCH_BOOST: Final = {
    **dict.fromkeys(("troubleshooting.md", "how-to", "operate", "runbooks"), 2),
    **dict.fromkeys(("evidence", "notes", "formats"), 0.4),
    **dict.fromkeys(("adr", "design"), 0.2),
}


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the changelog, and an index page to each folder that has none."""
    changelog = Path(config.docs_dir).with_name("CHANGELOG.md").read_text().replace("](docs/", "](")
    files.append(File.generated(config, "changelog.md", content=changelog))
    for folder, title in _FOLDERS.items():
        pages = sorted(Path(config.docs_dir, folder).glob("*.md"))
        rows = "\n".join(f"- [{_read_title(page)}]({page.name})" for page in pages)
        files.append(File.generated(config, f"{folder}/index.md", content=f"# {title}\n\n{rows}\n"))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Turn links that lead out of docs/ into their text, and rank the page in the search by its folder."""
    boost = _SEARCH_BOOST.get(page.file.src_uri.partition("/")[0])
    if boost is not None:
        page.meta.setdefault("search", {"boost": boost})
    here = Path(config.docs_dir, page.file.src_uri).parent

    def render_link(link: re.Match[str]) -> str:
        target = (here / link[2]).resolve()
        return link[0] if target.is_relative_to(Path(config.docs_dir).resolve()) else link[1]

    return _LINK.sub(render_link, markdown)


def on_page_content(html: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Bring what draws the diagrams to a page that has one, before the theme looks for it."""
    if 'class="mermaid"' not in html:
        return html
    return f'{html}\n<script src="{get_relative_url(_MERMAID, page.url)}"></script>'


def _read_title(page: Path) -> str:
    first = page.read_text().split("\n", 1)[0]
    return first.removeprefix("# ").strip()
