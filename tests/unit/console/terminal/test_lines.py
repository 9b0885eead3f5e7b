"""Pages as lines: what is on each, at every width."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len

from tallystick.console.terminal.lines import (
    MARGIN,
    Anchor,
    Column,
    Command,
    PageLines,
    Paragraph,
    Row,
    Table,
    TextRole,
    badge,
    field,
    heading,
    say,
    table_of,
)

COLUMNS = (
    Column(head="Name", width=6, width_max=20),
    Column(head="Count", width=5, rank=1, to_right=True),
    Column(head="Note", width=10, rank=2),
)


def make_row(number: int) -> Row:
    name = f"row-{number}"
    return Row((say(name), say(str(number)), say("note")), Anchor(name=name))


def make_table(count: int, made: list[int] | None = None) -> Table:
    def make(number: int) -> Row:
        if made is not None:
            made.append(number)
        return make_row(number)

    return Table(
        columns=COLUMNS, items=range(count), make=make, name=lambda number: f"row-{number}", empty="no rows"
    )


def list_texts(lines: PageLines) -> list[str]:
    return [lines.get_line(number).text.rstrip() for number in range(lines.count)]


def test_a_table_has_the_columns_that_there_is_room_for() -> None:
    narrow = PageLines([make_table(2)], 14 + MARGIN)
    assert list_texts(narrow) == ["Name     Count", "row-0        0", "row-1        1"]
    wide = PageLines([make_table(1)], 40 + MARGIN)
    assert list_texts(wide) == [f"{'Name':20}  Count  Note", f"{'row-0':20}      0  note"]


def test_the_first_column_is_always_there() -> None:
    assert list_texts(PageLines([make_table(1)], 4 + MARGIN)) == ["Name", "ro\u20260"]


def test_a_table_without_rows_says_so() -> None:
    lines = PageLines([make_table(0)], 40)
    assert list_texts(lines) == ["no rows"]
    assert lines.find_next(0) is None
    assert list_texts(PageLines([make_table(0)], 4 + MARGIN)) == ["no", "rows"]


def test_rows_are_made_when_they_are_shown() -> None:
    made: list[int] = []
    lines = PageLines([heading("Rows"), make_table(10_000, made)], 60)
    assert lines.count == 10_002
    assert made == []
    assert lines.get_line(9_001).text.startswith("row-8999")
    assert lines.find("row-9999") == 10_001
    assert made == [8_999]


def test_where_the_cursor_can_stand() -> None:
    blocks = [
        heading("Head"),
        make_table(3),
        field("Label", "value"),
        Paragraph((say("x"),), Anchor(name="x")),
    ]
    lines = PageLines(blocks, 60)
    assert [lines.find_next(number) for number in range(lines.count + 1)] == [2, 2, 2, 3, 4, 6, 6, None]
    assert [lines.find_last(number) for number in range(lines.count)] == [None, None, 2, 3, 4, 4, 6]
    assert lines.find("x") == 6
    assert lines.find("gone") is None
    assert lines.get_line(6).anchor == Anchor(name="x")


def test_rows_without_anchors_are_passed_over() -> None:
    rows = [Row((say("a"), say("1"), say("")))]
    assert PageLines([table_of(rows, COLUMNS, "")], 60).find_next(0) is None


@given(st.integers(12, 200), st.text(max_size=80), st.integers(0, 5))
def test_no_line_is_wider_than_the_page(width: int, text: str, count: int) -> None:
    blocks = [
        heading("H"),
        make_table(count),
        Paragraph((say(text),)),
        Command(f"tallystick topics list --x '{text}'", Anchor(name="c"), 4),
    ]
    lines = PageLines(blocks, width)
    widths = [cell_len(lines.get_line(number).text) for number in range(lines.count)]
    assert max(widths) <= width - MARGIN


def test_further_lines_of_a_text_are_indented_and_have_no_anchor() -> None:
    paragraph = Paragraph((badge("recover"), say("  "), say("word " * 8)), Anchor(name="p"), indent=4)
    lines = PageLines([paragraph], 30)
    assert list_texts(lines)[0].startswith("recover  word")
    assert list_texts(lines)[1].startswith("    word")
    assert [lines.get_line(number).anchor is None for number in range(lines.count)] == [
        False,
        *[True] * (lines.count - 1),
    ]


@pytest.mark.parametrize(
    ("word", "role"),
    [("broken", TextRole.BAD), ("ok", TextRole.GOOD), ("of a later version", TextRole.DOUBTFUL)],
)
def test_health_is_a_word_and_then_a_colour(word: str, role: TextRole) -> None:
    assert badge(word) == say(word, role)


def test_beyond_the_end_is_nothing() -> None:
    assert PageLines([], 10).get_line(0).text == ""
