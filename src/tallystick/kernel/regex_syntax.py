r"""Parser for RE2's dialect of regular expressions.

The dialect has what a finite automaton can match. Constructs that need backtracking are refused by name:
lookaround, backreferences, atomic groups, possessive quantifiers. Unicode classes (`\p{Greek}`) are not
supported.

Source: RE2 syntax page (github.com/google/re2/wiki/Syntax), KIP-1152 "RE2J".
"""

import re
from collections.abc import Iterable
from dataclasses import replace
from enum import Enum
from typing import Final, NoReturn

from tallystick.kernel.errors import TallystickError
from tallystick.kernel.value import frozen

REPEAT_MAX: Final = 1_000
DEPTH_MAX: Final = 100
_LAST_CODE_POINT: Final = 0x10FFFF

Range = tuple[int, int]  # of code points, both included
Ranges = tuple[Range, ...]


class BadPattern(TallystickError):
    """A pattern outside the dialect, or too large; the text says where and why."""


# ---- the tree


@frozen
class Characters:
    """One character in `ranges`, or with `is_negated` not in them; with `ignores_case` in either case."""

    ranges: Ranges
    is_negated: bool = False
    ignores_case: bool = False

    def __contains__(self, char: str) -> bool:
        forms = {char, char.lower(), char.upper()} if self.ignores_case else {char}
        codes = [ord(form) for form in forms if len(form) == 1]
        return any(low <= code <= high for code in codes for low, high in self.ranges) != self.is_negated


class Assertion(Enum):
    """A condition on the position between two characters."""

    TEXT_START = "\\A"
    TEXT_END = "\\z"
    LINE_START = "(?m)^"
    LINE_END = "(?m)$"
    WORD_BOUNDARY = "\\b"
    NO_WORD_BOUNDARY = "\\B"


@frozen
class Concatenation:
    parts: "tuple[Node, ...]"


@frozen
class Alternation:
    branches: "tuple[Node, ...]"


@frozen
class Repeat:
    """A repetition of `node`; `maximum` None: unlimited."""

    node: "Node"
    minimum: int
    maximum: int | None


Node = Characters | Assertion | Concatenation | Alternation | Repeat

# ---- characters by name


def _parse_ranges(text: str) -> Ranges:
    """Return the ranges of a text: `"09az"` are two."""
    return tuple((ord(low), ord(high)) for low, high in zip(text[::2], text[1::2], strict=True))


def _complement(ranges: Iterable[Range]) -> Ranges:
    """Return the code points in none of the ranges."""
    found, next_code = [], 0
    for low, high in sorted(ranges):
        if low > next_code:
            found.append((next_code, low - 1))
        next_code = max(next_code, high + 1)
    return (*found, (next_code, _LAST_CODE_POINT)) if next_code <= _LAST_CODE_POINT else tuple(found)


_DIGIT: Final = _parse_ranges("09")
_SPACE: Final = _parse_ranges("\t\n\f\r  ")  # Perl's: without \v
_WORD: Final = _parse_ranges("09AZ__az")
_PERL_CLASSES: Final = {"d": _DIGIT, "s": _SPACE, "w": _WORD}
_CLASSES: Final = _PERL_CLASSES | {
    name.upper(): _complement(ranges) for name, ranges in _PERL_CLASSES.items()
}
_POSIX: Final = {
    "alnum": _parse_ranges("09AZaz"),
    "alpha": _parse_ranges("AZaz"),
    "ascii": _parse_ranges("\0\x7f"),
    "blank": _parse_ranges("\t\t  "),
    "cntrl": _parse_ranges("\0\x1f\x7f\x7f"),
    "digit": _DIGIT,
    "graph": _parse_ranges("!~"),
    "lower": _parse_ranges("az"),
    "print": _parse_ranges(" ~"),
    "punct": _parse_ranges("!/:@[`{~"),
    "space": _parse_ranges("\t\r  "),
    "upper": _parse_ranges("AZ"),
    "word": _WORD,
    "xdigit": _parse_ranges("09AFaf"),
}
_ESCAPES: Final = {"a": 7, "t": 9, "n": 10, "v": 11, "f": 12, "r": 13}
_ASSERTIONS: Final = {
    "A": Assertion.TEXT_START,
    "z": Assertion.TEXT_END,
    "b": Assertion.WORD_BOUNDARY,
    "B": Assertion.NO_WORD_BOUNDARY,
}

