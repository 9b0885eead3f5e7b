"""Regular expressions from clients, matched in time linear in the text, whatever the pattern.

Python's `re` backtracks: `(a+)+b` takes minutes over thirty characters, and blocks the event loop. Here a
pattern becomes an automaton (Thompson 1968) whose state sets are built on demand and cached, so that a
character costs one lookup; a budget stops patterns whose sets never repeat.

Source: R. Cox, "Regular Expression Matching Can Be Simple And Fast" (2007).
"""

from collections.abc import Iterable
from enum import Enum, auto
from typing import Final, assert_never

from tallystick.kernel.regex_syntax import (
    Alternation,
    Assertion,
    BadPattern,
    Characters,
    Concatenation,
    Node,
    Repeat,
    parse,
)
from tallystick.kernel.value import frozen

PROGRAM_MAX: Final = 2_000
# Budget of instructions per pattern, over all texts: about a third of a second.
WORK_MAX: Final = 2_000_000
# Number of cached transitions; beyond it the cache is cleared.
CACHE_MAX: Final = 10_000


class CharClass(Enum):
    """The class of the character on one side of a position, as assertions need it."""

    EDGE = auto()
    NEWLINE = auto()
    WORD = auto()
    OTHER = auto()


def _classify_char(char: str) -> CharClass:
    if char == "\n":
        return CharClass.NEWLINE
    return CharClass.WORD if char.isascii() and (char.isalnum() or char == "_") else CharClass.OTHER


@frozen
class _Consume:
    """Consume one character of `what`, continue at `to`."""

    what: Characters
    to: int


@frozen
class _Jump:
    """Continue at any of `to`."""

    to: tuple[int, ...]


@frozen
class _Assert:
    what: Assertion
    to: int


_Instruction = _Consume | _Jump | _Assert | None  # None: a match if the text ends here


class _State:
    """A set of automaton positions and the class of the last character; `transitions` is filled on demand."""

    __slots__ = ("is_accepting", "positions", "previous_class", "transitions")

    def __init__(self, places: frozenset[int], before: CharClass) -> None:
        self.positions = places
        self.previous_class = before
        self.transitions: dict[str, _State] = {}
        self.is_accepting: bool | None = None


class Pattern:
    """One compiled pattern. It caches states while matching, so it belongs to one thread."""

    def __init__(self, text: str) -> None:
        """Compile a pattern. Raises: BadPattern."""
        self._program: list[_Instruction] = [None]
        self._emitted = 0
        start = self._emit(parse(text), 0)
        self._text = text
        self._states: dict[tuple[frozenset[int], CharClass], _State] = {}
        self._cached_states = 0
        self._start_state = self._get_state(frozenset({start}), CharClass.EDGE)
        self.work = 0

    def matches(self, text: str) -> bool:
        """Return whether the pattern matches the whole text. Raises: BadPattern, over the budget."""
        state = self._start_state
        for char in text:
            state = state.transitions.get(char) or self._step(state, char)
            if not state.positions:
                return False
        if state.is_accepting is None:
            state.is_accepting = any(each is None for each in self._follow_empty(state, CharClass.EDGE))
        return state.is_accepting

    # ---- compiling, from the end to the beginning, so that every successor is known

    def _emit(self, node: Node, to: int) -> int:
        """Append instructions for `node` that continue at `to`; return their start."""
        self._emitted += 1
        if self._emitted > PROGRAM_MAX:
            raise BadPattern(f"the pattern has more than {PROGRAM_MAX} parts, repetitions written out")
        match node:
            case Characters():
                return self._add(_Consume(node, to))
            case Assertion():
                return self._add(_Assert(node, to))
            case Concatenation(parts=parts):
                for part in reversed(parts):
                    to = self._emit(part, to)
                return to
            case Alternation(branches=branches):
                return self._add(_Jump(tuple(self._emit(branch, to) for branch in branches)))
            case Repeat():
                return self._emit_repeat(node, to)
            case _:
                assert_never(node)

    def _emit_repeat(self, node: Repeat, to: int) -> int:
        begins = to
        if node.maximum is None:
            begins = self._add(None)
            self._program[begins] = _Jump((self._emit(node.node, begins), to))
        for _ in range((node.maximum or node.minimum) - node.minimum):
            begins = self._add(_Jump((self._emit(node.node, begins), to)))
        for _ in range(node.minimum):
            begins = self._emit(node.node, begins)
        return begins

    def _add(self, instruction: _Instruction) -> int:
        self._program.append(instruction)
        return len(self._program) - 1

    # ---- running

    def _get_state(self, places: frozenset[int], before: CharClass) -> _State:
        found = self._states.get((places, before))
        if found is None:
            found = self._states[places, before] = _State(places, before)
        return found

    def _step(self, state: _State, char: str) -> _State:
        side = _classify_char(char)
        reached = self._follow_empty(state, side)
        places = frozenset(each.to for each in reached if isinstance(each, _Consume) and char in each.what)
        if self._cached_states >= CACHE_MAX:
            self._cached_states = 0
            self._states = {
                (self._start_state.positions, self._start_state.previous_class): self._start_state
            }
            self._start_state.transitions = {}
            state.transitions = {}
        self._cached_states += 1
        following = state.transitions[char] = self._get_state(places, side)
        return following

    def _follow_empty(self, state: _State, after: CharClass) -> list[_Instruction]:
        """Return the reads, and perhaps the end, reachable without consuming a character."""
        reached: list[_Instruction] = []
        seen = set(state.positions)
        todo = list(seen)
        while todo:
            instruction = self._program[todo.pop()]
            onward: Iterable[int] = ()
            match instruction:
                case _Jump(to=places):
                    onward = places
                case _Assert(what=what, to=to) if _is_satisfied(what, state.previous_class, after):
                    onward = (to,)
                case _Consume() | None:
                    reached.append(instruction)
            fresh = set(onward) - seen
            seen |= fresh
            todo.extend(fresh)
        self.work += len(seen)
        if self.work > WORK_MAX:
            raise BadPattern(f"pattern {self._text!r} costs too much to match")
        return reached


def _is_satisfied(what: Assertion, before: CharClass, after: CharClass) -> bool:
    match what:
        case Assertion.TEXT_START:
            return before is CharClass.EDGE
        case Assertion.TEXT_END:
            return after is CharClass.EDGE
        case Assertion.LINE_START:
            return before in (CharClass.EDGE, CharClass.NEWLINE)
        case Assertion.LINE_END:
            return after in (CharClass.EDGE, CharClass.NEWLINE)
        case Assertion.WORD_BOUNDARY:
            return (before is CharClass.WORD) != (after is CharClass.WORD)
        case Assertion.NO_WORD_BOUNDARY:
            return (before is CharClass.WORD) == (after is CharClass.WORD)
        case _:
            assert_never(what)
