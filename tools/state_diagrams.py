"""Draws the state diagram in docs/ from the coordinator's transition table: `-m tools.state_diagrams`."""

from collections.abc import Iterator
from pathlib import Path
from typing import Final

from tallystick.broker.txn.machine.model import PREVIOUS_STATES, TxnState

PAGE: Final = Path(__file__).parents[1] / "docs" / "concepts" / "in-doubt.md"
_BEGIN: Final = "<!-- diagram: python -m tools.state_diagrams -->\n"
_END: Final = "<!-- end of diagram -->\n"


def draw_coordinator() -> Iterator[str]:
    """Yield an arrow for each transition that the transaction coordinator accepts."""
    yield "stateDiagram-v2"
    in_the_log = [state for state in TxnState if PREVIOUS_STATES.get(state)]
    yield f"    [*] --> {TxnState.EMPTY.label}"
    for after in in_the_log:
        for before in sorted(PREVIOUS_STATES[after]):
            if before is not after:
                yield f"    {before.label} --> {after.label}"


def fill(text: str) -> str:
    """Return the page with the diagram between its marks drawn anew."""
    head, rest = text.split(_BEGIN)
    _, tail = rest.split(_END)
    return head + _BEGIN + "```mermaid\n" + "\n".join(draw_coordinator()) + "\n```\n" + _END + tail


if __name__ == "__main__":
    PAGE.write_text(fill(PAGE.read_text()))
