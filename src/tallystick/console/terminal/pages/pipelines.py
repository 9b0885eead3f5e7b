"""Queries of Spark in the terminal: the last decision of each, and its participants. Pure."""

from collections.abc import Iterator
from functools import partial
from typing import Final

from tallystick.console.model.state import ConsoleState
from tallystick.console.terminal.lines import (
    Anchor,
    Block,
    Column,
    Command,
    Paragraph,
    Row,
    Table,
    TextRole,
    badge,
    blank,
    field,
    say,
    table_of,
    write_time,
)
from tallystick.console.terminal.places import Place, Section
from tallystick.console.views.page import PageInfo
from tallystick.console.views.pipelines import BatchView, ParticipantView, PrefixView, build_pipelines
from tallystick.console.views.texts import format_count

_PARTICIPANTS: Final = (
    Column(head="Participant", width=28, width_max=70),
    Column(head="Now", width=15, rank=1),
    Column(head="Producer", width=12, rank=2, to_right=True),
)
_UNDECIDED: Final = (Column(head="Open, and in no decision", width=28, width_max=70),)
BATCHES_MAX: Final = 10


def build(state: ConsoleState, place: Place, now_ms: int) -> tuple[PageInfo, list[Block]]:
    """Build the page."""
    page = build_pipelines(state, now_ms)
    blocks: list[Block] = []
    for each in page.prefixes:
        blocks += _list_prefix(each)
    if not page.prefixes:
        text = "No decision of a Spark query was found. They are read from --decisions TOPIC, and the stores."
        blocks.append(Paragraph((say(text, TextRole.QUIET),)))
    return page.info, blocks


def _list_prefix(each: PrefixView) -> Iterator[Block]:
    name = f"prefix {each.prefix} {each.source}"
    anchor = Anchor(name=name, command=each.resolve_command)
    yield Paragraph((badge(each.health), say("  "), say(each.prefix, TextRole.HEADING)), anchor, 4)
    batch = "-" if each.batch_id is None else str(each.batch_id)
    yield field("Query", each.query_id)
    yield field("Last batch", f"{batch}, decided {write_time(each.decided_ms)}")
    yield field("Decision", f"number {each.decision_number}" if each.decision_number else None)
    yield field("Completed", None if each.missing else "yes" if each.is_complete else "not noted yet")
    yield field("Mode", each.mode)
    yield field("Decisions in", each.source)
    yield field("Offsets", each.offsets)
    if each.missing:
        yield Paragraph((say(each.missing),), None, 4)
    if each.resolve_command:
        yield Command(each.resolve_command, Anchor(name=f"{name} resolve", command=each.resolve_command))
    if each.participants:
        yield table_of([_make_participant(name, one) for one in each.participants], _PARTICIPANTS, "")
    if each.undecided:
        yield Table(
            columns=_UNDECIDED,
            items=each.undecided,
            make=partial(_make_undecided, prefix=name),
            name=partial(_name_undecided, prefix=name),
            empty="",
        )
    if each.batches:
        yield field("Rows by batch", "; ".join(map(_format_batch, each.batches[:BATCHES_MAX])))
    if each.writes:
        yield field("Rows by write", "; ".join(map(_format_batch, each.writes[:BATCHES_MAX])))
    yield blank()


def _format_batch(batch: BatchView) -> str:
    return f"{batch.name}: {' + '.join(map(format_count, batch.row_counts)) or '-'}"


def _name_undecided(key: str, *, prefix: str) -> str:
    return f"{prefix} undecided {key}"


def _make_undecided(key: str, *, prefix: str) -> Row:
    anchor = Anchor(
        name=_name_undecided(key, prefix=prefix), target=Place(section=Section.TRANSACTIONS, key=key)
    )
    return Row((say(key, TextRole.STRONG),), anchor)


def _make_participant(name: str, one: ParticipantView) -> Row:
    cells = (say(one.transactional_id, TextRole.STRONG), say(one.outcome), say(one.producer))
    target = Place(section=Section.TRANSACTIONS, key=one.key)
    return Row(cells, Anchor(name=f"{name} {one.transactional_id}", target=target))
