"""A text that must not be seen: a password, a private key, a token.

Kafka's PASSWORD settings hold one. It prints as `[hidden]`, as Kafka's does, wherever it ends up: in a repr,
a log line, an exception, the plan of a Spark query. Only `reveal` gives the text, so a search for that word
lists every place that has it.
"""

from hmac import compare_digest
from typing import Final

HIDDEN: Final = "[hidden]"


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
