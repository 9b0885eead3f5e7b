"""The marks in the documentation that include a file are marks, and the files exist."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
INCLUDE = re.compile(r'--8<-- "(?P<path>[\w./-]+)"')


def test_every_include_names_a_file() -> None:
    """A formatter that takes one for Python code would leave two operators and a string on the page."""
    lines = [
        (page.name, line)
        for page in sorted((ROOT / "docs").rglob("*.md"))
        for line in page.read_text().splitlines()
        if line.lstrip().startswith("--8")
    ]
    assert len(lines) >= 6
    for page, line in lines:
        include = INCLUDE.fullmatch(line.strip())
        assert include is not None, f"{page}: {line}"
        assert (ROOT / include["path"]).is_file(), f"{page}: {line}"
