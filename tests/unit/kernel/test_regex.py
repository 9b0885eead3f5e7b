"""Patterns from outside: RE2's dialect, and never more than a bounded amount of work."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tallystick.kernel.regex import CACHE_MAX, WORK_MAX, Pattern
from tallystick.kernel.regex_syntax import BadPattern


def matches(pattern: str, text: str) -> bool:
    return Pattern(pattern).matches(text)


@pytest.mark.parametrize(
    ("pattern", "yes", "no"),
    [
        ("", [""], ["a"]),
        ("my-.*", ["my-", "my-app"], ["xmy-app", "my"]),
        ("a|bc|", ["a", "bc", ""], ["abc", "b"]),
        ("(?:ab)+", ["ab", "abab"], ["", "aba"]),
        ("a{2}", ["aa"], ["a", "aaa"]),
        ("a{2,}", ["aa", "aaaa"], ["a"]),
        ("a{1,3}?", ["a", "aaa"], ["", "aaaa"]),
        ("a{,3}", ["a{,3}"], ["aaa"]),
        ("x{", ["x{"], ["x"]),
        (".", ["a", "ü", "𝄞"], ["", "\n", "ab"]),
        ("(?s).", ["\n"], []),
        ("a.(?s:.)", ["ab\n"], ["a\nb"]),
        ("[a-c]x[^a-c]", ["axd", "cx\n"], ["dxd", "axb"]),
        ("[]a]+", ["]", "a]"], ["b"]),
        ("[^]a]", ["b"], ["]", "a"]),
        ("[a-]+", ["a-"], ["b"]),
        (r"[\d\-_]+", ["1-_"], ["a"]),
        (r"[[:alpha:][:digit:]]+", ["a1"], ["_"]),
        (r"[[:^alpha:]]", ["1"], ["a"]),
        (r"[\D\d]", ["1", "x"], [""]),
        (r"\d\D\w\W\s\S", ["1ax- y"], ["aax- y"]),
        (r"\d", ["7"], ["٣"]),  # ASCII alone, as RE2 has it
        (r"\x41\x{1D11E}\t\101\.", ["A𝄞\tA."], []),
        (r"\Qa.b\E+c", ["a.bc", "a.bbc"], ["axbc", "a.ba.bc"]),
        (r"\Q(", ["("], []),
        ("(?i)straße-A", ["STRAßE-a", "straße-A"], ["strase-a"]),
        ("(?i:a)b", ["Ab"], ["AB"]),
        ("(?i)[^k]", ["x"], ["K", "k"]),
        ("((?i)a)b", ["Ab"], ["AB"]),
        ("(?i-s:.)", ["x"], ["\n"]),
        ("^a$", ["a"], ["a\n"]),
        ("a\n(?m)^b$\nc", ["a\nb\nc"], []),
        ("a^b", [], ["ab", "a\nb"]),
        (r"\Aa\z", ["a"], ["ab"]),
        (r"a\b-\Bx?", ["a-"], ["a-x"]),
        (r"\b", [], ["", "a"]),
        ("(?P<n>a)(?<m>b)", ["ab"], []),
        ("(a*)*", ["", "aaa"], ["b"]),
        ("(|a)+", ["", "aa"], []),
    ],
)
def test_what_matches_as_a_whole(pattern: str, yes: list[str], no: list[str]) -> None:
    compiled = Pattern(pattern)
    for _ in range(2):  # the second time from what the first has left
        assert [text for text in yes if not compiled.matches(text)] == []
        assert [text for text in no if compiled.matches(text)] == []


@pytest.mark.parametrize(
    ("pattern", "why"),
    [
        ("(?=a)", "lookaround"),
        ("(?!a)", "lookaround"),
        ("(?<=a)b", "lookaround"),
        ("(?<!a)b", "lookaround"),
        ("(?>a)", "atomic"),
        ("(?(1)a|b)", "conditions"),
        (r"(a)\1", "backreferences"),
        ("(?P=n)", "not supported"),
        ("a*+", "possessive"),
        ("a**", "repetition of a repetition"),
        ("a{2}{3}", "repetition of a repetition"),
        ("*a", "nothing to repeat"),
        ("a|{2}", "nothing to repeat"),
        ("a{2,1}", "counts up"),
        ("a{1001}", "1000"),
        ("a{99999999999}", "1000"),
        ("(a", r"'\(' without"),
        ("a)", r"'\)' without"),
        ("[a", "without"),
        ("[b-a]", "goes down"),
        (r"[a-\d]", "not supported"),
        ("[[:nope:]]", "no class"),
        ("\\", "not supported"),
        (r"\pL", "not supported"),
        (r"\ü", "not supported"),
        (r"\x{110000}", "no such code point"),
        ("(?P<a>x)(?P<a>y)", "two groups"),
        ("(" * 101 + ")" * 101, "inside each other"),
        ("((a{100}){100}){100}", "more than 2000 parts"),
        ("((){1000}){1000}", "more than 2000 parts"),
    ],
)
def test_what_is_no_pattern_says_why(pattern: str, why: str) -> None:
    with pytest.raises(BadPattern, match=why):
        Pattern(pattern)


@pytest.mark.parametrize(
    "pattern", ["(a+)+b", "(a|a)*b", "(a*)*b", "(a|aa)+b", "(.*)*(.*)*b", "a?" * 50 + "a" * 50]
)
def test_a_pattern_that_python_would_try_for_ever_takes_little_work(pattern: str) -> None:
    """Sets of states that repeat are computed once: 5,000 characters cost no more than a few."""
    compiled = Pattern(pattern)
    assert not compiled.matches("a" * 5_000)
    assert compiled.work < 20_000


@pytest.mark.slow
def test_a_pattern_that_costs_too_much_ends() -> None:
    """Its sets of states are as many as the texts that end in 300 characters: none is met twice."""
    costly = Pattern("(a|b)*a(a|b){300}")
    texts = [f"{number:b}".translate({48: "a", 49: "b"}) * 40 for number in range(1, 5_000)]
    with pytest.raises(BadPattern, match="too much"):
        [costly.matches(text) for text in texts]
    assert costly.work <= WORK_MAX + len(costly._program)
    assert len(costly._states) <= CACHE_MAX + 1


PARTS = st.sampled_from(["a", "b", "c", "-", ".", "[ab]", "[^a]", r"\d", "(a|b)", "(?:ab)", "1"])
SIGNS = st.sampled_from(["", "", "", "*", "+", "?", "{2}", "{0,2}", "*?"])
PIECES = st.tuples(PARTS, SIGNS).map("".join)
PATTERNS = st.lists(st.lists(PIECES, max_size=5).map("".join), min_size=1, max_size=3).map("|".join)


@given(PATTERNS, st.lists(st.text("abc-1\n", max_size=8), max_size=8))
def test_python_finds_the_same(pattern: str, texts: list[str]) -> None:
    """An oracle by others, where the two dialects agree."""
    compiled, oracle = Pattern(pattern), re.compile(pattern)
    for text in texts:
        assert compiled.matches(text) == (oracle.fullmatch(text) is not None), (pattern, text)


@given(st.text(max_size=30))
def test_any_text_is_a_pattern_or_refused(pattern: str) -> None:
    try:
        Pattern(pattern).matches("abc")
    except BadPattern:
        pass
