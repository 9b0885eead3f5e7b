"""The cursor: it reaches everything, and what it stands on keeps its place."""

from hypothesis import given
from hypothesis import strategies as st

from tallystick.console.terminal.cursor import (
    View,
    enter,
    move_down,
    move_page,
    move_to_end,
    move_to_start,
    move_up,
    settle,
)
from tallystick.console.terminal.lines import Anchor, Block, Column, PageLines, Paragraph, Row, Table, say

COLUMNS = (Column(head="Name", width=8),)


def table(*names: str) -> Table:
    return Table(
        columns=COLUMNS,
        items=names,
        make=lambda name: Row((say(name),), Anchor(name=name)),
        name=lambda name: name,
        empty="none",
    )


def text(count: int) -> list[Block]:
    return [Paragraph((say(f"text {number}"),)) for number in range(count)]


def page(*blocks: Block) -> PageLines:
    return PageLines(blocks, 40)


def name_at(lines: PageLines, view: View) -> str:
    anchor = None if view.cursor is None else lines.get_line(view.cursor).anchor
    return "" if anchor is None else anchor.name


NAMES = st.lists(st.sampled_from([f"id-{number}" for number in range(30)]), unique=True, max_size=30)


@given(NAMES, NAMES, st.integers(1, 12), st.integers(0, 40))
def test_a_row_stays_under_the_cursor_and_on_its_line_of_the_screen(
    before: list[str], after: list[str], height: int, steps: int
) -> None:
    old, new = page(*text(3), table(*before)), page(*text(3), table(*after))
    view = enter(old, height)
    for _ in range(steps):
        view = move_down(old, view, height)
    name = name_at(old, view)
    settled = settle(old, new, view, height)
    assert 0 <= settled.top <= max(0, new.count - height)
    if name in after and name:
        assert name_at(new, settled) == name
        if view.cursor is not None and view.top <= view.cursor < view.top + height:
            moved = new.find(name) - view.cursor  # type: ignore[operator]
            if view.top:
                assert settled.top == max(0, min(view.top + moved, new.count - height))
            assert settled.cursor is not None
            assert settled.top <= settled.cursor < settled.top + height


def test_a_page_that_is_shown_from_its_beginning_shows_what_comes_first() -> None:
    old, new = page(table("b", "c")), page(*text(2), table("a", "b", "c"))
    view = settle(old, new, View(top=0, cursor=2), 10)
    assert (view.top, name_at(new, view)) == (0, "c")
    assert settle(old, new, View(top=0, cursor=2), 3).top == 3


def test_a_row_that_is_gone_leaves_the_cursor_at_its_line() -> None:
    old, new = page(table("a", "b", "c")), page(table("a", "c"))
    view = settle(old, new, View(top=0, cursor=2), 10)
    assert name_at(new, view) == "c"
    assert settle(old, page(*text(2)), view, 10).cursor is None


@given(st.integers(0, 12), st.integers(0, 12), st.integers(0, 12), st.integers(1, 8))
def test_down_and_up_reach_every_anchor_and_every_line(first: int, rows: int, last: int, height: int) -> None:
    names = [f"row-{number}" for number in range(rows)]
    lines = page(*text(first), *([table(*names)] if names else []), *text(last))
    for move, start in ((move_down, move_to_start(lines)), (move_up, move_to_end(lines, height))):
        view, reached_names, reached_lines = start, set(), set()
        for _ in range(3 * lines.count + 3):
            reached_names.add(name_at(lines, view))
            reached_lines |= set(range(view.top, min(lines.count, view.top + height)))
            view = move(lines, view, height)
        assert set(names) <= reached_names
        assert reached_lines == set(range(lines.count))


@given(st.integers(0, 40), st.integers(1, 8))
def test_pages_reach_both_ends_and_the_cursor_stays_on_the_screen(rows: int, height: int) -> None:
    lines = page(table(*(f"row-{number}" for number in range(rows))))
    view = move_to_start(lines)
    for _ in range(lines.count + 2):
        view = move_page(lines, view, height, 1)
        assert view.cursor is None or view.top <= view.cursor < view.top + height
    assert view == move_to_end(lines, height)
    for _ in range(lines.count + 2):
        view = move_page(lines, view, height, -1)
    assert view == move_to_start(lines)


def test_back_at_a_page_the_cursor_stands_where_it_stood() -> None:
    lines = page(*text(30), table("a", "b"))
    view = enter(lines, 5, top=28, anchor="b")
    assert (name_at(lines, view), view.top) == ("b", 28)
    assert enter(lines, 5, top=99, anchor="gone").cursor == 31
