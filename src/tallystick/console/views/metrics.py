"""The newest state as metrics, for `/metrics`. Pure.

Nothing is read for a scrape. Ages are those at the time of the scrape, so that they grow when the collector
falls behind.

A cluster with 10,000 topics and 1,000 groups would make millions of series, so each kind that a user of the
cluster can multiply is bounded, the worst are shown, and `tallystick_console_left_out` says how many were
not. What is summed over the cluster or a group is never cut.
"""

import math
from collections import Counter
from collections.abc import Iterable, Iterator
from heapq import nsmallest
from typing import Final

from tallystick.admin.model import OPEN_STATES
from tallystick.console.model.assessment import Stage
from tallystick.console.model.health import Health
from tallystick.console.model.snapshot import (
    NEVER_MS,
    GroupOffset,
    PartitionOffsets,
    PartStatus,
    Snapshot,
    StoreFacts,
)
from tallystick.console.model.state import ConsoleState
from tallystick.console.model.transactions import AssessedTransaction, find_oldest_ms
from tallystick.console.views.refusals import list_refusals
from tallystick.dualwrite.rules.leases import LeaseState
from tallystick.kernel.ids import TopicPartition
from tallystick.kernel.value import Value
from tallystick.metrics.families import console as families
from tallystick.metrics.model import MetricReading, Sample

HELD_BACK_PARTITIONS_MAX: Final = 500
"""Partitions with series of their own: those that hold their readers back for longest."""

GROUPS_MAX: Final = 1_000
GROUP_PARTITIONS_MAX: Final = 5_000
PREFIXES_MAX: Final = 200

NO_COORDINATOR: Final = "none"
OTHER_STATE: Final = "other"


class _GroupRow(Value, kw_only=True):
    """A group's progress in one partition. `lag`: the bound where records were not counted."""

    group: str
    at: TopicPartition
    offset: GroupOffset
    lag: int


def read_metrics(state: ConsoleState, now_ms: int, version: str) -> Iterator[MetricReading]:
    """Yield every metric with its samples; without any where nothing has been read yet.

    Args:
        version: of the console.
    """
    snapshot = state.snapshot
    yield from _read_transactions(state, now_ms)
    yield from _read_cluster(snapshot)
    left_out = Counter[str]()
    yield from _read_partitions(state, now_ms, left_out)
    yield from _read_groups(snapshot, left_out)
    yield from _read_stores(state, now_ms)
    yield from _read_pipelines(snapshot, now_ms, left_out)
    yield from _read_console(snapshot, now_ms, version)
    kinds = ("held back partitions", "groups", "partitions of groups", "prefixes")
    yield families.LEFT_OUT, [((kind,), left_out[kind]) for kind in kinds]


# -------------------------------------------------------------------------------- transactions


def _read_transactions(state: ConsoleState, now_ms: int) -> Iterator[MetricReading]:
    is_read = state.snapshot.transactions.status.read_ms != NEVER_MS
    open_ones = [each for each in state.transactions if each.is_open]
    kinds = {
        "open": open_ones,
        "in_doubt": [
            each for each in open_ones if each.views.is_two_phase and each.stage is not Stage.ENDING
        ],
        "prepared": [each for each in open_ones if each.stage is Stage.DECIDED],
    }
    words = [each for each in Health if each is not Health.REFUSING]  # which no transaction is
    health = Counter(each.health for each in state.transactions)
    states = Counter(map(_name_state, state.transactions))
    yield families.TRANSACTIONS, [((_label(each),), health[each]) for each in words] if is_read else []
    labels = (*OPEN_STATES, NO_COORDINATOR, OTHER_STATE)
    yield families.TRANSACTIONS_BY_STATE, [((each,), states[each]) for each in labels] if is_read else []
    counts = [((kind,), len(some)) for kind, some in kinds.items()]
    yield families.OPEN_TRANSACTIONS, counts if is_read else []
    ages = [((kind,), _to_seconds(find_oldest_ms(some, now_ms) or 0)) for kind, some in kinds.items()]
    yield families.OLDEST_SECONDS, ages if is_read else []


def _label(health: Health) -> str:
    return health.value.replace(" ", "_")


def _name_state(each: AssessedTransaction) -> str:
    """Return the state that a coordinator shows, of those that are known: newer ones are summed up."""
    if each.views.description is None or each.views.is_stranger:
        return NO_COORDINATOR
    state = each.views.description.state
    return state if state in OPEN_STATES else OTHER_STATE


def _read_cluster(snapshot: Snapshot) -> Iterator[MetricReading]:
    cluster, ids = snapshot.cluster, snapshot.transactions.id_count
    is_read = cluster.status.read_ms != NEVER_MS
    yield families.BROKERS, [((), len(cluster.brokers))] if is_read else []
    volumes = [
        ((str(node), volume.path), volume) for node, each in cluster.volumes.items() for volume in each
    ]
    sizes = [(label, each.total_bytes) for label, each in volumes if each.total_bytes is not None]
    room = [(label, each.usable_bytes) for label, each in volumes if each.usable_bytes is not None]
    yield families.BROKER_DISK_BYTES, sizes
    yield families.BROKER_DISK_FREE_BYTES, room
    refusing = Counter(each.kind for each in list_refusals(snapshot))
    yield families.REFUSING, [((kind,), refusing[kind]) for kind in ("broker", "store")] if is_read else []
    yield families.TRANSACTIONAL_IDS, [((), ids)] if snapshot.transactions.status.read_ms else []


