"""The records of a partition in the terminal, with what became of each, and one of them as a whole. Pure."""

from collections.abc import Iterator
from functools import partial
from typing import Final

from tallystick.console.lookup.record_page import RecordVerdict
from tallystick.console.model.commands import consume_record_command
from tallystick.console.model.state import ConsoleState
from tallystick.console.terminal.lines import (
    Anchor,
    Block,
    Column,
    Command,
    Paragraph,
    Row,
    Span,
    Table,
    TextRole,
    blank,
    field,
    heading,
    say,
    write_time,
)
from tallystick.console.terminal.places import Place, Section
from tallystick.console.views.page import PageInfo
from tallystick.console.views.page_request import PageRequest, build_topic_page
from tallystick.console.views.records import ContentView, RecordRow, RecordsView
from tallystick.console.views.texts import format_count, pluralize
from tallystick.console.views.topics import TopicPage, build_topic
from tallystick.kernel.ids import TopicPartition
from tallystick.kernel.value import replace

_RECORDS: Final = (
    Column(head="Offset", width=11, width_max=16, to_right=True),
    Column(head="Verdict", width=17),
    Column(head="", width=9),
    Column(head="Key", width=12, width_max=24, rank=1),
    Column(head="Value", width=20, width_max=120, rank=1),
    Column(head="Time", width=23, rank=2),
    Column(head="Producer", width=12, width_max=20, rank=3, to_right=True),
)
_ROLES: Final = {
    RecordVerdict.COMMITTED.value: TextRole.GOOD,
    RecordVerdict.ABORTED.value: TextRole.BAD,
    RecordVerdict.OPEN.value: TextRole.DOUBTFUL,
    RecordVerdict.ENDED.value: TextRole.DOUBTFUL,
}
_CELL_MAX: Final = 300
"""Characters of a key or value that its cell is made of; a line of a terminal has no more cells."""


def build(
    state: ConsoleState, place: Place, now_ms: int, answer: PageRequest | None
) -> tuple[PageInfo, list[Block]]:
    """Build the list of records, or the page of one of them.

    Args:
        answer: what was read for this page; None if that has not come yet.
    """
    if answer is None:
        topic = build_topic(state, place.key or "", now_ms)
    else:
        # The answer is of the state in which it was asked for; which transactions are open is told anew.
        topic = build_topic_page(replace(answer, state=state, query=place.query, now_ms=now_ms))
    return topic.info, list(_list_blocks(topic, place, None if answer is None else answer.now_ms))


def _list_blocks(topic: TopicPage, place: Place, read_ms: int | None) -> Iterator[Block]:
    yield field("Topic", topic.name)
    view = topic.records
    if view is None:
        text = topic.problem or "Being read."
        if read_ms is not None and not topic.problem:
            text = "There is no topic of this name, or the user of this console may not describe it."
        yield Paragraph((say(text, TextRole.BAD if topic.problem else TextRole.QUIET),))
        return
    if view.failure:
        yield Paragraph((say(view.failure, TextRole.BAD),))
    if place.record is not None:
        yield from _list_record(topic, view, place.record)
        return
    if view.end is not None:
        yield _describe_place(view)
        yield _describe_reading(view, read_ms)
    if view.records or not view.failure:
        yield Table(
            columns=_RECORDS,
            items=view.records,
            make=partial(_make_record, place=place),
            name=_name_record,
            empty=f"No record from offset {format_count(view.first)} on.",
        )


def _describe_place(view: RecordsView) -> Paragraph:
    offsets = f"{format_count(view.start)} to {format_count(view.end)} (excluded)"
    stable = f"readers of committed records wait at {format_count(view.last_stable)}."
    if view.last_stable == view.end:
        stable = "nothing is held back."
    return Paragraph((say(f"Partition {view.partition} has offsets {offsets}; {stable}", TextRole.QUIET),))


def _describe_reading(view: RecordsView, read_ms: int | None) -> Paragraph:
    """Say when the records were read, as they are not read again by themselves, and where there are more."""
    ways = [
        name
        for name, offset in (
            ("n for those after", view.next_offset),
            ("p for those before", view.previous_offset),
        )
        if offset is not None
    ]
    early = " It ends early, at the limit of bytes or time of one page." if view.is_cut else ""
    more = f" There are more: {', '.join(ways)}." if ways else ""
    text = f"Read at {write_time(read_ms)}, as {view.format}; r reads again.{early}{more}"
    return Paragraph((say(text, TextRole.QUIET),))


def _name_record(row: RecordRow) -> str:
    return f"record {row.offset}"


