"""Generate the blocking twin of each module that is written once, for asyncio.

    python -m tools.async_to_sync           write the twins (`make format` does it)
    python -m tools.async_to_sync --check   fail if one of them differs (the gate does it)

The translation works on tokens, so comments stay: `async` and `await` go, and names change as listed here.
What no renaming can express (a queue, a driver's raw connection) is a pair of functions in a module that is
written by hand; the asyncio one has the suffix `_async`.
"""

import ast
import io
import re
import subprocess
import sys
import tokenize
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from difflib import unified_diff
from itertools import pairwise
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[1]
SOURCES: Final = ROOT / "src/tallystick"
RUFF: Final = Path(sys.executable).parent / "ruff"


@dataclass(frozen=True, kw_only=True)
class Twin:
    """A module and the one that is generated from it.

    docstring  the first line of the twin; the source's whole docstring is used if empty
    texts      replaced before the translation, comments and strings included; each must occur
    """

    source: str
    target: str
    docstring: str = ""
    texts: Mapping[str, str] = field(default_factory=dict)


TWINS: Final = (
    Twin(
        source="client/aio/producer.py",
        target="client/blocking/producer.py",
        docstring="Blocking producer, `tallystick.Producer`: records and transactions without a loop.",
        texts={
            "on the loop; in a thread, where they may wait, until one has succeeded for a topic and types.": (
                "in the thread that sends."
            ),
            "Tasks of one loop may share one": "Threads may share one",
            "Callbacks run on the loop,\n    so they must not wait.": (
                "Callbacks run on the engine\n    thread, where calls that wait are refused."
            ),
            "when it is done, on the loop.": "when done, on the engine thread.",
            "of one task": "of one thread",
            "await it.": "`result(timeout)`.",
        },
    ),
    Twin(
        source="client/aio/consumer.py",
        target="client/blocking/consumer.py",
        docstring="Blocking consumer, `tallystick.Consumer`: reads alone or in a group, without a loop.",
        texts={
            "client.consumer.rebalance import RebalanceListener": (
                "client.blocking.consumer_runner import RebalanceListener as RebalanceListener"
            ),
            "on the loop, or in a thread while they may wait for a schema.": "in the thread that polls.",
            "It belongs to one loop, and to one task at a time; any may call `wakeup`.": (
                "For one thread at a time, as in Kafka: a second one is refused. Any thread and signal\n"
                "    handler may call `wakeup`."
            ),
            "or the error, on the loop.": "or the error, on the engine thread.",
        },
    ),
    Twin(
        source="admin/aio.py",
        target="admin/client.py",
        docstring="Blocking administration client, whose calls run on the engine thread.",
        texts={"Belongs to the event loop it is first used on.": "Safe to share between threads."},
    ),
    Twin(
        source="dualwrite/aio/consume.py",
        target="dualwrite/blocking/consume.py",
        texts={
            "tallystick.client.consumer.rebalance import RebalanceListener": (
                "tallystick.client.blocking.consumer import RebalanceListener"
            ),
            "used by one task": "used by one thread",
        },
    ),
    Twin(source="dualwrite/aio/participants.py", target="dualwrite/blocking/participants.py"),
    Twin(source="dualwrite/aio/key_check.py", target="dualwrite/blocking/key_check.py"),
    Twin(
        source="dualwrite/aio/leases.py",
        target="dualwrite/blocking/leases.py",
        texts={
            "import asyncio\n": "",
            "asyncio.Lock": "threading.Lock",
            "asyncio.Event": "threading.Event",
        },
    ),
    Twin(
        source="dualwrite/aio/pool.py",
        target="dualwrite/blocking/pool.py",
        texts={
            "import asyncio": "from queue import LifoQueue",
            "asyncio.LifoQueue": "LifoQueue",
            "the tasks of one event loop": "threads",
        },
    ),
    Twin(source="dualwrite/aio/recovery_recipe.py", target="dualwrite/blocking/recovery_recipe.py"),
    Twin(source="dualwrite/aio/session.py", target="dualwrite/blocking/session.py"),
    Twin(
        source="dualwrite/aio/writer.py",
        target="dualwrite/blocking/writer.py",
        texts={
            "import asyncio": "import time",
            "asyncio.sleep": "time.sleep",
            "Cancelling the task counts as an exception in the block. Cancelled while": (
                "An exception from a signal handler counts as the block's. If it arrives while"
            ),
        },
    ),
    Twin(
        source="dualwrite/stores/sql_async.py",
        target="dualwrite/stores/sql.py",
        docstring="Store for PostgreSQL, MariaDB and MySQL (PyMySQL) and SQLite, through SQLAlchemy 2.",
        texts={
            "An asyncio store": "A store",
            "postgresql+asyncpg": "postgresql+psycopg",
        },
    ),
)

