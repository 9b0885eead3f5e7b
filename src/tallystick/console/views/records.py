"""The records of one partition, with what became of each, as the page of its topic shows them. Pure.

Whatever is in a record is shown as text: what would steer a page or the eye of its reader, such as controls
and characters that turn the direction of writing round, is shown as an escape.
"""

import json
from collections.abc import Mapping
from typing import Final

from tallystick.console.lookup.record_page import RECORDS_MAX, BrowsedRecord, Clip, Format, RecordPage
from tallystick.console.model.state import ConsoleState
from tallystick.console.views.texts import format_identity
from tallystick.console.views.transactions import build_key
from tallystick.kernel.value import Value

HEX_ROW: Final = 16
HEX_ROWS_MAX: Final = 32
CHARACTERS_MAX: Final = 2_500
"""Enough for HEX_ROWS_MAX rows."""


class ContentView(Value):
    """A key, a value or a header: the beginning of it as text, and its whole size in bytes."""

    text: str
    size: int
    is_cut: bool


class HeaderView(Value):
    """A header; `value` None: null."""

    name: str
    value: ContentView | None


class RecordRow(Value, kw_only=True):
    """One record.

    is_held_back     `read_committed` readers do not see it yet
    marker           of a control record, such as COMMIT
    transaction_key  of the open transaction of its producer in a URL, if one is open
    key, value       None: null
    """

    offset: int
    timestamp_ms: int
    is_append_time: bool
    verdict: str
    is_held_back: bool
    marker: str
    coordinator_epoch: int | None
    producer: str
    transaction_key: str
    key: ContentView | None
    value: ContentView | None
    headers: tuple[HeaderView, ...]
    header_count: int


class RecordsView(Value, kw_only=True):
    """A page of records.

    format           how keys, values and headers are shown: text, json or hex
    previous_offset  where the page before begins; None at the beginning of the partition
    next_offset      None at its end
    is_cut           the limit of bytes or of time was reached before the page was full
    """

    partition: int
    format: str
    formats: tuple[str, ...]
    first: int | None
    previous_offset: int | None
    next_offset: int | None
    start: int | None
    last_stable: int | None
    end: int | None
    is_cut: bool
    failure: str
    records: tuple[RecordRow, ...]


def view_records(state: ConsoleState, page: RecordPage, wanted: Format) -> RecordsView:
    """Build what a page shows of records."""
    keys: dict[int, str] = {
        each.views.writer.producer_id: build_key(each)
        for each in state.transactions
        if each.views.writer is not None and page.partition in each.views.partitions
    }
    has_previous = page.first is not None and page.start is not None and page.first > page.start
    has_next = page.next_offset is not None and page.end is not None and page.next_offset < page.end
    return RecordsView(
        partition=page.partition.partition,
        format=wanted.value,
        formats=tuple(each.value for each in Format),
        first=page.first,
        previous_offset=max(page.start or 0, (page.first or 0) - RECORDS_MAX) if has_previous else None,
        next_offset=page.next_offset if has_next else None,
        start=page.start,
        last_stable=page.last_stable,
        end=page.end,
        is_cut=page.is_cut,
        failure=page.failure,
        records=tuple(_build_row(each, wanted, keys) for each in page.records),
    )


def _build_row(record: BrowsedRecord, wanted: Format, keys: Mapping[int, str]) -> RecordRow:
    producer = record.producer
    return RecordRow(
        offset=record.offset,
        timestamp_ms=record.timestamp_ms,
        is_append_time=record.is_append_time,
        verdict=record.verdict.value,
        is_held_back=record.is_held_back,
        marker=record.marker,
        coordinator_epoch=record.coordinator_epoch,
        producer="" if producer is None else format_identity(producer),
        transaction_key="" if producer is None else keys.get(producer.producer_id, ""),
        key=show_content(record.key, wanted),
        value=show_content(record.value, wanted),
        headers=tuple(
            HeaderView(escape_text(name), show_content(value, wanted)) for name, value in record.headers
        ),
        header_count=record.header_count,
    )


def show_content(content: Clip | None, wanted: Format) -> ContentView | None:
    """Return the beginning of some bytes as text; None if they are null."""
    if content is None:
        return None
    size = len(content.data)
    if wanted is Format.HEX:
        text, size = _show_hex(content.data), min(size, HEX_ROW * HEX_ROWS_MAX)
    elif wanted is Format.JSON:
        text = _show_json(content)
    else:
        text = content.data.decode("utf-8", "backslashreplace")
    is_cut = size < content.size or len(text) > CHARACTERS_MAX
    return ContentView(escape_text(text[:CHARACTERS_MAX]), content.size, is_cut)


def escape_text(text: str) -> str:
    r"""Return the text with everything as an escape, such as \x1b, that is not printed; lines stay lines."""
    if text.isprintable():
        return text
    return "".join(
        each if each == "\n" or each.isprintable() else each.encode("unicode_escape").decode("ascii")
        for each in text
    )


def _show_json(content: Clip) -> str:
    """Return JSON with a field on each line; what is none, or is cut, as text."""
    text = content.data.decode("utf-8", "backslashreplace")
    if content.is_cut:
        return text
    try:
        return json.dumps(json.loads(content.data), indent=2, ensure_ascii=False)
    except (ValueError, RecursionError):
        return text


def _show_hex(data: bytes) -> str:
    """Return rows of sixteen bytes: position, hexadecimal, and what is ASCII."""
    rows = []
    for at in range(0, min(len(data), HEX_ROW * HEX_ROWS_MAX), HEX_ROW):
        row = data[at : at + HEX_ROW]
        ascii_text = "".join(chr(byte) if 0x20 <= byte < 0x7F else "." for byte in row)
        rows.append(f"{at:04x}  {row.hex(' '):<47}  {ascii_text}")
    return "\n".join(rows)
