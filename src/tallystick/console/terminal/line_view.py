"""Widgets that show lines: the only way by which text of others reaches the terminal.

They take `Line`s, whose text is `EscapedText`, and make strips of cells of them. No markup is read and no
renderable of Textual or Rich is made of a text, so brackets in an id are brackets.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import ClassVar, Final

from rich.segment import Segment
from rich.style import Style
from textual.binding import Binding, BindingType
from textual.message import Message
from textual.strip import Strip
from textual.widget import Widget
from textual.widgets import Input

from tallystick.console.model.escaped import show
from tallystick.console.terminal import cursor as cursors
from tallystick.console.terminal.cursor import View
from tallystick.console.terminal.lines import MARGIN, Anchor, Line, PageLines, TextRole
from tallystick.console.terminal.prompts import LENGTH_MAX, Prompt

# The sixteen colours of the terminal itself, so that they suit its background, light or dark.
STYLES: Final[Mapping[TextRole, Style]] = {
    TextRole.NORMAL: Style(),
    TextRole.QUIET: Style(dim=True),
    TextRole.STRONG: Style(bold=True),
    TextRole.HEADING: Style(bold=True, underline=True),
    TextRole.COMMAND: Style(color="blue"),
    TextRole.GOOD: Style(color="green"),
    TextRole.DOUBTFUL: Style(color="magenta", bold=True),
    TextRole.BAD: Style(color="red", bold=True),
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
    """The lines of a page with the cursor. The cursor is marked by `>` as well as by colours."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("down,j", "move('down')", show=False),
        Binding("up,k", "move('up')", show=False),
        Binding("pagedown,space", "move('page_down')", show=False),
        Binding("pageup", "move('page_up')", show=False),
        Binding("home,g", "move('start')", show=False),
        Binding("end,G", "move('end')", show=False),
    ]

    def __init__(self, name: str) -> None:
        """Show nothing yet. The name is that of the style sheet."""
        super().__init__(id=name)
        self.lines = PageLines((), 1)
        self.view = View()
        self._height = 0

    class SizeChanged(Message):
        """The page has another size: its lines have to be laid out anew."""

    class Moved(Message):
        """The cursor may stand on another line."""

    def on_resize(self) -> None:
        self.post_message(self.SizeChanged())

    @property
    def anchor_at_cursor(self) -> Anchor | None:
        """The anchor under the cursor."""
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

    def action_move(self, step: str) -> None:
        """Move the cursor, or the page under it."""
        lines, view, height = self.lines, self.view, self.size.height
        moves: dict[str, Callable[[], View]] = {
            "down": partial(cursors.move_down, lines, view, height),
            "up": partial(cursors.move_up, lines, view, height),
            "page_down": partial(cursors.move_page, lines, view, height, 1),
            "page_up": partial(cursors.move_page, lines, view, height, -1),
            "start": partial(cursors.move_to_start, lines),
            "end": partial(cursors.move_to_end, lines, height),
        }
        self.view = moves[step]()
        self.refresh()
        self.post_message(self.Moved())

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


class InputLine(Input):
    """Reads one line. Pasted text is made visible first, so that the line holds what its user sees."""

    DEFAULT_CSS = """
    InputLine { height: 1; border: none; padding: 0; display: none; }
    InputLine:focus { border: none; }
    InputLine > .input--cursor { background: ansi_default; color: ansi_default; text-style: reverse; }
    """

    def __init__(self) -> None:
        """Ask for nothing yet."""
        super().__init__(id="prompt", select_on_focus=False)
        self.prompt: Prompt | None = None

    def replace(self, text: str, start: int, end: int) -> None:
        """Replace a part of the value."""
        super().replace(show(text, max_length=LENGTH_MAX), start, end)

    def ask(self, prompt: Prompt) -> None:
        """Ask for something; the answer comes as `Submitted`."""
        self.prompt = prompt
        self.max_length = prompt.length_max
        self.value = show(prompt.value, max_length=LENGTH_MAX)
        self.display = True
        self.focus()
        self.cursor_position = len(self.value)

    def close(self) -> Prompt | None:
        """Ask no more; return what was asked."""
        prompt, self.prompt = self.prompt, None
        self.display = False
        self.value = ""
        return prompt
