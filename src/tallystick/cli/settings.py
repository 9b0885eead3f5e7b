"""NAME=VALUE and points in time on the command line."""

from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from typing import Final

import typer

_DIGITS_MAX: Final = 18
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


def named_values(texts: Iterable[str], option: str, *, strip: bool = True) -> dict[str, str]:
    """Values by name, the last of each; `strip`: blanks around a value say nothing.

    Raises: BadParameter, which names every text that is not NAME=VALUE.
    """
    pairs = named_pairs(texts, option)
    return {name.strip(): value.strip() if strip else value for name, value in pairs}


def named_pairs(texts: Iterable[str], option: str) -> tuple[tuple[str, str], ...]:
    """Names and values as they were given. Raises: as `named_values`."""
    parts = [(text, *text.partition("=")) for text in texts]
    wrong = [text for text, name, equals, _ in parts if not name or not equals]
    if wrong:
        raise typer.BadParameter(f"{option} {', '.join(wrong)}: is not NAME=VALUE")
    return tuple((name, value) for _, name, _, value in parts)


def partitions_in(texts: Iterable[str], option: str) -> dict[str, tuple[int, ...]]:
    """TOPIC, or TOPIC:0,1, as Kafka's tools have it; no numbers stand for all of them."""
    found: dict[str, tuple[int, ...]] = {}
    for text in texts:
        topic, colon, numbers = text.partition(":")
        parts = numbers.split(",") if colon else []
        if not topic or not all(part.isascii() and part.isdecimal() for part in parts):
            raise typer.BadParameter(f"{option} {text}: is not TOPIC or TOPIC:0,1")
        found[topic] = (*found.get(topic, ()), *map(int, parts))
    return found


def time_ms(text: str, option: str) -> int:
    """Milliseconds since 1970 of a number of them, or of an ISO 8601 time; UTC unless it says otherwise."""
    if text.isascii() and text.isdecimal() and len(text) <= _DIGITS_MAX:
        return int(text)
    try:
        at = datetime.fromisoformat(text)
        return ((at if at.tzinfo else at.replace(tzinfo=UTC)) - _EPOCH) // timedelta(milliseconds=1)
    except (ValueError, OverflowError):
        raise typer.BadParameter(
            f"{option} {text}: is neither a time like 2026-11-21T12:00:00Z nor a number of milliseconds"
        ) from None
