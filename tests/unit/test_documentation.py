"""What the documentation draws from the code is drawn from the code as it is."""

from tools import state_diagrams


def test_the_state_diagram_is_current() -> None:
    page = state_diagrams.PAGE.read_text()
    assert state_diagrams.fill(page) == page, "run: python -m tools.state_diagrams"
