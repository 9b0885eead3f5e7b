"""Which records of which partition a page asks for, as its URL says. Pure."""

from collections.abc import Mapping
from datetime import UTC, datetime
from enum import Enum
from typing import Final

from tallystick.kernel.errors import TallystickError
from tallystick.kernel.ids import INT32_MAX, TopicPartition
from tallystick.kernel.value import Value

RECORDS_MAX: Final = 50
OFFSET_MAX: Final = 2**63 - 1


class Format(Enum):
    """How keys, values and headers are shown."""

    TEXT = "text"
    JSON = "json"
    HEX = "hex"


class RecordQuery(Value, kw_only=True):
    """One page of records.

    offset   the first one; None: the last page of the partition, unless a time is given
    time_ms  begin with the first record of this time or later
    """

    partition: TopicPartition
    offset: int | None = None
    time_ms: int | None = None


class BadQuery(TallystickError):
    """A part of the URL that says nothing; the text quotes it."""


def parse_query(topic: str, query: Mapping[str, str]) -> RecordQuery | None:
    """Return what a URL asks for; None if it asks for no records. Raises: BadQuery."""
    if not query.get("partition"):
        return None
    partition = _parse_number("partition", query["partition"], INT32_MAX)
    offset, time = query.get("offset", ""), query.get("time", "")
    return RecordQuery(
        partition=TopicPartition(topic, partition),
        offset=_parse_number("offset", offset, OFFSET_MAX) if offset else None,
        time_ms=_parse_time(time) if time and not offset else None,
    )


def parse_format(query: Mapping[str, str]) -> Format:
    """Return the wanted format; text if there is none of that name."""
    wanted = query.get("as", "")
    return next((each for each in Format if each.value == wanted), Format.TEXT)


def _parse_number(name: str, text: str, largest: int) -> int:
    if not (text.isascii() and text.isdecimal() and len(text) < 20 and int(text) <= largest):
        raise BadQuery(f"{name}: {text[:40]!r} is not a number from 0 to {largest}")
    return int(text)


def _parse_time(text: str) -> int:
    """Return milliseconds since the epoch, given as such or as ISO 8601; without a zone it is UTC."""
    if text.isascii() and text.isdecimal():
        return _parse_number("time", text, OFFSET_MAX)
    try:
        at = datetime.fromisoformat(text)
        return max(0, int((at if at.tzinfo else at.replace(tzinfo=UTC)).timestamp() * 1000))
    except (ValueError, OverflowError) as exc:
        raise BadQuery(f"time: {text[:40]!r} is neither 2026-11-25T10:00 nor milliseconds") from exc
