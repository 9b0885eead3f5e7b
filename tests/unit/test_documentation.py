"""What the documentation draws from the code is drawn from the code as it is."""

import re
from pathlib import Path

import pytest
from tools import state_diagrams

DOCS = Path(__file__).parents[2] / "docs"


def test_the_state_diagram_is_current() -> None:
    page = state_diagrams.PAGE.read_text()
    assert state_diagrams.fill(page) == page, "run: python -m tools.state_diagrams"


def test_no_diagram_of_a_sequence_has_a_semicolon() -> None:
    """A semicolon ends a statement of mermaid: the rest of a message would be an error, not a diagram."""
    diagrams = [
        (page.name, line)
        for page in sorted(DOCS.rglob("*.md"))
        for diagram in re.findall(r"```mermaid\nsequenceDiagram\n(.*?)```", page.read_text(), re.DOTALL)
        for line in diagram.splitlines()
    ]
    assert diagrams, "no page has a diagram"
    assert [(page, line) for page, line in diagrams if ";" in line] == []


@pytest.mark.parametrize(
    ("page", "source"),
    [
        ("celery", "celery_payments"),
        ("django", "django_view"),
        ("fastapi", "fastapi_payments"),
        ("faststream", "faststream_payments"),
        ("tracing", "traced_payments"),
    ],
)
def test_a_guide_includes_its_example(page: str, source: str) -> None:
    """A formatter of Python code in Markdown takes the mark for an expression, and would write it apart."""
    assert f'--8<-- "examples/{source}.py"' in (DOCS / "how-to" / f"{page}.md").read_text()
