"""Groups in the terminal: the list with true lag, and partitions and members of one. Pure."""

from collections.abc import Iterator
from typing import Final

from tallystick.console.actions.request import find_reset
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
    blank,
    field,
    heading,
    say,
)
from tallystick.console.terminal.places import Place, Section
from tallystick.console.views.groups import (
    GroupPage,
    GroupPartitionRow,
    GroupRow,
    MemberRow,
    build_group,
    build_groups,
)
from tallystick.console.views.page import PageInfo
from tallystick.console.views.texts import format_count, pluralize

_GROUPS: Final = (
    Column(head="Group", width=20, width_max=60),
    Column(head="State", width=12, width_max=20, rank=2),
    Column(head="Members", width=7, rank=4, to_right=True),
    Column(head="To read", width=10, rank=1, to_right=True),
    Column(head="Held back", width=9, rank=1, to_right=True),
    Column(head="Pending", width=7, rank=3, to_right=True),
    Column(head="Offsets behind", width=14, rank=5, to_right=True),
    Column(head="Protocol", width=9, rank=6),
)
_PARTITIONS: Final = (
    Column(head="Partition", width=16, width_max=50),
    Column(head="To read", width=9, rank=1, to_right=True),
    Column(head="Held back", width=9, rank=1, to_right=True),
    Column(head="Pending", width=16, rank=2),
    Column(head="Committed", width=11, rank=3, to_right=True),
    Column(head="Passed over", width=32, rank=4),
    Column(head="Last stable", width=11, rank=5, to_right=True),
    Column(head="End", width=11, rank=6, to_right=True),
    Column(head="Client", width=16, width_max=40, rank=7),
)
_MEMBERS: Final = (
    Column(head="Client", width=18, width_max=40),
    Column(head="Member", width=20, width_max=50, rank=1),
    Column(head="Host", width=14, width_max=24, rank=2),
    Column(head="Partitions", width=10, rank=3, to_right=True),
    Column(head="Instance", width=14, width_max=30, rank=4),
)


def build(
    state: ConsoleState, place: Place, now_ms: int, *, allows_actions: bool = False
) -> tuple[PageInfo, list[Block]]:
    """Build the list, or the page of one group."""
    if place.key is not None:
        group = build_group(state, place.key, now_ms)
        return group.info, list(_list_group(group, allows_actions=allows_actions))
    count = len(state.snapshot.groups.groups)
    page = build_groups(state, now_ms, page_rows=max(1, count))
    wanted = place.filter.text.lower()
    empty = "The cluster has no group, or none that the user of this console may describe."
    table = Table(
        columns=_GROUPS,
        items=[row for row in page.groups if wanted in row.group_id.lower()],
        make=_make_group,
        name=lambda row: row.group_id,
        empty="No group matches the filter." if wanted else empty,
    )
    text = "To read: data records up to the last stable offset; - where they were not counted."
    return page.info, [table, blank(), Paragraph((say(text, TextRole.QUIET),))]


def _make_group(row: GroupRow) -> Row:
    cells = (
        say(row.group_id, TextRole.STRONG),
        say(row.state),
        say(format_count(row.member_count)),
        say(format_count(row.data_lag)),
        say(format_count(row.held_back_count)),
        say(format_count(row.pending_count)),
        say(format_count(row.offset_lag)),
        say(row.protocol or "-"),
    )
    return Row(cells, Anchor(name=row.group_id, target=Place(section=Section.GROUPS, key=row.group_id)))


def _list_group(page: GroupPage, *, allows_actions: bool) -> Iterator[Block]:
    yield field("Group", page.group_id)
    if page.row is None:
        text = "There is no group of this name, or the user of this console may not describe it."
        yield Paragraph((say(text, TextRole.QUIET),))
        return
    yield field("State", page.row.state)
    yield field("To read", format_count(page.row.data_lag))
    yield field("Held back", f"{format_count(page.row.held_back_count)}, by open transactions")
    yield field("Pending offsets", f"in {pluralize(page.row.pending_count, 'partition')}")
    yield blank()
    yield heading("Partitions")
    yield Table(
        columns=_PARTITIONS,
        items=page.partitions,
        make=_make_partition,
        name=_name_partition,
        empty="It has committed no offset.",
    )
    yield blank()
    yield heading("Members")
    yield Table(
        columns=_MEMBERS,
        items=page.members,
        make=_make_member,
        name=_name_member,
        empty="The group has no members.",
    )
    yield blank()
    yield Command(page.command, Anchor(name="command", command=page.command))
    if allows_actions:
        action = find_reset(page.group_id)
        target = Place(section=Section.GROUPS, action=action)
        anchor = Anchor(name="reset", target=target, action=action)
        yield Paragraph((say("Reset its offsets: where they are to go is asked first"),), anchor)


def _name_partition(row: GroupPartitionRow) -> str:
    return f"partition {row.partition}"


def _make_partition(row: GroupPartitionRow) -> Row:
    passed = f"{pluralize(row.passed_markers, 'marker')}, {format_count(row.passed_aborted)} aborted"
    cells = (
        say(row.partition, TextRole.STRONG),
        say(format_count(row.data_lag)),
        say(format_count(row.held_back_count)),
        say("in a transaction" if row.is_pending else "-"),
        say(format_count(row.committed)),
        say(passed if row.passed_markers or row.passed_aborted else "-"),
        say(format_count(row.last_stable)),
        say(format_count(row.end)),
        say(row.member or "-"),
    )
    target = Place(section=Section.TOPICS, key=row.partition.rpartition("-")[0])
    return Row(cells, Anchor(name=_name_partition(row), target=target, reason=passed))


def _name_member(row: MemberRow) -> str:
    return f"member {row.member_id}"


def _make_member(row: MemberRow) -> Row:
    cells = (
        say(row.client_id, TextRole.STRONG),
        say(row.member_id),
        say(row.host),
        say(format_count(row.partition_count)),
        say(row.instance_id or "-"),
    )
    return Row(cells, Anchor(name=_name_member(row), reason=row.member_id))
