"""Moves of the cursor over a page; it keeps its line when the page changes. Pure.

The cursor stands on lines that have an anchor. Between two of them may be more text than the screen holds:
then the page moves line by line, and the cursor follows as soon as the next anchor is to be seen.
"""

from tallystick.console.terminal.lines import PageLines
from tallystick.kernel.value import Value, replace


class View(Value, kw_only=True):
    """The part of a page on the screen: lines from `top` on. `cursor` is None where no line has an anchor."""

    top: int = 0
    cursor: int | None = None


def enter(lines: PageLines, height: int, *, top: int = 0, anchor: str = "") -> View:
    """Return the view of a page that is shown newly, or again with the cursor where it stood."""
    found_at = lines.find(anchor) if anchor else None
    cursor = found_at if found_at is not None else lines.find_next(0)
    view = View(top=_clamp_top(lines, top, height), cursor=cursor)
    return _follow(lines, view, height) if found_at is not None else view


def settle(
    before: PageLines, after: PageLines, view: View, height: int, *, height_before: int | None = None
) -> View:
    """Return the view of a page that has changed: what the cursor stands on stays where it is on the screen.

    If it is gone the cursor stays at its line. A page that is shown from its beginning on goes on to be: what
    is worst comes first there, and would be hidden otherwise.

    Args:
        height_before: lines of the screen until now, if they are others.
    """
    if view.cursor is None:
        return enter(after, height, top=view.top)
    anchor = before.get_line(view.cursor).anchor
    cursor = None if anchor is None else after.find(anchor.name)
    if cursor is None:
        cursor = after.find_last(view.cursor)
    if cursor is None:
        cursor = after.find_next(view.cursor)
    if cursor is None or not _is_seen(view, height if height_before is None else height_before):
        return View(top=_clamp_top(after, view.top, height), cursor=cursor)
    moved = cursor - view.cursor if view.top else 0
    top = _clamp_top(after, view.top + moved, height)
    return _follow(after, View(top=top, cursor=cursor), height)


def move_down(lines: PageLines, view: View, height: int) -> View:
    """Return the view one step further down."""
    start = view.top if view.cursor is None or view.cursor < view.top else view.cursor + 1
    return _move(lines, view, height, lines.find_next(start), 1)


def move_up(lines: PageLines, view: View, height: int) -> View:
    """Return the view one step further up."""
    bottom = view.top + height - 1
    start = bottom if view.cursor is None or view.cursor > bottom else view.cursor - 1
    return _move(lines, view, height, lines.find_last(start), -1)


def move_page(lines: PageLines, view: View, height: int, pages: int) -> View:
    """Return the view some screens further down, or up."""
    step = pages * max(1, height - 1)
    top = _clamp_top(lines, view.top + step, height)
    if top == view.top:
        return move_to_end(lines, height) if pages > 0 else move_to_start(lines)
    wanted = top if view.cursor is None else min(max(view.cursor + step, top), top + height - 1)
    cursor = lines.find_next(wanted)
    if cursor is None or cursor >= top + height:
        cursor = lines.find_last(wanted)
    return View(top=top, cursor=view.cursor if cursor is None else cursor)


def move_to_start(lines: PageLines) -> View:
    """Return the view at the beginning."""
    return View(top=0, cursor=lines.find_next(0))


def move_to_end(lines: PageLines, height: int) -> View:
    """Return the view at the end."""
    return View(top=_clamp_top(lines, lines.count, height), cursor=lines.find_last(max(0, lines.count - 1)))


def _move(lines: PageLines, view: View, height: int, cursor: int | None, step: int) -> View:
    """Move to an anchor that is on the screen or next to it; towards one that is not by a line."""
    if cursor is not None and view.top - 1 <= cursor <= view.top + height:
        return _follow(lines, replace(view, cursor=cursor), height)
    return replace(view, top=_clamp_top(lines, view.top + step, height))


def _follow(lines: PageLines, view: View, height: int) -> View:
    """Return the view with the cursor on the screen."""
    if view.cursor is None:
        return view
    top = min(view.top, view.cursor)
    top = max(top, view.cursor - max(1, height) + 1)
    return replace(view, top=_clamp_top(lines, top, height))


def _is_seen(view: View, height: int) -> bool:
    return view.cursor is not None and view.top <= view.cursor < view.top + height


def _clamp_top(lines: PageLines, top: int, height: int) -> int:
    return max(0, min(top, lines.count - height))
