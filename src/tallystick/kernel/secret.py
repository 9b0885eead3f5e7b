"""A text that must not be seen: a password, a private key, a token.

Kafka's PASSWORD settings hold one. It prints as `[hidden]`, as Kafka's does, wherever it ends up: in a repr,
a log line, an exception, the plan of a Spark query. Only `reveal` gives the text, so a search for that word
lists every place that has it.
"""

import re
from hmac import compare_digest
from typing import Final

HIDDEN: Final = "[hidden]"

# A password ends at the last @ before a path; one with a slash, that should have been %2F, at the next @, if
# what follows the colon is no port. A user may have an @, as Azure's had.
_PASSWORD: Final = re.compile(
    r"(://[^\s'\"<>/?#:\[]*:)(?!\d*(?:[/?#,\s]|$))(?:[^\s'\"<>/?#]*|(?:(?!://)[^\s'\"<>])*?)@"
)
# Without a colon it may be a token; elsewhere it is a user, or a container of Azure's.
_TOKEN: Final = re.compile(r"(https?://)[^\s'\"<>/?#:@]+@", re.IGNORECASE)
# A name ends where the next one begins, and is short: from each of many semicolons to the end of a long text
# would take hours.
_PARAMETER: Final = re.compile(
    r"([?&;](?:[^=&;?\s]{0,64}(?:password|passwd|pwd|secret|token)[^=&;?\s]{0,64}|sig)=)[^&\s'\"]+",
    re.IGNORECASE,
)


def hide_logins(text: str) -> str:
    """Return a text without the passwords and tokens of the URLs in it.

    What a library says of a URL, a person reads in a log, a terminal or Spark's UI.
    """
    if "://" not in text:
        return text
    text = _TOKEN.sub(rf"\1{HIDDEN}@", _PASSWORD.sub(rf"\1{HIDDEN}@", text))
    return _PARAMETER.sub(rf"\1{HIDDEN}", text)


def chain(error: BaseException) -> BaseException | None:
    """Return an error as the cause of another; None if the traceback of it would show a login."""
    each: BaseException | None = error
    while each is not None:
        text = str(each)
        if hide_logins(text) != text:
            return None
        each = each.__cause__ or (None if each.__suppress_context__ else each.__context__)
    return error


class Secret:
    """A secret text. Compares in constant time, and pickles with its content: Spark sends it to executors."""

    __slots__ = ("_text",)

    def __init__(self, text: str) -> None:
        self._text = text

    def reveal(self) -> str:
        """Return the text. Pass it on to what needs it, and nowhere else."""
        return self._text

    def __repr__(self) -> str:
        return f"Secret({HIDDEN})"

    def __str__(self) -> str:
        return HIDDEN

    def __format__(self, spec: str) -> str:
        return format(HIDDEN, spec)

    def __bool__(self) -> bool:
        return bool(self._text)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Secret):
            return NotImplemented
        return compare_digest(self._text.encode(), other._text.encode())

    def __hash__(self) -> int:
        return hash((Secret, self._text))

    def __reduce__(self) -> tuple[type["Secret"], tuple[str]]:
        return Secret, (self._text,)
