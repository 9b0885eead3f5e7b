"""The page of one transaction: both sides, its time line, and what can be done. Pure."""

from collections.abc import Mapping

from tallystick.admin.model import TransactionDescription
from tallystick.admin.txn.hanging import HangingCase
from tallystick.console.lookup.history import IdHistory
from tallystick.console.model import commands
from tallystick.console.model.assessment import SparkSide, Stage, StoreSide
from tallystick.console.model.snapshot import PartitionOffsets, Snapshot
from tallystick.console.model.state import ConsoleState
from tallystick.console.model.transactions import find_views
from tallystick.console.views.history import HistoryView, view_history
from tallystick.console.views.holders import Holder, describe_holder, find_blockers, index_groups
from tallystick.console.views.page import PageInfo, describe_page, is_incomplete
from tallystick.console.views.texts import format_identity
from tallystick.console.views.timeline import Timeline, draw, list_events
from tallystick.console.views.transactions import TransactionRow, build_key, build_row
from tallystick.dualwrite.rules.model import to_columns
from tallystick.kernel.ids import TopicPartition
from tallystick.kernel.value import Value


class TransactionPartition(Value, kw_only=True):
    """The view of the leader of one partition.

    start_offset     first record of the transaction there; None if the leader knows nothing of it
    last_record_ms   time of its last record, chosen by the producer
    held_back_count  records behind the last stable offset, by whichever transaction is first
    blocker          that transaction, if it is another one
    groups           that read the partition
    """

    partition: str
    topic: str
    number: int
    start_offset: int | None
    producer: str | None
    coordinator_epoch: int | None
    last_record_ms: int | None
    last_stable_offset: int | None
    end_offset: int | None
    held_back_count: int | None
    blocker: Holder | None
    groups: tuple[str, ...]
    finding: str
    verdict: str


class CoordinatorView(Value, kw_only=True):
    """The view of the coordinator. `token` is what a database stores when it commits this transaction."""

    coordinator: int
    state: str
    token: str
    timeout_ms: int | None
    started_ms: int | None
    superseded: str | None
    forced_outcomes: tuple[str, ...]


class DatabaseView(Value, kw_only=True):
    """The view of the store. `raw_row` is the row, column by column."""

    store: str
    stored_state: str
    is_settled: bool
    finding: str
    verdict: str
    lease: str
    other_stores: tuple[str, ...]
    raw_row: Mapping[str, str | int | None]


class DecisionView(Value, kw_only=True):
    """The view of the decision log of the Spark query."""

    prefix: str
    role: str
    source: str
    decision: str
    decided_ms: int | None
    query_id: str | None
    batch_id: int | None
    offsets: str | None


class CommandLine(Value):
    """A command, and what it does."""

    text: str
    purpose: str


class TransactionPage(Value, kw_only=True):
    """One transaction. Where it is not open, `row` is None, and the sides are those of its id.

    key      as in the URL
    history  None of a producer without a transactional id, and where nothing reads histories
    """

    info: PageInfo
    key: str
    row: TransactionRow | None
    timeline: Timeline | None
    coordinator: CoordinatorView | None
    partitions: tuple[TransactionPartition, ...]
    database: DatabaseView | None
    decision: DecisionView | None
    commands: tuple[CommandLine, ...]
    history: HistoryView | None


def build_transaction(
    state: ConsoleState, key: str, now_ms: int, history: IdHistory | None = None
) -> TransactionPage:
    """Build the page of the transaction that `key` names; of an id that is not open, what is known of it."""
    shown_history = None if history is None else view_history(history)
    snapshot = state.snapshot
    each = next((transactions for transactions in state.transactions if build_key(transactions) == key), None)
    statuses = (snapshot.transactions.status, *(store.status for store in snapshot.stores))
    info = describe_page(f"Transaction {key}", snapshot, statuses, now_ms)
    if each is None:
        return _build_closed(snapshot, key, info, shown_history)
    views = each.views
    row = build_row(each, now_ms)
    cases = {case.transaction.partition: case for case in views.cases}
    blockers, groups = find_blockers(state), index_groups(snapshot)
    return TransactionPage(
        info=info,
        key=key,
        row=row,
        timeline=draw(list_events(each)),
        coordinator=None if views.description is None else _view_coordinator(views.description),
        partitions=tuple(
            _view_partition(
                at,
                cases.get(at),
                snapshot.topics.offsets.get(at),
                describe_holder(blockers[at]) if blockers.get(at, each) is not each else None,
                groups.get(at, ()),
            )
            for at in sorted(views.partitions, key=str)
        ),
        database=None if views.store is None else _view_database(views.store),
        decision=None if views.spark is None else _view_decision(views.spark),
        commands=_list_commands(row, snapshot.bootstrap_servers),
        history=shown_history,
    )


def may_exist(page: TransactionPage) -> bool:
    """Return whether anything that is read knows the id, or not all that knows ids could be read."""
    if page.row or page.coordinator or page.database or is_incomplete(page.info):
        return True
    history = page.history  # of an id that has nothing open only this knows
    return history is not None and bool(
        history.is_described or history.rows or history.failure or history.is_catching_up
    )