NAMES: Final = {
    "AbstractAsyncContextManager": "AbstractContextManager",
    "AsyncExitStack": "ExitStack",
    "AsyncIterator": "Iterator",
    "AsyncTransaction": "NestedTransaction",  # SQLAlchemy's savepoint
    "__aenter__": "__enter__",
    "__aexit__": "__exit__",
    "__aiter__": "__iter__",
    "async_sessionmaker": "sessionmaker",
    "asynccontextmanager": "contextmanager",
    "create_async_engine": "create_engine",
    "enter_async_context": "enter_context",
    "push_async_callback": "callback",
}
MODULES: Final = {
    "tallystick.admin.aio": "tallystick.admin.client",
    "tallystick.client.aio.consumer": "tallystick.client.blocking.consumer",
    "tallystick.client.aio.consumer_runner": "tallystick.client.blocking.consumer_runner",
    "tallystick.client.aio.producer": "tallystick.client.blocking.producer",
    "tallystick.client.aio.producer_runner": "tallystick.client.blocking.producer_runner",
    "tallystick.dualwrite.aio": "tallystick.dualwrite.blocking",
}

_WORD: Final = re.compile(r"\b[A-Za-z_]\w*\b")
_ASYNC_IN_TEXT: Final = re.compile(r"\b(?:await|async(?= (?:def|with|for)\b)) ")
_ARTICLE: Final = re.compile(r"(?<=\b[Aa])n (?=Async[A-Z]|async_)")
_CLASS: Final = re.compile(r"(_?)Async(?=[A-Z])")
_MODULE: Final = re.compile(
    "|".join(rf"\b{re.escape(name)}\b" for name in sorted(MODULES, key=len, reverse=True))
)
_SQLALCHEMY: Final = re.compile(r"^from sqlalchemy\.ext\.asyncio import (.+)$", re.MULTILINE)
# From Python 3.12 on the texts in an f-string are tokens of their own.
_TEXTS: Final = {tokenize.STRING, tokenize.COMMENT, getattr(tokenize, "FSTRING_MIDDLE", tokenize.STRING)}
_LAYOUT: Final = {tokenize.NEWLINE, tokenize.NL, tokenize.INDENT, tokenize.DEDENT, tokenize.COMMENT}
_KEYWORDS_BEFORE_GROUP: Final = {
    "return",
    "in",
    "not",
    "and",
    "or",
    "if",
    "else",
    "yield",
    "assert",
    "is",
    "raise",
}

Position = tuple[int, int]
Edit = tuple[Position, Position, str]


def translate_name(name: str) -> str:
    """Return a name's counterpart in blocking code."""
    if name in NAMES:
        return NAMES[name]
    return _CLASS.sub(r"\1", name, count=1).removesuffix("_async")


def translate(source: str) -> str:
    """Return asyncio code as blocking code, not formatted yet."""
    lines = source.splitlines(keepends=True)
    for start, end, text in sorted(_find_edits(source), reverse=True):
        first, last = lines[start[0] - 1], lines[end[0] - 1]
        lines[start[0] - 1 : end[0]] = [first[: start[1]] + text + last[end[1] :]]
    text = _SQLALCHEMY.sub(_import_from_sqlalchemy, "".join(lines))
    return _MODULE.sub(lambda match: MODULES[match[0]], text)


def _import_from_sqlalchemy(match: re.Match[str]) -> str:
    """Return imports of the blocking classes, which SQLAlchemy has in two places."""
    names = match[1].split(", ")
    return "\n".join(f"from sqlalchemy{'.orm' * (name == 'Session')} import {name}" for name in names)


