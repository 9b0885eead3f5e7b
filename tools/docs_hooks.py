"""Hooks for mkdocs: an index of the file formats, the changelog, and plain text for links that leave docs/.

Pages are read both in the repository and on the site. In the repository a link may lead to an example or a
test; the site has no such file, so it shows the link's text alone.
"""

import re
from pathlib import Path
from typing import Final

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

_LINK: Final = re.compile(r"(?<!!)\[([^\]]+)\]\(((?:\.\./)+[^)#]*)(#[^)]*)?\)")
_FOLDERS: Final = {"formats": "File formats"}


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
    """Turn links that lead out of docs/ into their text."""
    here = Path(config.docs_dir, page.file.src_uri).parent

    def render_link(link: re.Match[str]) -> str:
        target = (here / link[2]).resolve()
        return link[0] if target.is_relative_to(Path(config.docs_dir).resolve()) else link[1]

    return _LINK.sub(render_link, markdown)


def _read_title(page: Path) -> str:
    first = page.read_text().split("\n", 1)[0]
    return first.removeprefix("# ").strip()
