"""Numbers and times as people read them. Pure."""

from datetime import datetime, timedelta
from typing import Final

from tallystick.kernel.ids import ProducerIdAndEpoch

_EPOCH: Final = datetime(1970, 1, 1)  # noqa: DTZ001 - UTC, and printed without an offset
_BYTE_UNITS: Final = ("KiB", "MiB", "GiB", "TiB")
_UNITS: Final = ((86_400_000, "d"), (3_600_000, "h"), (60_000, "min"), (1_000, "s"))


def format_duration(ms: int | None) -> str:
    """Return a duration in its two largest units, such as `2 min 14 s`; `-` for None."""
    if ms is None:
        return "-"
    if ms < 1_000:
        return f"{ms} ms"
    for at, (size, unit) in enumerate(_UNITS):
        if ms < size:
            continue
        whole, rest = divmod(ms, size)
        smaller = _UNITS[at + 1] if at + 1 < len(_UNITS) else None
        count = 0 if smaller is None else rest // smaller[0]
        return f"{whole} {unit}" if not count or smaller is None else f"{whole} {unit} {count} {smaller[1]}"
    return f"{ms} ms"


def format_bytes(size: int | None) -> str:
    """Return a number of bytes in its largest unit, such as `6.1 MiB`; `-` for None."""
    if size is None:
        return "-"
    if size < 1024:
        return f"{size} bytes"
    power = min((size.bit_length() - 1) // 10, len(_BYTE_UNITS))
    return f"{size / 1024**power:.1f} {_BYTE_UNITS[power - 1]}"


def format_count(number: int | None) -> str:
    """Return a number with a separator for thousands; `-` for None."""
    return "-" if number is None else f"{number:,}"


def pluralize(count: int, noun: str, plural: str = "") -> str:
    """Return a count with its noun, such as `1 store`, `2 stores`. `plural`: where it is not noun and `s`."""
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {plural or f'{noun}s'}"


def format_time(ms: int | None) -> str:
    """Return a time in UTC, as every page's footer says; `-` for None.

    A producer chooses the timestamps of its records, so a time may be one that no calendar has.
    """
    if ms is None:
        return "-"
    try:
        return (_EPOCH + timedelta(milliseconds=ms)).isoformat(" ", "milliseconds")
    except OverflowError:
        return f"{ms} ms"


def format_machine_time(ms: int | None) -> str:
    """Return a time for `<time datetime>`, such as `2026-11-25T10:00:00.000Z`; "" where there is none."""
    if ms is None:
        return ""
    try:
        return (_EPOCH + timedelta(milliseconds=ms)).isoformat("T", "milliseconds") + "Z"
    except OverflowError:
        return ""


def format_ago(ms: int, now_ms: int) -> str:
    """Return how long ago a time was, in its largest unit, such as `3 min ago`."""
    for size, unit in _UNITS:
        if now_ms - ms >= size:
            return f"{(now_ms - ms) // size} {unit} ago"
    return "just now"  # or ahead of this machine's clock


def format_identity(identity: ProducerIdAndEpoch) -> str:
    """Return a producer id and epoch as a database stores them (KIP-939), such as `5:3`."""
    return f"{identity.producer_id}:{identity.epoch}"
