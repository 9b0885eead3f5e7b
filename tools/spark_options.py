"""Writes the tables of options in docs/spark.md from the code: `python -m tools.spark_options`."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from tallystick.spark.options.option_table import OPTIONS, ConnectorSide, Option, OptionSupport

GUIDE: Final = Path(__file__).parents[1] / "docs" / "spark.md"
_BEGIN: Final = "<!-- options: python -m tools.spark_options -->\n"
_END: Final = "<!-- end of options -->\n"


def make_block() -> str:
    """Return the tables, from mark to mark."""
    return _BEGIN + "\n".join(_format_tables()) + "\n" + _END


def find_block(text: str) -> str:
    """Return the part of `text` between the marks, marks included.

    Raises:
        ValueError: the marks are missing.
    """
    begin = text.index(_BEGIN)
    return text[begin : text.index(_END) + len(_END)]


def _format_tables() -> Iterator[str]:
    for side, title in ((ConnectorSide.SOURCE, "Reading"), (ConnectorSide.SINK, "Writing")):
        yield f"\n### {title}\n"
        yield "| option | values | default | meaning |"
        yield "|---|---|---|---|"
        for option in OPTIONS:
            if side in option.sides:
                cells = (
                    f"`{option.name}`",
                    _escape_cell(option.values),
                    _escape_cell(option.default),
                    _describe(option),
                )
                yield f"| {' | '.join(cells)} |"


def _describe(option: Option) -> str:
    query = ""
    if len(option.queries) == 1:
        otherwise = "; ignored otherwise" if option.ignored_elsewhere else ""
        query = f" {option.queries[0].value.capitalize()} only{otherwise}."
    match option.support:
        case OptionSupport.SUPPORTED:
            return _escape_cell(option.doc) + query
        case OptionSupport.NO_EFFECT:
            return f"*Accepted without effect.* {_escape_cell(option.doc)}"
        case OptionSupport.REFUSED:
            return f"*Refused*: {_escape_cell(option.doc)}."


def _escape_cell(text: str) -> str:
    return re.sub(r"\|", r"\\|", text)


def main() -> None:
    text = GUIDE.read_text()
    GUIDE.write_text(text.replace(find_block(text), make_block()))


if __name__ == "__main__":
    main()
