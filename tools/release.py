"""Check that a tag, the package and the changelog name the same version, and print that version's notes.

    python -m tools.release v0.2.0 [NOTES]

Run it before pushing a tag; the release workflow runs it again. It needs no installed package.
"""

import re
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]


def find_problems(tag: str, version: str, changelog: str, fragments: list[str]) -> list[str]:
    """Return the reasons that prevent releasing `tag`; empty if there are none."""
    return [
        *([f"the tag is {tag}, the package v{version}"] if tag != f"v{version}" else []),
        *([] if find_notes(version, changelog) else [f"CHANGELOG.md has no section [{version}]"]),
        *([f"these are in no section yet: {', '.join(fragments)}"] if fragments else []),
    ]


def find_notes(version: str, changelog: str) -> str:
    """Return the changelog's section of a version, without its title."""
    sections = re.split(r"^## ", changelog, flags=re.MULTILINE)[1:]
    texts = [section.partition("\n")[2].strip() for section in sections if section.startswith(f"[{version}]")]
    return texts[0] if texts else ""


def main() -> int:
    tag, *files = sys.argv[1:]
    (version,) = re.findall(
        r'^__version__ = "(.+)"$', (ROOT / "src/tallystick/__init__.py").read_text(), re.MULTILINE
    )
    changelog = (ROOT / "CHANGELOG.md").read_text()
    fragments = sorted(path.name for path in (ROOT / "changes").glob("*.md") if path.name != "README.md")
    if reasons := find_problems(tag, version, changelog, fragments):
        print(f"{tag} cannot be released: " + "; ".join(reasons))
        return 1
    for file in files:
        Path(file).write_text(find_notes(version, changelog) + "\n")
    print(f"{tag} can be released")
    return 0


if __name__ == "__main__":
    sys.exit(main())