def find_open_state(snapshot: Snapshot, transactional_id: str) -> str:
    """Return the state that commits what an id has in doubt; empty if it has nothing, as last read."""
    description = snapshot.transactions.descriptions.get(transactional_id)
    return format_identity(description.writer) if description is not None and description.in_doubt else ""


def find_decider(snapshot: Snapshot, transactional_id: str) -> str:
    """Return the store or the Spark query that decides an id, as last read; empty if none is known."""
    views = find_views(snapshot, transactional_id)
    if views.store is not None:
        return views.store.store.name
    return f"the Spark query {views.spark.prefix}" if views.spark is not None else ""


def _build_closed(
    snapshot: Snapshot, key: str, info: PageInfo, history: HistoryView | None
) -> TransactionPage:
    description = snapshot.transactions.descriptions.get(key)
    store = next((each for each in snapshot.stores if key in each.rows), None)
    database = None
    if store is not None:
        row = store.rows[key]
        lease = next((each for each in store.leases if each.transactional_id == key), None)
        database = DatabaseView(
            store=store.name,
            stored_state=str(row.state),
            is_settled=row.settled,
            finding="",
            verdict="",
            lease="" if lease is None else lease.classify(store.lease_now_ms).name.lower(),
            other_stores=tuple(
                each.name for each in snapshot.stores if each is not store and key in each.rows
            ),
            raw_row=to_columns(row),
        )
    return TransactionPage(
        info=info,
        key=key,
        row=None,
        timeline=None,
        coordinator=None if description is None else _view_coordinator(description),
        partitions=(),
        database=database,
        decision=None,
        commands=(
            CommandLine(
                commands.describe_command(snapshot.bootstrap_servers, key), "shows it as its coordinator does"
            ),
        ),
        history=history,
    )


def _view_coordinator(description: TransactionDescription) -> CoordinatorView:
    return CoordinatorView(
        coordinator=description.coordinator,
        state=description.state,
        token=format_identity(description.writer),
        timeout_ms=description.timeout_ms,
        started_ms=description.started_ms,
        superseded=None if description.superseded is None else format_identity(description.superseded),
        forced_outcomes=tuple(
            f"{format_identity(outcome.writer)} {getattr(outcome.cause, 'name', outcome.cause)}".lower()
            for outcome in description.forced_outcomes
        ),
    )


def _view_partition(
    at: TopicPartition,
    case: HangingCase | None,
    offsets: PartitionOffsets | None,
    blocker: Holder | None,
    groups: tuple[str, ...],
) -> TransactionPartition:
    transaction = None if case is None else case.transaction
    return TransactionPartition(
        partition=str(at),
        topic=at.topic,
        number=at.partition,
        start_offset=None if transaction is None else transaction.start_offset,
        producer=None if transaction is None else format_identity(transaction.writer),
        coordinator_epoch=None if transaction is None else transaction.coordinator_epoch,
        last_record_ms=None if transaction is None else transaction.last_timestamp_ms,
        last_stable_offset=None if offsets is None else offsets.last_stable,
        end_offset=None if offsets is None else offsets.end,
        held_back_count=None if offsets is None else offsets.held_back_count,
        blocker=blocker,
        groups=groups,
        finding="nothing of it is open here" if case is None else case.finding.value,
        verdict="" if case is None else case.verdict.value,
    )


def _view_database(side: StoreSide) -> DatabaseView:
    return DatabaseView(
        store=side.store.name,
        stored_state=str(side.row.state),
        is_settled=side.row.settled,
        finding=side.finding.value,
        verdict=side.verdict.name.lower(),
        lease="" if side.lease_state is None else side.lease_state.name.lower(),
        other_stores=side.other_stores,
        raw_row=to_columns(side.row),
    )


def _view_decision(side: SparkSide) -> DecisionView:
    decision = None if side.facts is None else side.facts.decision
    return DecisionView(
        prefix=side.prefix,
        role=side.role.value,
        source="" if side.facts is None else side.facts.source,
        decision="" if decision is None else str(decision),
        decided_ms=None if decision is None else decision.decided_ms,
        query_id=None if decision is None else decision.query_id,
        batch_id=None if decision is None else decision.batch_id,
        offsets=None if decision is None else decision.offsets,
    )


def _list_commands(row: TransactionRow, servers: str) -> tuple[CommandLine, ...]:
    lines = [CommandLine(row.command, "what the verdict asks for")] if row.command else []
    name = row.transactional_id
    if name is not None:
        lines.append(
            CommandLine(commands.describe_command(servers, name), "shows it as its coordinator does")
        )
        # What is decided must not be ended by force, and what has ended cannot be.
        if row.stage == Stage.OPEN.value and row.state == "Ongoing":
            purpose = "aborts it in all partitions and fences its producer, whatever its other side has done"
            lines.append(CommandLine(commands.force_terminate_command(servers, name), purpose))
    return tuple(dict.fromkeys(lines))
