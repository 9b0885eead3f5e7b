"""Sentences name their subject, and names say what a value is: no riddles about persons, no participles."""

import ast
import re
from collections import Counter
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
# Words of a style that hides the subject of a sentence: name the client, the broker, the caller instead.
# In quotes and backticks, `nobody` is an account of the system.
BANNED = re.compile(r"(?<![`\"'])\b(nobody|somebody|whoever|whomever)\b(?![`\"'])", re.IGNORECASE)

DEFINED = re.compile(r"^\s*(?:async def|def|class) (\w+)", re.MULTILINE)
FUNCTION = re.compile(r"^\s*(?:async )?def (\w+)", re.MULTILINE)
UNNAMED = re.compile(r"(?<![a-z])(nobody|somebody|whoever|whomever)s?(?![a-z])")

# Words for which English has plainer ones (style R19), in documentation: again, next to, no longer.
DATED = re.compile(r"\b(anew|beside|any more|is told|are told|is asked|are asked)\b", re.IGNORECASE)
QUOTES_THEM = {"docs/style.md"}

# A paragraph begins with the thing that it is about; a heading or a question may begin so.
OPENING = re.compile(r"(?:[-*] |\| )?(?:What|Who|Whose|Whom|Which)\b[^?]*$")

# A docstring of a class or module names the thing: "Broker interface for Fetch", not "What Fetch needs".
HEADLESS = re.compile(r"(What|Who|Whose|Whom|Which|When|Where|Why|How)\b")
OPENS_HEADLESS = re.compile(r'"""\s*' + HEADLESS.pattern)
# A ratchet: the packages with such docstrings, and how many they may have at most.
HEADLESS_MAX = {"client": 2, "console": 1}

# A participle says how a value was got, not what it is (style R19): `found` is a row, `taken` a latency.
IRREGULAR = re.compile(
    "begun|bought|brought|broken|built|caught|chosen|dealt|done|drawn|driven|eaten|fallen|felt|forgotten|found|"
    "given|gone|got|grown|held|hidden|kept|known|laid|led|left|lost|made|meant|met|overwritten|paid|put|ridden|"
    "risen|said|seen|sent|shaken|shown|sold|sought|spent|spoken|stolen|stood|struck|stuck|swept|taken|taught|"
    "thought|thrown|told|torn|understood|withheld|won|worn|written"
)
REGULAR = re.compile(r"[a-z]{2,}ed")
NOT_PARTICIPLES = frozenset({"bed", "embed", "feed", "need", "red", "seed", "shed", "speed"})

# The participles that say least, refused everywhere. An error says what it `expected` and what it `found`.
# Words of this project alone; the field has a side or a branch, a queue or a connection, to assess.
PRIVATE = frozenset({"half", "halves", "lane", "lanes", "desk", "judge", "judges", "joint"})
WORD = re.compile(r"[A-Z]?[a-z]+")
BARE = frozenset({"asked", "found", "made", "shown", "told"})
FOUND = {
    "src/tallystick/admin/admin_call.py",  # Answers.found
    "src/tallystick/admin/errors.py",
    "src/tallystick/dualwrite/errors.py",
    "src/tallystick/storage/checkpoints/checkpoint_text.py",
    "src/tallystick/storage/disk/fs.py",
    "src/tallystick/storage/segments/segment_scan.py",
}

# A ratchet: what is listed may only shrink. Most of these are Kafka's words for Kafka's things.
PARTICIPLES = {
    "harness": {"aborted", "committed"},
    "src/tallystick/client": {
        "aborted",
        "added",
        "assigned",
        "cancelled",
        "committed",
        "failed",
        "lost",
        "owned",
        "revoked",
        "unanswered",
        "unassigned",
        "wanted",
    },
    "src/tallystick/spark": {"committed", "unmatched"},
    "tools": set(),
}


def bindings(tree: ast.AST) -> Iterator[str]:
    """Yield the names of variables, parameters and attributes, without leading underscores."""
    for node in ast.walk(tree):
        match node:
            case ast.Name(id=name, ctx=ast.Store()) | ast.Attribute(attr=name, ctx=ast.Store()):
                yield name.strip("_")
            case ast.arg(arg=name) | ast.MatchAs(name=str(name)) | ast.MatchStar(name=str(name)):
                yield name.strip("_")


def is_participle(name: str) -> bool:
    if name in NOT_PARTICIPLES:
        return False
    return IRREGULAR.fullmatch(name) is not None or REGULAR.fullmatch(name) is not None