# Compiled on first use, because most brokers never need it.
_BOUNDS: Final = r"\{([0-9]+)(?:(,)([0-9]*))?\}"
_NAMED: Final = r"\(\?P?<([A-Za-z0-9_]+)>"
_FLAGGED: Final = r"\(\?([imsU]*)(?:-([imsU]+))?([:)])"
_POSIX_CLASS: Final = r"\[:(\^?)([a-z]+):\]"
_HEX: Final = r"x(?:\{([0-9A-Fa-f]{1,6})\}|([0-9A-Fa-f]{2}))"
_OCTAL: Final = r"0[0-7]{0,2}|[1-7][0-7]{1,2}"


@frozen
class _Flags:
    folded: bool = False
    multiline: bool = False
    dot_all: bool = False

    def set(self, letters: str, on: bool) -> "_Flags":
        names = {"i": "folded", "m": "multiline", "s": "dot_all"}  # U changes only what is captured
        return replace(self, **{names[letter]: on for letter in letters if letter in names})


def parse(text: str) -> Node:
    """Parse a pattern into a tree. Raises: BadPattern."""
    return _Parser(text).parse()


class _Parser:
    """Recursive descent over the text; `at` is the position of the next character."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.at = 0
        self.depth = 0
        self.flags = _Flags()
        self.names: set[str] = set()

    def parse(self) -> Node:
        node = self._parse_alternation()
        if self.at < len(self.text):
            self._fail("a ')' without '('")
        return node

    def _fail(self, why: str) -> NoReturn:
        raise BadPattern(f"pattern {self.text!r}, at {self.at}: {why}")

    def _next(self) -> str:
        return self.text[self.at : self.at + 1]

    def _accept(self, wanted: str) -> bool:
        found = self.text.startswith(wanted, self.at)
        self.at += len(wanted) if found else 0
        return found

    def _match_form(self, form: str) -> "re.Match[str] | None":
        found = re.compile(form).match(self.text, self.at)
        self.at = found.end() if found else self.at
        return found

    # ---- structure

    def _parse_alternation(self) -> Node:
        branches = [self._parse_concatenation()]
        while self._accept("|"):
            branches.append(self._parse_concatenation())
        return branches[0] if len(branches) == 1 else Alternation(tuple(branches))

    def _parse_concatenation(self) -> Node:
        parts: list[Node] = []
        while self._next() not in ("", "|", ")"):
            if self._parse_quantifier() is not None:
                self._fail("nothing to repeat")
            parts += self._parse_atom()
            bounds = self._parse_quantifier() if parts else None
            if bounds is not None:
                self._accept("?")  # lazy: for a match of the whole text there is no difference
                if self._parse_quantifier() is not None:
                    self._fail("a repetition of a repetition; possessive ones are not supported")
                parts[-1] = Repeat(parts[-1], *bounds)
        return Concatenation(tuple(parts))

    def _parse_quantifier(self) -> tuple[int, int | None] | None:
        for sign, bounds in (("*", (0, None)), ("+", (1, None)), ("?", (0, 1))):
            if self._accept(sign):
                return bounds
        found = self._match_form(_BOUNDS)
        if found is None:
            return None
        if any(len(number or "") > len(str(REPEAT_MAX)) for number in found.group(1, 3)):
            self._fail(f"more than {REPEAT_MAX} repetitions")
        least = int(found[1])
        most = least if found[2] is None else int(found[3]) if found[3] else None
        if least > REPEAT_MAX or (most is not None and not least <= most <= REPEAT_MAX):
            self._fail(f"a repetition of {least} to {most}; it counts up, and to {REPEAT_MAX} at most")
        return least, most

    def _parse_atom(self) -> list[Node]:
        """Parse the operand of one quantifier: several nodes for quoted text, none for flags."""
        flags = self.flags
        char = self._next()
        match char:
            case "(":
                return self._parse_group()
            case "[":
                return [self._parse_bracket()]
            case "\\":
                return self._parse_escape()
        self.at += 1
        match char:
            case ".":
                return [Characters(() if flags.dot_all else _parse_ranges("\n\n"), is_negated=True)]
            case "^":
                return [Assertion.LINE_START if flags.multiline else Assertion.TEXT_START]
            case "$":
                return [Assertion.LINE_END if flags.multiline else Assertion.TEXT_END]
        return [self._make_literal(ord(char))]

    def _make_literal(self, code: int) -> Node:
        return Characters(((code, code),), ignores_case=self.flags.folded)

    def _parse_group(self) -> list[Node]:
        outside = self.flags
        named, flagged = self._match_form(_NAMED), None
        if named is not None:
            if named[1] in self.names:
                self._fail(f"two groups are called {named[1]!r}")
            self.names.add(named[1])
        else:
            flagged = self._match_form(_FLAGGED)
        if flagged is not None:
            self.flags = outside.set(flagged[1], True).set(flagged[2] or "", False)
            if flagged[3] == ")":
                return []
        elif named is None and self.text.startswith("(?", self.at):
            self._fail("lookaround, atomic groups and conditions are not supported")
        elif named is None:
            self.at += 1
        self.depth += 1
        if self.depth > DEPTH_MAX:
            self._fail(f"more than {DEPTH_MAX} groups inside each other")
        node = self._parse_alternation()
        if not self._accept(")"):
            self._fail("a '(' without ')'")
        self.depth -= 1
        self.flags = outside
        return [node]

    # ---- characters

    def _parse_escape(self) -> list[Node]:
        if self._accept("\\Q"):
            quoted, _, _ = self.text[self.at :].partition("\\E")
            self.at = min(self.at + len(quoted) + len("\\E"), len(self.text))
            return [self._make_literal(ord(char)) for char in quoted]
        self.at += 1
        char = self._next()
        if char in _ASSERTIONS:
            self.at += 1
            return [_ASSERTIONS[char]]
        if char in _CLASSES:
            self.at += 1
            return [Characters(_CLASSES[char], ignores_case=self.flags.folded)]
        return [self._make_literal(self._parse_escaped_char())]

    def _parse_escaped_char(self) -> int:
        """Return the code point of the escape sequence after a backslash."""
        char = self._next()
        found = self._match_form(_HEX)
        if found is not None:
            code = int(found[1] or found[2], 16)
            return code if code <= _LAST_CODE_POINT else self._fail("there is no such code point")
        found = self._match_form(_OCTAL)
        if found is not None:
            return int(found[0], 8)
        if char in _ESCAPES:
            self.at += 1
            return _ESCAPES[char]
        if char == "" or not char.isascii() or char.isalnum():
            what = "backreferences are" if char.isdigit() else f"\\{char} is"
            self._fail(f"{what} not supported")
        self.at += 1
        return ord(char)

    def _parse_bracket(self) -> Node:
        self.at += 1
        negated = self._accept("^")
        ranges: list[Range] = []
        while not ranges or not self._accept("]"):  # a ']' in first position is literal
            ranges += self._parse_bracket_item()
        return Characters(tuple(ranges), is_negated=negated, ignores_case=self.flags.folded)

    def _parse_bracket_item(self) -> Iterable[Range]:
        posix = self._match_form(_POSIX_CLASS)
        if posix is not None:
            found = _POSIX.get(posix[2]) or self._fail(f"there is no class {posix[2]!r}")
            return _complement(found) if posix[1] else found
        name = self.text[self.at + 1 : self.at + 2]
        if self._next() == "\\" and name in _CLASSES:
            self.at += 2
            return _CLASSES[name]
        low = high = self._parse_bracket_char()
        if self._next() == "-" and self.text[self.at + 1 : self.at + 2] not in ("", "]"):
            self.at += 1
            high = self._parse_bracket_char()
            if high < low:
                self._fail("a range that goes down")
        return ((low, high),)

    def _parse_bracket_char(self) -> int:
        char = self._next()
        if char == "":
            self._fail("a '[' without ']'")
        self.at += 1
        return self._parse_escaped_char() if char == "\\" else ord(char)
