"""Writes the options of docs/spark/options.md from the code: `python -m tools.spark_options`."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from tallystick.spark.options.option_table import OPTIONS, ConnectorSide, Option, OptionSupport

GUIDE: Final = Path(__file__).parents[1] / "docs" / "spark" / "options.md"
_BEGIN: Final = "<!-- options: python -m tools.spark_options -->\n"
_END: Final = "<!-- end of options -->\n"


def make_block() -> str:
    """Return the table and the lists, from mark to mark."""
    return _BEGIN + "\n".join(_format_options()) + "\n" + _END


def find_block(text: str) -> str:
    """Return the part of `text` between the marks, marks included.

    Raises:
        ValueError: the marks are missing.
    """
    begin = text.index(_BEGIN)
    return text[begin : text.index(_END) + len(_END)]


def _format_options() -> Iterator[str]:
    yield "| option | for | values | default | meaning |"
    yield "|---|---|---|---|---|"
    names = {option.name for option in OPTIONS}
    for option in OPTIONS:
        # The options of keys are those of values once more.
        twin, is_shown = _swap_field(option.name), option.support is OptionSupport.SUPPORTED
        if is_shown and not (option.name.startswith("key.") and twin in names):
            name = f"`{option.name}`, `{twin}`" if twin in names - {option.name} else f"`{option.name}`"
            cells = (name, _name_sides(option), option.values, option.default, _describe(option))
            yield f"| {' | '.join(_escape_cell(cell) for cell in cells)} |"
    yield "\n## Accepted without effect, and refused\n"
    yield "| option | treatment |"
    yield "|---|---|"
    for option in OPTIONS:
        if option.support is OptionSupport.NO_EFFECT:
            yield f"| `{option.name}` | without effect. {_escape_cell(option.doc)} |"
        elif option.support is OptionSupport.REFUSED:
            yield f"| `{option.name}` | refused: {_escape_cell(option.doc)}. |"


def _swap_field(name: str) -> str:
    """Return the name of the same option for the record's other field."""
    field, _, rest = name.partition(".")
    other = {"key": "value", "value": "key"}.get(field)
    return f"{other}.{rest}" if other else name


def _name_sides(option: Option) -> str:
    names = {ConnectorSide.SOURCE: "reading", ConnectorSide.SINK: "writing"}
    return "both" if len(option.sides) == len(names) else names[option.sides[0]]


def _describe(option: Option) -> str:
    if len(option.queries) > 1:
        return option.doc
    otherwise = "; ignored otherwise" if option.ignored_elsewhere else ""
    return f"{option.doc} {option.queries[0].value.capitalize()} only{otherwise}."


def _escape_cell(text: str) -> str:
    return re.sub(r"\|", r"\\|", text)


def main() -> None:
    text = GUIDE.read_text()
    GUIDE.write_text(text.replace(find_block(text), make_block()))


if __name__ == "__main__":
    main()
