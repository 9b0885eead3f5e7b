"""Groups with their true lag: records that a reader of committed records has still to be given. Pure.

The end of a partition less the committed offset counts markers, aborted records, and records that no reader
of committed records may see yet. Such a lag never reaches 0 in a topic that is written in transactions. Here
it is counted in data records up to the last stable offset, and what was passed over is said.
"""

from collections.abc import Iterable, Mapping
from typing import Final

from tallystick.console.model import commands
from tallystick.console.model.snapshot import GroupOffset, PartitionOffsets
from tallystick.console.model.state import ConsoleState
from tallystick.console.model.transactions import AssessedTransaction
from tallystick.console.views.holders import Holder, describe_holder, describe_holders, find_blockers
from tallystick.console.views.lists import PAGE_ROWS, ListQuery, select_rows
from tallystick.console.views.ordering import Keys, sort_rows
from tallystick.console.views.page import PageInfo, describe_page
from tallystick.kernel.ids import TopicPartition
from tallystick.kernel.value import Value, replace


class GroupRow(Value, kw_only=True):
    """A group. Lags are sums over its partitions.

    data_lag          data records to be read; None where they were not counted in one of them
    offset_lag        last stable offset less committed offset: what most tools show, markers included
    held_back_count   records behind the last stable offset, which the group waits for
    pending_count     partitions with offsets in a transaction that is not decided yet
    blockers          the transactions that hold those records back, the worst first
    """

    group_id: str
    state: str
    protocol: str
    member_count: int
    data_lag: int | None
    offset_lag: int
    held_back_count: int
    pending_count: int
    blockers: tuple[Holder, ...]


SORT_KEYS: Final[Keys[GroupRow]] = {
    "name": lambda row: row.group_id,
    "state": lambda row: row.state,
    "members": lambda row: row.member_count,
    "lag": lambda row: row.data_lag,
    "offset_lag": lambda row: row.offset_lag,
    "held_back": lambda row: row.held_back_count,
    "pending": lambda row: row.pending_count,
}


class GroupPartitionRow(Value, kw_only=True):
    """A group's progress in one partition. `blocker`: the transaction that its readers wait for."""

    partition: str
    topic: str
    number: int
    member: str
    committed: int
    last_stable: int | None
    end: int | None
    data_lag: int | None
    passed_markers: int
    passed_aborted: int
    held_back_count: int | None
    blocker: Holder | None
    is_pending: bool


class MemberRow(Value, kw_only=True):
    """A member of a group."""

    member_id: str
    instance_id: str | None
    client_id: str
    host: str
    partition_count: int


class GroupsPage(Value, kw_only=True):
    """The groups that the URL asks for, a page of them; the largest lag first."""

    info: PageInfo
    query: ListQuery
    groups: tuple[GroupRow, ...]
    match_count: int
    page_count: int


class GroupPage(Value, kw_only=True):
    """One group. `row` is None if the cluster has none of this name."""

    info: PageInfo
    group_id: str
    row: GroupRow | None
    partitions: tuple[GroupPartitionRow, ...]
    members: tuple[MemberRow, ...]
    command: str


def build_groups(
    state: ConsoleState, now_ms: int, query: ListQuery | None = None, *, page_rows: int = PAGE_ROWS
) -> GroupsPage:
    """Build the list of groups, in pages of `page_rows`."""
    rows = [_build_row(state, group_id, {}) for group_id in state.snapshot.groups.groups]
    rows.sort(key=lambda row: (-(row.offset_lag if row.data_lag is None else row.data_lag), row.group_id))
    query = query or ListQuery()
    rows = sort_rows(rows, query.sort, SORT_KEYS)
    chosen = select_rows(rows, query, lambda row: row.group_id, page_rows=page_rows)
    blockers = find_blockers(state)  # named for the rows that are shown alone
    return GroupsPage(
        info=_describe(state, "Groups", now_ms),
        query=replace(query, page=chosen.page),
        groups=tuple(_build_row(state, row.group_id, blockers) for row in chosen.rows),
        match_count=chosen.match_count,
        page_count=chosen.page_count,
    )


def build_group(state: ConsoleState, group_id: str, now_ms: int) -> GroupPage:
    """Build the page of one group."""
    facts = state.snapshot.groups
    group = facts.groups.get(group_id)
    members = () if group is None else group.members
    assigned = {at: member.client_id for member in members for at in member.partitions}
    offsets = facts.offsets.get(group_id, {})
    known, blockers = state.snapshot.topics.offsets, find_blockers(state)
    return GroupPage(
        info=_describe(state, f"Group {group_id}", now_ms),
        group_id=group_id,
        row=None if group is None else _build_row(state, group_id, blockers),
        partitions=tuple(
            _build_partition(at, offset, known.get(at), assigned.get(at, ""), blockers.get(at))
            for at, offset in sorted(offsets.items(), key=lambda each: str(each[0]))
        ),
        members=tuple(
            MemberRow(
                member_id=member.member_id,
                instance_id=member.instance_id,
                client_id=member.client_id,
                host=member.host,
                partition_count=len(member.partitions),
            )
            for member in members
        ),
        command=commands.describe_group_command(state.snapshot.bootstrap_servers, group_id),
    )


def _describe(state: ConsoleState, title: str, now_ms: int) -> PageInfo:
    snapshot = state.snapshot
    statuses = [snapshot.groups.status, snapshot.topics.status, snapshot.transactions.status]
    return describe_page(title, snapshot, statuses, now_ms)


def _build_row(
    state: ConsoleState, group_id: str, blockers: Mapping[TopicPartition, AssessedTransaction]
) -> GroupRow:
    facts = state.snapshot.groups
    group = facts.groups[group_id]
    offsets = facts.offsets.get(group_id, {})
    known = state.snapshot.topics.offsets
    pairs = [(offset, known[at]) for at, offset in offsets.items() if at in known]
    return GroupRow(
        group_id=group_id,
        state=group.state,
        protocol=group.type,
        member_count=len(group.members),
        data_lag=_sum_data_lag(offsets.values()),
        offset_lag=sum(max(0, at.last_stable - offset.committed) for offset, at in pairs),
        held_back_count=sum(at.held_back_count for _, at in pairs),
        pending_count=sum(offset.is_pending for offset in offsets.values()),
        blockers=describe_holders(blockers[at] for at in offsets if at in blockers),
    )


def _sum_data_lag(offsets: Iterable[GroupOffset]) -> int | None:
    lags = [offset.data_lag for offset in offsets]
    counted = [lag for lag in lags if lag is not None]
    return sum(counted) if len(counted) == len(lags) else None


def _build_partition(
    at: TopicPartition,
    offset: GroupOffset,
    known: PartitionOffsets | None,
    member: str,
    blocker: AssessedTransaction | None,
) -> GroupPartitionRow:
    return GroupPartitionRow(
        partition=str(at),
        topic=at.topic,
        number=at.partition,
        member=member,
        committed=offset.committed,
        last_stable=None if known is None else known.last_stable,
        end=None if known is None else known.end,
        data_lag=offset.data_lag,
        passed_markers=offset.passed_markers,
        passed_aborted=offset.passed_aborted,
        held_back_count=None if known is None else known.held_back_count,
        blocker=None if blocker is None else describe_holder(blocker),
        is_pending=offset.is_pending,
    )