# ---------------------------------------------------------------------------------- partitions


def _read_partitions(state: ConsoleState, now_ms: int, left_out: Counter[str]) -> Iterator[MetricReading]:
    facts = state.snapshot.topics
    held = {at: each for at, each in facts.offsets.items() if each.held_back_count > 0}
    ages = _find_ages(state, held, now_ms)
    is_read = facts.status.read_ms != NEVER_MS
    records = sum(each.held_back_count for each in held.values())
    yield families.HELD_BACK_RECORDS, [((), records)] if is_read else []
    yield families.HELD_BACK_PARTITIONS, [((), len(held))] if is_read else []
    yield families.HELD_BACK_SECONDS, [((), _to_seconds(max(ages.values(), default=0)))] if is_read else []
    worst = nsmallest(
        HELD_BACK_PARTITIONS_MAX, held, key=lambda at: (-ages.get(at, 0), -held[at].held_back_count, str(at))
    )
    left_out["held back partitions"] = len(held) - len(worst)
    yield (
        families.PARTITION_HELD_BACK_RECORDS,
        [(_label_partition(at), held[at].held_back_count) for at in worst],
    )
    yield (
        families.PARTITION_HELD_BACK_SECONDS,
        [(_label_partition(at), _to_seconds(ages[at])) for at in worst if at in ages],
    )


def _find_ages(
    state: ConsoleState, held: dict[TopicPartition, PartitionOffsets], now_ms: int
) -> dict[TopicPartition, int]:
    """Return the age of the transaction that begins first in each of these partitions."""
    first: dict[TopicPartition, tuple[int, int | None]] = {}
    for each in state.transactions:
        age_ms = each.views.compute_age_ms(now_ms)
        for case in each.views.cases:
            at, start = case.transaction.partition, case.transaction.start_offset
            if at in held and (at not in first or start < first[at][0]):
                first[at] = (start, age_ms)
    return {at: age_ms for at, (_, age_ms) in first.items() if age_ms is not None}


def _label_partition(at: TopicPartition) -> tuple[str, str]:
    return at.topic, str(at.partition)


# -------------------------------------------------------------------------------------- groups


def _read_groups(snapshot: Snapshot, left_out: Counter[str]) -> Iterator[MetricReading]:
    facts = snapshot.groups
    rows = list(_list_group_rows(snapshot))
    lags = Counter[str]()
    for row in rows:
        lags[row.group] += row.lag
    names = nsmallest(GROUPS_MAX, facts.groups, key=lambda name: (-lags[name], name))
    left_out["groups"] = len(facts.groups) - len(names)
    members = {name: facts.groups[name] for name in names}
    yield (
        families.GROUP_MEMBERS,
        [((name, each.state), len(each.members)) for name, each in members.items()],
    )
    yield families.EXPORTER_MEMBERS, [((name,), len(each.members)) for name, each in members.items()]
    yield from _read_group_sums(snapshot, names)
    yield families.EXPORTER_LAG_SUM, _sum_by_topic(rows, frozenset(names))
    worst = nsmallest(GROUP_PARTITIONS_MAX, rows, key=lambda row: (-row.lag, row.group, str(row.at)))
    left_out["partitions of groups"] = len(rows) - len(worst)
    labels = [(row, (row.group, *_label_partition(row.at))) for row in worst]
    counted = [(label, row.offset.data_lag) for row, label in labels]
    yield families.GROUP_PARTITION_LAG, [(label, lag) for label, lag in counted if lag is not None]
    yield families.EXPORTER_LAG, [(label, row.lag) for row, label in labels]
    yield families.EXPORTER_OFFSET, [(label, row.offset.committed) for row, label in labels]


def _list_group_rows(snapshot: Snapshot) -> Iterator[_GroupRow]:
    """List what is known of groups; a partition without offsets shows nothing."""
    for group, offsets in snapshot.groups.offsets.items():
        for at, offset in offsets.items():
            known = snapshot.topics.offsets.get(at)
            lag = offset.data_lag
            if lag is None and known is not None:
                lag = max(0, known.last_stable - offset.committed)
            if lag is not None:
                yield _GroupRow(group=group, at=at, offset=offset, lag=lag)


def _read_group_sums(snapshot: Snapshot, names: Iterable[str]) -> Iterator[MetricReading]:
    known = snapshot.topics.offsets
    lags: list[Sample] = []
    offset_lags: list[Sample] = []
    held_back: list[Sample] = []
    pending: list[Sample] = []
    for name in names:
        offsets = snapshot.groups.offsets.get(name, {})
        counted = [each.data_lag for each in offsets.values()]
        pairs = [(each, known[at]) for at, each in offsets.items() if at in known]
        if offsets and None not in counted:
            lags.append(((name,), sum(lag for lag in counted if lag is not None)))
        offset_lags.append(((name,), sum(max(0, at.end - each.committed) for each, at in pairs)))
        held_back.append(
            ((name,), sum(at.end - max(at.last_stable, min(each.committed, at.end)) for each, at in pairs))
        )
        pending.append(((name,), sum(each.is_pending for each in offsets.values())))
    yield families.GROUP_LAG, lags
    yield families.GROUP_OFFSET_LAG, offset_lags
    yield families.GROUP_HELD_BACK, held_back
    yield families.GROUP_PENDING, pending


