"""Widgets that show lines: the only way by which text of others reaches the terminal.

They take `Line`s, whose text is `Visible`, and make strips of cells of them. No markup is read and no
renderable of Textual or Rich is made of a text, so brackets in an id are brackets.
"""

from collections.abc import Mapping, Sequence
from typing import Final

from rich.segment import Segment
from rich.style import Style
from textual.message import Message
from textual.strip import Strip
from textual.widget import Widget

from tallystick.console.terminal import cursor as cursors
from tallystick.console.terminal.cursor import View
from tallystick.console.terminal.lines import MARGIN, Anchor, Line, PageLines, Role

# The sixteen colours of the terminal itself, so that they suit its background, light or dark.
STYLES: Final[Mapping[Role, Style]] = {
    Role.NORMAL: Style(),
    Role.QUIET: Style(dim=True),
    Role.STRONG: Style(bold=True),
    Role.HEADING: Style(bold=True, underline=True),
    Role.COMMAND: Style(color="blue"),
    Role.GOOD: Style(color="green"),
    Role.DOUBTFUL: Style(color="magenta", bold=True),
    Role.BAD: Style(color="red", bold=True),
}
_UNDER_CURSOR: Final = Style(reverse=True)


def make_strip(line: Line, width: int, *, mark: str = "", is_cursor: bool = False) -> Strip:
    """Return a line as exactly `width` cells."""
    base = _UNDER_CURSOR if is_cursor else Style()
    segments = [Segment(mark, base)] if mark else []
    segments += [Segment(span.text, base + STYLES[span.role]) for span in line.spans]
    return Strip(segments).adjust_cell_length(width, base)


class LineView(Widget):
    """A few lines that are replaced as a whole."""

    def __init__(self, name: str) -> None:
        """Show nothing yet. The name is that of the style sheet."""
        super().__init__(id=name)
        self._lines: Sequence[Line] = ()

    def show_lines(self, lines: Sequence[Line]) -> None:
        """Show other lines."""
        if lines != self._lines:
            self._lines = lines
            self.refresh()

    def render_line(self, y: int) -> Strip:
        line = self._lines[y] if y < len(self._lines) else Line()
        return make_strip(line, self.size.width)


class PageView(Widget, can_focus=True):
    """The lines of a page with the cursor. The cursor is marked by `>` beside its colours."""

    def __init__(self, name: str) -> None:
        """Show nothing yet. The name is that of the style sheet."""
        super().__init__(id=name)
        self.lines = PageLines((), 1)
        self.view = View()
        self._height = 0

    class SizeChanged(Message):
        """The page has another size: its lines have to be laid out anew."""

    def on_resize(self) -> None:
        self.post_message(self.SizeChanged())

    @property
    def anchor_at_cursor(self) -> Anchor | None:
        """What the cursor stands on."""
        return None if self.view.cursor is None else self.lines.get_line(self.view.cursor).anchor

    def show_page(self, lines: PageLines, view: View) -> None:
        """Show lines from a given view on."""
        self.lines, self.view = lines, view
        self._height = self.size.height
        self.refresh()

    def follow_page(self, lines: PageLines) -> None:
        """Show the next state of the same page, with the cursor where it stands."""
        height = self.size.height
        view = cursors.settle(self.lines, lines, self.view, height, height_before=self._height)
        self.show_page(lines, view)

    def move(self, view: View) -> None:
        """Show the same page from another line on."""
        if view != self.view:
            self.view = view
            self.refresh()

    def describe_position(self) -> str:
        """Return which lines are shown, where that is not all of them."""
        if self.lines.count <= self.size.height:
            return ""
        last = min(self.lines.count, self.view.top + self.size.height)
        return f"{self.view.top + 1:,}-{last:,} of {self.lines.count:,}"

    def render_line(self, y: int) -> Strip:
        number = self.view.top + y
        is_cursor = number == self.view.cursor
        mark = ("> " if is_cursor else "  ")[:MARGIN]
        return make_strip(self.lines.get_line(number), self.size.width, mark=mark, is_cursor=is_cursor)