@cache
def read_names(path: Path) -> frozenset[str]:
    """Return the names that a file binds."""
    return frozenset(bindings(ast.parse(path.read_text())))


def texts() -> Iterator[Path]:
    """Yield the files whose sentences are checked: code with its comments and texts, and documentation."""
    for folder in ("src", "harness", "tools", "examples"):
        yield from sorted((ROOT / folder).rglob("*.py"))
    for folder in (".", "docs", "changes"):
        yield from sorted((ROOT / folder).glob("*.md" if folder == "." else "**/*.md"))


@pytest.mark.slow
def test_sentences_name_their_subject() -> None:
    findings = [
        f"{path.relative_to(ROOT)}: {match.group(0)}"
        for path in texts()
        if (match := BANNED.search(path.read_text())) is not None
    ]
    assert findings == []


def test_documentation_has_plain_words() -> None:
    findings = [
        f"{name}: {match.group(0)}"
        for path in texts()
        if path.suffix == ".md" and path.parent.name != "changes" and path.name != "CHANGELOG.md"
        if (name := str(path.relative_to(ROOT))) not in QUOTES_THEM
        if (match := DATED.search(path.read_text())) is not None
    ]
    assert findings == []


def test_paragraphs_of_documentation_name_their_subject() -> None:
    findings = [
        f"{path.relative_to(ROOT)}: {line}"
        for path in texts()
        if path.suffix == ".md" and path.parent.name != "changes"
        for line in path.read_text().splitlines()
        if OPENING.match(line)
    ]
    assert findings == []


@pytest.mark.slow
def test_docstrings_of_classes_and_modules_name_the_thing() -> None:
    counts: Counter[str] = Counter()
    for path in (ROOT / "src" / "tallystick").rglob("*.py"):
        package = path.relative_to(ROOT / "src" / "tallystick").parts[0].removesuffix(".py")
        text = path.read_text()
        for node in ast.walk(ast.parse(text)) if OPENS_HEADLESS.search(text) else ():
            if isinstance(node, ast.Module | ast.ClassDef):
                counts[package] += HEADLESS.match(ast.get_docstring(node) or "") is not None
    assert {package for package, count in counts.items() if count > HEADLESS_MAX.get(package, 0)} == set()


@pytest.mark.slow
def test_names_are_no_participles() -> None:
    """Say what the value is. A name that is gone is taken off the list."""
    names = {
        folder: {
            name for path in (ROOT / folder).rglob("*.py") for name in read_names(path) if is_participle(name)
        }
        for folder in PARTICIPLES
    }
    assert names == PARTICIPLES


@pytest.mark.slow
def test_no_value_is_named_by_how_it_was_got() -> None:
    names = {
        (str(path.relative_to(ROOT)), name)
        for folder in ("src", "harness", "tools")
        for path in (ROOT / folder).rglob("*.py")
        for name in read_names(path)
        if name in BARE
    }
    assert names == {(path, "found") for path in FOUND}


@pytest.mark.slow
def test_names_are_words_of_the_field() -> None:
    names = {
        (str(path.relative_to(ROOT)), name)
        for folder in ("src", "harness", "tools")
        for path in (ROOT / folder).rglob("*.py")
        for name in read_names(path) | set(DEFINED.findall(path.read_text()))
        if PRIVATE & {word.lower() for word in WORD.findall(name)}
    }
    assert {name for _, name in names} == {
        "half",  # of a batch that is too large
        "halves",
        "HalfOpenOutcome",  # of connections, as TCP calls them
        "test_a_claim_sees_how_a_half_finished_commit_ends",
    }


def test_tests_are_named_by_their_subject() -> None:
    """Say which client, broker or caller a test is about."""
    findings = [
        f"{path.relative_to(ROOT)}: {name}"
        for path in (ROOT / "tests").rglob("*.py")
        for name in FUNCTION.findall(path.read_text())
        if UNNAMED.search(name)
    ]
    assert findings == []


def test_a_banned_word_is_found() -> None:
    assert BANNED.search("Whoever asks is told.")
    assert not BANNED.search("A nobodyish name.")


def test_a_participle_is_found() -> None:
    tree = ast.parse(
        "found = [each for asked in rows]\nself._taken, need = 1, 2\ndef read(made, record): ..."
    )
    assert {name for name in bindings(tree) if is_participle(name)} == {"found", "asked", "taken", "made"}