def _sum_by_topic(rows: Iterable[_GroupRow], names: frozenset[str]) -> list[Sample]:
    sums = Counter[tuple[str, str]]()
    for row in rows:
        if row.group in names:
            sums[row.group, row.at.topic] += row.lag
    largest = nsmallest(GROUP_PARTITIONS_MAX, sums, key=lambda pair: (-sums[pair], pair))
    return [(pair, sums[pair]) for pair in largest]


# --------------------------------------------------------------------- databases and decisions


def _read_stores(state: ConsoleState, now_ms: int) -> Iterator[MetricReading]:
    stores = state.snapshot.stores
    transactions: dict[str, list[AssessedTransaction]] = {store.name: [] for store in stores}
    for each in state.transactions:
        if each.views.store is not None and each.is_open:
            transactions[each.views.store.store.name].append(each)
    yield families.STORE_REACHABLE, [((each.name,), each.status.is_complete) for each in stores]
    read = [store for store in stores if store.status.read_ms != NEVER_MS]
    decided = {name: sum(each.stage is Stage.DECIDED for each in some) for name, some in transactions.items()}
    undecided = {name: sum(each.stage is Stage.OPEN for each in some) for name, some in transactions.items()}
    yield families.STORE_UNDECIDED, [((each.name,), undecided[each.name]) for each in read]
    yield families.STORE_DECIDED, [((each.name,), decided[each.name]) for each in read]
    yield (
        families.STORE_OLDEST_SECONDS,
        [((each.name,), _to_seconds(find_oldest_ms(transactions[each.name], now_ms) or 0)) for each in read],
    )
    yield families.STORE_IDS, [((each.name,), len(each.rows)) for each in read]
    yield families.STORE_EXPIRED_LEASES, [((each.name,), _count_expired(each)) for each in read]
    yield families.STORE_PREPARED, [((each.name,), len(each.server_prepared)) for each in read]


def _count_expired(store: StoreFacts) -> int:
    return sum(lease.classify(store.lease_now_ms) is LeaseState.EXPIRED for lease in store.leases)


def _read_pipelines(snapshot: Snapshot, now_ms: int, left_out: Counter[str]) -> Iterator[MetricReading]:
    decided = [(each, each.decision) for each in snapshot.pipelines.prefixes if each.decision is not None]
    decided.sort(key=lambda pair: -pair[1].decided_ms)
    left_out["prefixes"] = max(0, len(decided) - PREFIXES_MAX)
    rows = [((each.prefix, each.source), each, decision) for each, decision in decided[:PREFIXES_MAX]]
    yield families.PIPELINE_UNFINISHED, [(label, not each.is_complete) for label, each, _ in rows]
    yield families.PIPELINE_PARTICIPANTS, [(label, len(each.participants)) for label, _, each in rows]
    numbers = [(label, each.batch_id) for label, _, each in rows]
    yield families.PIPELINE_BATCH, [(label, number) for label, number in numbers if number is not None]
    ages = [(label, _to_seconds(max(0, now_ms - each.decided_ms))) for label, _, each in rows]
    yield families.PIPELINE_DECISION_SECONDS, ages


# -------------------------------------------------------------------------- the console itself


def _read_console(snapshot: Snapshot, now_ms: int, version: str) -> Iterator[MetricReading]:
    parts = list(_list_parts(snapshot))
    yield families.INFO, [((version, snapshot.cluster.cluster_id or ""), 1)]
    yield families.SNAPSHOTS, [((), snapshot.number)]
    yield families.SNAPSHOT_AGE, [((), _compute_age_s(snapshot.at_ms, now_ms))]
    yield (
        families.PART_AGE,
        [((name,), _compute_age_s(status.read_ms, now_ms)) for name, status in parts],
    )
    yield families.PART_FAILURES, [((name,), len(status.failures)) for name, status in parts]
    yield families.PART_READING, [((name,), _to_seconds(status.took_ms)) for name, status in parts]


def _list_parts(snapshot: Snapshot) -> Iterator[tuple[str, PartStatus]]:
    yield "cluster", snapshot.cluster.status
    yield "transactions", snapshot.transactions.status
    yield "topics", snapshot.topics.status
    yield "groups", snapshot.groups.status
    yield "decisions", snapshot.pipelines.status
    for store in snapshot.stores:
        yield f"store {store.name}", store.status


def _compute_age_s(read_ms: int, now_ms: int) -> float:
    return math.inf if read_ms == NEVER_MS else _to_seconds(max(0, now_ms - read_ms))


def _to_seconds(ms: int) -> float:
    return ms / 1000