def _find_edits(source: str) -> Iterator[Edit]:
    tokens = list(tokenize.generate_tokens(io.StringIO(source).readline))
    code = [token for token in tokens if token.type not in _LAYOUT]
    yield from _find_groups(source, code)
    for token, after in pairwise(code):
        if token.type == tokenize.NAME and token.string in ("async", "await"):
            yield token.start, after.start, ""
        elif token.type == tokenize.NAME and token.string == "Awaitable" and after.string == "[":
            yield token.start, after.end, ""
            closing = _find_closing(code, code.index(after))
            yield closing.start, closing.end, ""
        elif token.type == tokenize.NAME and (name := translate_name(token.string)) != token.string:
            yield token.start, token.end, name
    for token in tokens:
        if token.type in _TEXTS:
            text = _ARTICLE.sub(" ", _ASYNC_IN_TEXT.sub("", token.string))
            text = _WORD.sub(lambda match: translate_name(match[0]), text)
            if text != token.string:
                yield token.start, token.end, text


def _find_groups(source: str, code: list[tokenize.TokenInfo]) -> Iterator[Edit]:
    """Remove the parentheses of `(await call()).attribute`, which only `await` needs."""
    ends = {
        (node.lineno, node.col_offset): (node.end_lineno, node.end_col_offset)
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.Await)
    }
    for at, (before, opening, token) in enumerate(zip(code, code[1:], code[2:], strict=False), 1):
        if opening.string != "(" or token.string != "await" or opening.start[0] != token.start[0]:
            continue
        is_call = before.string in (")", "]") or (
            before.type == tokenize.NAME and before.string not in _KEYWORDS_BEFORE_GROUP
        )
        closing = _find_closing(code, at)
        if not is_call and ends[token.start] == closing.start:
            yield opening.start, opening.end, ""
            yield closing.start, closing.end, ""


def _find_closing(code: list[tokenize.TokenInfo], opening: int) -> tokenize.TokenInfo:
    """Return the bracket that closes the one at an index."""
    depth = 0
    for token in code[opening:]:
        depth += (token.string in ("(", "[", "{")) - (token.string in (")", "]", "}"))
        if depth == 0:
            return token
    raise ValueError(f"line {code[opening].start[0]}: a bracket is not closed")


def generate(twin: Twin) -> str:
    """Return the text of a twin, in the house format."""
    source = (SOURCES / twin.source).read_text()
    for text, other in twin.texts.items():
        if text not in source:
            raise ValueError(f"{twin.source} does not contain {text!r}")
        source = source.replace(text, other)
    if twin.docstring:
        source = re.sub(r'\A""".*?"""', lambda _: f'"""{twin.docstring}"""', source, flags=re.DOTALL)
    header = (
        f"# Generated from {twin.source} by tools/async_to_sync.py. Do not edit it:\n"
        "# change the source and run `make format`.\n"
    )
    name = str(SOURCES / twin.target)
    fixes = ("check", "--fix", "--unsafe-fixes", "--quiet", "--select", "I,F401,UP028")
    sorted_text = _run_ruff(name, header + translate(source), *fixes)
    return _run_ruff(name, sorted_text, "format")


def _run_ruff(name: str, text: str, command: str, *options: str) -> str:
    arguments: list[str] = [str(RUFF), command, "--no-cache", *options, "--stdin-filename", name, "-"]
    result = subprocess.run(arguments, input=text, capture_output=True, text=True, check=False, cwd=ROOT)
    if result.returncode:
        raise ValueError(f"{name}: {result.stderr or result.stdout}")
    return result.stdout


def main() -> int:
    with ThreadPoolExecutor() as pool:
        texts = list(pool.map(generate, TWINS))
    differs = False
    for twin, text in zip(TWINS, texts, strict=True):
        path = SOURCES / twin.target
        before = path.read_text() if path.exists() else ""
        if "--check" not in sys.argv[1:]:
            path.write_text(text)
        elif text != before:
            differs = True
            print(f"{path.relative_to(ROOT)} is not what {twin.source} generates: run `make format`")
            print(
                "".join(unified_diff(before.splitlines(True), text.splitlines(True), "is", "should be", n=1))
            )
    return int(differs)


if __name__ == "__main__":
    sys.exit(main())
