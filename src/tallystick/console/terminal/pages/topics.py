"""Topics in the terminal: the list, and the partitions of one. Pure."""

from collections.abc import Iterator
from functools import partial
from typing import Final

from tallystick.console.model.state import ConsoleState
from tallystick.console.terminal.lines import (
    Anchor,
    Block,
    Column,
    Paragraph,
    Row,
    Table,
    TextRole,
    badge,
    field,
    say,
)
from tallystick.console.terminal.places import Place, Section, place_of_records
from tallystick.console.views.page import PageInfo
from tallystick.console.views.texts import format_count, format_duration
from tallystick.console.views.topics import PartitionRow, TopicPage, TopicRow, build_topic, build_topics

_TOPICS: Final = (
    Column(head="Topic", width=22, width_max=70),
    Column(head="Partitions", width=10, rank=3, to_right=True),
    Column(head="Offsets", width=13, rank=2, to_right=True),
    Column(head="Open", width=6, rank=1, to_right=True),
    Column(head="Held back", width=10, rank=1, to_right=True),
    Column(head="", width=8, rank=4),
)
_PARTITIONS: Final = (
    Column(head="Partition", width=9, to_right=True),
    Column(head="Held back", width=9, rank=1, to_right=True),
    Column(head="For", width=11, rank=2, to_right=True),
    Column(head="Open", width=5, rank=4, to_right=True),
    Column(head="", width=13, rank=1),
    Column(head="Held by", width=16, width_max=48, rank=1),
    Column(head="Last stable", width=11, rank=5, to_right=True),
    Column(head="End", width=11, rank=6, to_right=True),
    Column(head="First offset", width=12, rank=7, to_right=True),
)


def build(state: ConsoleState, place: Place, now_ms: int) -> tuple[PageInfo, list[Block]]:
    """Build the list, or the page of one topic."""
    if place.key is not None:
        topic = build_topic(state, place.key, now_ms)
        return topic.info, list(_list_topic(topic))
    count = len(state.snapshot.topics.partition_counts)
    page = build_topics(state, now_ms, page_rows=max(1, count))
    wanted = place.filter.text.lower()
    empty = "The cluster has no topic, or none that the user of this console may describe."
    table = Table(
        columns=_TOPICS,
        items=[row for row in page.topics if wanted in row.name.lower()],
        make=_make_topic,
        name=lambda row: row.name,
        empty="No topic matches the filter." if wanted else empty,
    )
    return page.info, [table]


def _make_topic(row: TopicRow) -> Row:
    cells = (
        say(row.name, TextRole.STRONG),
        say(format_count(row.partition_count)),
        say(format_count(row.offset_count)),
        say(format_count(row.open_count)),
        say(format_count(row.held_back_count)),
        say("internal" if row.is_internal else "", TextRole.QUIET),
    )
    return Row(cells, Anchor(name=row.name, target=Place(section=Section.TOPICS, key=row.name)))


def _list_topic(topic: TopicPage) -> Iterator[Block]:
    yield field("Topic", topic.name)
    if not topic.is_known:
        text = "There is no topic of this name, or the user of this console may not describe it."
        yield Paragraph((say(text, TextRole.QUIET),))
        return
    yield Table(
        columns=_PARTITIONS,
        items=topic.partitions,
        make=partial(_make_partition, topic=topic.name),
        name=_name_partition,
        empty="It has no partitions.",
    )


def _name_partition(row: PartitionRow) -> str:
    return f"partition {row.partition}"


def _make_partition(row: PartitionRow, *, topic: str) -> Row:
    cells = (
        say(format_count(row.partition)),
        say(format_count(row.held_back_count)),
        say(format_duration(row.held_back_ms)),
        say(format_count(row.open_count)),
        badge(row.holder_health) if row.holder else say("-"),
        say(row.holder or "-"),
        say(format_count(row.last_stable)),
        say(format_count(row.end)),
        say(format_count(row.start)),
    )
    holder = Place(section=Section.TRANSACTIONS, key=row.holder) if row.holder else None
    reason = "Enter reads its newest records."
    if holder is not None:
        reason = f"{reason} t leads to what holds its readers back: {row.holder}"
    anchor = Anchor(
        name=_name_partition(row), target=place_of_records(topic, row.partition), holder=holder, reason=reason
    )
    return Row(cells, anchor)
