"""Text of others: every character of it is seen, and none does anything."""

import shlex
import shutil
import subprocess
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len
from tests.support.hostile_console import HOSTILE

from tallystick.console.model import escaped
from tallystick.console.model.commands import describe_command, doctor_command
from tallystick.console.model.escaped import (
    TEXT_MAX,
    EscapedText,
    pad,
    quote_words,
    shorten,
    show,
    show_on_page,
    split_words,
    wrap,
    wrap_command,
)

ANY_TEXT = st.text(max_size=60) | st.sampled_from([*HOSTILE.values()])
SHOWN = ANY_TEXT.map(show)
BASH = shutil.which("bash")


def run_words(command: str) -> list[bytes]:
    """Return the words of a command as a shell reads them."""
    assert BASH is not None
    done = subprocess.run([BASH, "-c", f"printf '%s\\0' {command}"], capture_output=True, check=True)
    return done.stdout.split(b"\0")[:-1]


def test_nothing_else_makes_visible_text() -> None:
    """[CON-9] What is written to a terminal has this type, so it has come through here."""
    package = Path(escaped.__file__).parents[1]
    makers = {path.name for path in package.rglob("*.py") if "EscapedText(" in path.read_text()}
    assert makers == {"escaped.py"}
    widgets = (package / "terminal/line_view.py").read_text()
    assert "Static" not in widgets
    assert "Text(" not in widgets


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("pay-1 [bold]", "pay-1 [bold]"),
        ("\x1b[2J", r"\x1b[2J"),
        ("a\nb\t", r"a\x0ab\x09"),
        ("\x9b31m", r"\x9b31m"),
        ("\u202eabc", r"\u202eabc"),
        ("a\u200bb\ufeff", r"a\u200bb\ufeff"),
        ("\U000e0041", r"\U000e0041"),
        ("\xa0\u3000\u2028", r"\xa0\u3000\u2028"),
        ("e\u0301", r"e\u0301"),
        ("\udc80", r"\udc80"),
        ("口座-é", "口座-é"),
    ],
)
def test_what_cannot_be_seen_is_written_as_its_escape(text: str, shown: str) -> None:
    assert show(text) == shown


@given(ANY_TEXT)
def test_each_character_that_is_shown_has_a_cell(text: str) -> None:
    shown = show(text)
    assert shown.isprintable()
    assert all(cell_len(each) > 0 for each in shown)
    assert show(shown) == shown


def test_a_long_text_says_how_long_it_is() -> None:
    shown = show("k" * 10_000 + "-17")
    assert shown.startswith("k" * (TEXT_MAX // 2))
    assert "\u2026 (10,003 characters) \u2026k" in shown
    assert shorten(shown, 20).endswith("k-17")
    assert len(shown) < TEXT_MAX + 40


def test_a_page_draws_combining_marks_itself() -> None:
    assert show_on_page("e\u0301 \u202e\n") == "e\u0301 \\u202e\\x0a"


@given(SHOWN, st.integers(1, 40), st.booleans())
def test_a_cell_of_a_table_has_its_width(text: EscapedText, width: int, to_right: bool) -> None:
    assert cell_len(pad(text, width, to_right=to_right)) == width


def test_a_text_that_is_shortened_keeps_both_ends() -> None:
    assert shorten(show("orders-of-payments-17"), 12) == "orders-o\u2026-17"
    assert shorten(show("口座振替口座振替-17"), 12).endswith("-17")


@given(SHOWN, st.integers(2, 40))
def test_lines_are_as_wide_as_there_is_room_for(text: EscapedText, width: int) -> None:
    lines = wrap(text, width)
    assert all(cell_len(line) <= width for line in lines)
    assert "".join(lines).replace(" ", "") == text.replace(" ", "")


@given(st.lists(ANY_TEXT, min_size=1, max_size=4))
def test_each_character_of_a_command_is_seen(words: list[str]) -> None:
    command = quote_words(words)
    assert show(command, max_length=len(command)) == command


@pytest.mark.skipif(BASH is None, reason="there is no bash")
@pytest.mark.parametrize("word", HOSTILE.values(), ids=HOSTILE.keys())
def test_a_shell_reads_a_command_as_it_was_meant(word: str) -> None:
    words = ["a", word.replace("\x00", ""), "", "it's"]
    expected = [each.encode() for each in words]
    assert run_words(quote_words(words)) == expected
    assert split_words(quote_words(words)) == words
    lines = wrap_command(EscapedText(quote_words(words)), 70)
    if len(lines) > 1:
        assert run_words("\n".join(lines)) == expected


@given(st.lists(st.text("abc-'$\\ \"", max_size=12), min_size=1, max_size=12), st.integers(40, 90))
def test_a_command_is_broken_between_its_words(words: list[str], width: int) -> None:
    command = EscapedText(quote_words(words))
    lines = wrap_command(command, width)
    assert all(cell_len(line) <= width for line in lines)
    assert all(line.endswith(" \\") for line in lines[:-1])
    joined = " ".join(line.removesuffix(" \\").strip() for line in lines)
    assert shlex.split(joined) == words


def test_a_command_that_cannot_be_broken_is_not_taken_for_a_whole_one() -> None:
    (line,) = wrap_command(EscapedText(quote_words(["tallystick", "x" * 200])), 60)
    assert "\u2026" in line


def test_commands_quote_what_cannot_be_seen() -> None:
    command = describe_command("b:1", "pay\x1b\u202e")
    assert command.endswith(r"--transactional-id $'pay\033\342\200\256'")
    assert doctor_command("b:1").startswith("tallystick doctor")