def _make_record(row: RecordRow, *, place: Place) -> Row:
    verdict = " ".join(filter(None, (row.verdict, row.marker)))
    cells = (
        say(format_count(row.offset)),
        say(verdict, _ROLES.get(row.verdict, TextRole.QUIET)),
        say("held back" if row.is_held_back else "", TextRole.QUIET),
        _make_cell(row.key),
        _make_cell(row.value),
        say(write_time(row.timestamp_ms)),
        say(row.producer or "-"),
    )
    anchor = Anchor(
        name=_name_record(row),
        target=replace(place, record=row.offset),
        holder=_find_transaction(row),
        reason=_explain(row),
    )
    return Row(cells, anchor)


def _make_cell(content: ContentView | None) -> Span:
    """Return the beginning of a key or value."""
    return say("null", TextRole.QUIET) if content is None else say(content.text[:_CELL_MAX])


def _find_transaction(row: RecordRow) -> Place | None:
    return Place(section=Section.TRANSACTIONS, key=row.transaction_key) if row.transaction_key else None


def _name_transaction(row: RecordRow) -> str:
    """Say what the transaction is that `t` leads to: the record may be of an earlier one of its producer."""
    return "its transaction" if row.verdict == RecordVerdict.OPEN.value else "what its producer has open now"


def _explain(row: RecordRow) -> str:
    """Say what the columns may have no room for."""
    by = f"by {row.producer}" if row.producer else "without a producer id"
    texts = [f"{row.verdict} {row.marker}".strip(), by, write_time(row.timestamp_ms)]
    if row.coordinator_epoch is not None:
        texts.append(f"coordinator epoch {row.coordinator_epoch}")
    if row.is_held_back:
        texts.append("readers of committed records do not see it yet")
    if row.header_count:
        texts.append(pluralize(row.header_count, "header"))
    lead = f" t leads to {_name_transaction(row)}." if row.transaction_key else ""
    return f"{', '.join(texts)}.{lead}"


# ----------------------------------------------------------------------------------- one record


def _list_record(topic: TopicPage, view: RecordsView, offset: int) -> Iterator[Block]:
    row = next((each for each in view.records if each.offset == offset), None)
    yield field("Partition", f"{view.partition}, offset {format_count(offset)}")
    if row is None:
        yield Paragraph((say("It is not among the records that were read.", TextRole.QUIET),))
        return
    clock = ", by the broker" if row.is_append_time else ", by its producer"
    yield field("Verdict", f"{row.verdict} {row.marker}".strip(), _ROLES.get(row.verdict, TextRole.NORMAL))
    if row.is_held_back:
        yield field("Held back", "readers of committed records do not see it yet")
    yield field("Time", f"{write_time(row.timestamp_ms)}{clock}")
    yield field("Producer", row.producer)
    if row.coordinator_epoch is not None:
        yield field("Coordinator epoch", format_count(row.coordinator_epoch))
    if row.transaction_key:
        target = _find_transaction(row)
        anchor = Anchor(name="transaction", target=target, holder=target)
        name = _name_transaction(row)
        label = f"{name[:1].upper()}{name[1:]}: "
        yield Paragraph((say(label), say(row.transaction_key, TextRole.STRONG)), anchor)
    yield from _list_content("Key", row.key, view.format)
    yield from _list_content("Value", row.value, view.format)
    for number, header in enumerate(row.headers):
        yield from _list_content(f"Header {header.name}", header.value, view.format, name=f"header {number}")
    if row.header_count > len(row.headers):
        yield Paragraph((say(f"{row.header_count - len(row.headers)} more headers", TextRole.QUIET),))
    if row.verdict != RecordVerdict.CONTROL.value:
        yield blank()
        yield heading("The whole record")
        at = TopicPartition(topic.name, view.partition)
        command = consume_record_command(topic.info.bootstrap_servers, at, offset)
        yield Command(command, Anchor(name="command", command=command), 4)


def _list_content(
    label: str, content: ContentView | None, shown_as: str, *, name: str = ""
) -> Iterator[Block]:
    """List a key, a value or a header. The cursor stands on its label, so that long ones are passed over."""
    yield blank()
    size = "null"
    if content is not None:
        cut = ", of which this is the beginning" if content.is_cut else ""
        size = f"{pluralize(content.size, 'byte')}{cut}, as {shown_as}"
    yield Paragraph(
        (say(f"{label}: ", TextRole.HEADING), say(size, TextRole.QUIET)), Anchor(name=name or label)
    )
    for text in () if content is None else content.text.split("\n"):
        yield Paragraph((say("  "), say(text)), indent=2)
