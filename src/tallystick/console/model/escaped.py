r"""Text of others on a screen: what it contains is seen, and does nothing. Pure.

Ids, topics, groups, keys and error texts are chosen by every client and server of a cluster. A control
sequence among them could clear a screen, set a clipboard (OSC 52) or hide a link (OSC 8); a mark that changes
the direction of writing, or one without a width, could make one id look like another, and a command like a
harmless one. So each character that has no cell of its own is written as its escape, such as \x1b or \u202e
[CON-9].

Nothing reaches a terminal but `EscapedText`, and only this module makes that: a type checker finds what goes
past it. A page of the browser keeps combining marks, which it can draw, and escapes all else alike.
"""

import re
import shlex
import unicodedata
from collections.abc import Iterable
from typing import Final, NewType

from rich.cells import cell_len

EscapedText = NewType("EscapedText", str)
"""Text that is safe to write to a terminal: one line, and each character takes one or two cells."""

TEXT_MAX: Final = 2_000
"""Characters of one text that are shown; a client may choose an id of 32,767 bytes."""

ELLIPSIS: Final = "\u2026"

# Letters and symbols that are drawn as nothing: Unicode's Default_Ignorable_Code_Point, and Braille's blank.
_BLANK: Final = frozenset("\u115f\u1160\u3164\uffa0\u2800")
_MAY_BE_INVISIBLE: Final = re.compile(r"[^\x20-\x7e]")
# What a shell reads as it stands; the same as in shlex.
_QUOTED_PIECE: Final = re.compile(r"\\([0-7]{3})|\\(.)|([^\\])", re.DOTALL)
_BARE: Final = re.compile(r"[\w@%+=:,./-]+", re.ASCII)


def show(text: str, *, max_length: int = TEXT_MAX) -> EscapedText:
    """Return a text as a terminal may show it; of a long one the beginning, its length, and the end."""
    if len(text) <= max_length:
        return EscapedText(_escape(text))
    tail_length = max_length // 4
    head, tail = _escape(text[: max_length - tail_length]), _escape(text[-tail_length:])
    return EscapedText(f"{head}{ELLIPSIS} ({len(text):,} characters) {ELLIPSIS}{tail}")


def show_on_page(text: str) -> str:
    """Return a text as a page in a browser may show it: whole, and with combining marks."""
    if text.isprintable() and _BLANK.isdisjoint(text):
        return text
    return "".join(each if _is_drawn(each) else _format_escape(each) for each in text)


def join_visible(separator: str, parts: Iterable[EscapedText]) -> EscapedText:
    """Join texts that are visible."""
    return EscapedText(show(separator).join(parts))


def shorten(text: EscapedText, width: int) -> EscapedText:
    """Return a text in at most `width` cells; of a longer one the beginning and the end: ids differ there."""
    if len(text) * 2 <= width or cell_len(text) <= width:
        return text
    if width < 4:
        return EscapedText(_take(text, width))
    tail = _take(text[::-1], (width - 1) // 3)[::-1]
    head = _take(text, width - 1 - cell_len(tail))
    return EscapedText(f"{head}{ELLIPSIS}{tail}")


def clip(text: EscapedText, width: int) -> EscapedText:
    """Return a sentence in at most `width` cells; of a longer one the beginning."""
    if cell_len(text) <= width:
        return text
    return EscapedText(f"{_take(text, width - 1)}{ELLIPSIS}" if width > 0 else "")


def pad(text: EscapedText, width: int, *, to_right: bool = False) -> EscapedText:
    """Return a text in exactly `width` cells."""
    fitting = shorten(text, width)
    blanks = " " * (width - cell_len(fitting))
    return EscapedText(f"{blanks}{fitting}" if to_right else f"{fitting}{blanks}")


def wrap(text: EscapedText, width: int) -> list[EscapedText]:
    """Break a text into lines of at most `width` cells, between words where there are any."""
    lines: list[str] = []
    line = ""
    for word in text.split(" "):
        joined = f"{line} {word}" if line else word
        if cell_len(joined) <= width:
            line = joined
            continue
        if line:
            lines.append(line)
        while cell_len(word) > width:
            piece = _take(word, width) or word[:1]
            lines.append(piece)
            word = word[len(piece) :]
        line = word
    return [EscapedText(each) for each in (*lines, line)]


def wrap_command(command: EscapedText, width: int) -> list[EscapedText]:
    r"""Break a command into lines that a shell reads as one, each but the last with a backslash at its end.

    Of a command whose words do not fit, which could not be broken that way, the first line is returned.
    """
    lines: list[str] = []
    line = ""
    for word in _split_words(command):
        joined = f"{line} {word}" if line else word
        if cell_len(joined) <= width - 2:
            line = joined
            continue
        if line:
            lines.append(line)
        line = f"  {word}"
    lines.append(line)
    if any(cell_len(each) > width - 2 for each in lines):
        return [shorten(command, width)]
    return [EscapedText(f"{each} \\") for each in lines[:-1]] + [EscapedText(lines[-1])]


def quote_words(words: Iterable[str]) -> str:
    r"""Return a command line for a shell, of which every character is visible.

    Words that would be invisible in part are quoted as $'...' with their bytes in octal, which bash, zsh, ksh
    and POSIX.1-2024 read: what is shown can be copied, and is what is run.
    """
    return " ".join(map(_quote_word, words))


def split_words(command: str) -> list[str]:
    """Return the words of a command line that `quote_words` has made."""
    return [_unquote_word(word) for word in _split_words(command)]


def _unquote_word(word: str) -> str:
    if not word.startswith("$'"):
        return shlex.split(word)[0]
    pieces = _QUOTED_PIECE.findall(word[2:-1])
    octets = b"".join(
        bytes((int(octal, 8),)) if octal else (escaped or plain).encode() for octal, escaped, plain in pieces
    )
    return octets.decode("utf-8", "surrogatepass")


def _quote_word(word: str) -> str:
    if _BARE.fullmatch(word):
        return word
    if _escape(word) == word:
        return shlex.quote(word)
    return "$'{}'".format("".join(map(_quote_character, word)))


def _quote_character(each: str) -> str:
    if each in "\\'":
        return f"\\{each}"
    if each.isascii() and each.isprintable():
        return each
    return "".join(f"\\{byte:03o}" for byte in each.encode("utf-8", "surrogatepass"))


def _split_words(command: str) -> list[str]:
    """Split a command line at the blanks between its words; quotes stay."""
    return re.findall(r"(?:'[^']*'|\$'(?:[^'\\]|\\.)*'|\"[^\"]*\"|[^ '\"])+", command)


def _escape(text: str) -> str:
    if not _MAY_BE_INVISIBLE.search(text):
        return text
    return "".join(each if _has_cell(each) else _format_escape(each) for each in text)


def _is_drawn(each: str) -> bool:
    return each.isprintable() and each not in _BLANK


def _has_cell(each: str) -> bool:
    if each.isascii():
        return each.isprintable()
    return _is_drawn(each) and unicodedata.category(each)[0] != "M" and cell_len(each) > 0


def _format_escape(each: str) -> str:
    number = ord(each)
    if number <= 0xFF:
        return f"\\x{number:02x}"
    return f"\\u{number:04x}" if number <= 0xFFFF else f"\\U{number:08x}"


def _take(text: str, width: int) -> str:
    """Return the longest beginning of at most `width` cells."""
    taken_width = 0
    for at, each in enumerate(text):
        taken_width += cell_len(each)
        if taken_width > width:
            return text[:at]
    return text
