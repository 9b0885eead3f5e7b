"""Detection of statements and driver calls that end a block's transaction without the writer.

Words are refused before they are sent. They do not show what a procedure does; some drivers know without a
round trip that they are no longer in a transaction.
"""

import re
from collections.abc import Iterator
from typing import Any, Final

_MYSQL: Final = ("mysql", "mariadb")
# Of MariaDB's "SQL Statements That Cause an Implicit Commit" and MySQL's "Statements That Cause an Implicit
# Commit", each by its first word, and by the second one where other statements have the same first word.
_MYSQL_WORDS: Final = frozenset(
    (
        *("ALTER", "BEGIN", "CHANGE", "CREATE", "DROP", "FLUSH", "GRANT", "IMPORT", "INSTALL", "LOCK"),
        *("RENAME", "RESET", "RESTART", "REVOKE", "SHUTDOWN", "START", "STOP", "TRUNCATE", "UNINSTALL"),
        *("UNLOCK", "XA"),
    )
)
_MYSQL_ON_TABLES: Final = frozenset(("ANALYZE", "CHECK", "OPTIMIZE", "REPAIR"))
_MYSQL_PAIRS: Final = frozenset((("CACHE", "INDEX"), ("LOAD", "INDEX"), ("SET", "PASSWORD")))
_MYSQL_AUTOCOMMIT: Final = re.compile(r"\bAUTOCOMMIT\b`?\s*:?=(?!\s*(?:0|OFF|FALSE)\b)")

_ENDS: Final = frozenset(("COMMIT", "END", "ROLLBACK", "ABORT"))
_FIRST_WORD: Final = re.compile(r"\s*([A-Za-z]+)\b")
# Statements that may begin with these are judged immediately, unless there is another one behind them.
_PLAIN: Final = frozenset(("SELECT", "INSERT", "UPDATE", "DELETE", "WITH", "SAVEPOINT", "RELEASE"))

# One part of a text: what is quoted, a comment or its beginning, the end of a statement, or something else.
_POSTGRESQL_PARTS: Final = re.compile(
    r"""[eE]'(?:[^'\\]|\\.|'')*' | '(?:[^']|'')*' | "(?:[^"]|"")*" | `[^`]*` | \$(?P<tag>\w*)\$.*?\$(?P=tag)\$
    | --[^\n]* | /\* | ; | [^'"`$/;eE-]+ | .""",
    re.DOTALL | re.VERBOSE,
)
_MYSQL_PARTS: Final = re.compile(
    r"""'(?:[^'\\]|\\.|'')*' | "(?:[^"\\]|\\.|"")*" | `[^`]*` | --(?=\s|$)[^\n]* | \#[^\n]*
    | /\* | ; | [^'"`\#/;-]+ | .""",
    re.DOTALL | re.VERBOSE,
)


def ends_transaction(statement: str, dialect: str) -> bool:
    """Return whether a text has a statement that by its words ends the transaction that it is sent in.

    Sources: PostgreSQL, "COMMIT", "ROLLBACK", "PREPARE TRANSACTION"; SQLite, "Transaction"; the two lists
    above. BEGIN in a transaction is a warning of PostgreSQL's, and an error of SQLite's.
    """
    first = _FIRST_WORD.match(statement)
    if first is not None and first[1].upper() in _PLAIN and ";" not in statement:
        return False
    is_mysql = dialect in _MYSQL
    return any(_ends(each.upper().split(), is_mysql) for each in _split(statement, is_mysql=is_mysql))


def _ends(words: list[str], is_mysql: bool) -> bool:
    first, second = (*words, "", "")[:2]
    if first == "ROLLBACK":
        return "TO" not in words[1:3]
    if first in _ENDS:
        return True
    if not is_mysql:
        return (first, second) == ("PREPARE", "TRANSACTION")
    if "TEMPORARY" in words[1:4] or (first, second) == ("BEGIN", "NOT"):
        return False
    return (
        first in _MYSQL_WORDS
        or (first in _MYSQL_ON_TABLES and "TABLE" in words[1:3])
        or (first, second) in _MYSQL_PAIRS
        or (first == "SET" and _MYSQL_AUTOCOMMIT.search(" ".join(words)) is not None)
    )


def _split(text: str, *, is_mysql: bool) -> Iterator[str]:
    """Yield the statements of a text, without comments and with nothing in place of what is quoted."""
    parts = (_MYSQL_PARTS if is_mysql else _POSTGRESQL_PARTS).match
    kept: list[str] = []
    at = 0
    while at < len(text):
        part = parts(text, at)
        token = text[at] if part is None else part[0]
        at += len(token)
        if token == "/*":
            at = _find_comment_end(text, at, is_mysql=is_mysql)
            token = " "
        if token == ";":
            yield "".join(kept)
            kept.clear()
        elif token[0] in "'\"$" or token.startswith(("--", "#")) or token[:2] in ("e'", "E'"):
            kept.append(" ")
        else:
            kept.append(token)
    yield "".join(kept)


def _find_comment_end(text: str, at: int, *, is_mysql: bool) -> int:
    """Return where a comment ends that is open at `at`; right there if MySQL executes what is in it.

    PostgreSQL's comments nest. The version of an executable comment is skipped, and its end is no statement.
    """
    if is_mysql and (executed := re.compile(r"M?!\d*").match(text, at)):
        return executed.end()
    depth = 1
    for mark in re.compile(r"/\*|\*/").finditer(text, at):
        depth += 0 if is_mysql and mark[0] == "/*" else 1 if mark[0] == "/*" else -1
        if not depth:
            return mark.end()
    return len(text)


_IDLE: Final = 0  # libpq's PQTRANS_IDLE


def is_outside_transaction(driver: Any) -> bool:
    """Return whether a driver's connection knows, without a round trip, that it is in no transaction.

    Sources: psycopg and psycopg2, `connection.info.transaction_status`; asyncpg, `is_in_transaction()`;
    sqlite3 and aiosqlite, `in_transaction`. False of a driver that has none of them.
    """
    info = getattr(driver, "info", None)
    if info is not None and hasattr(info, "transaction_status"):
        return bool(info.transaction_status == _IDLE)
    if hasattr(driver, "is_in_transaction"):
        return not driver.is_in_transaction()
    return not getattr(driver, "in_transaction", True)
