"""The first page: health in words, the reason, and the command that mends it. Pure."""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from typing import Final

from tallystick.console.model import commands
from tallystick.console.model.health import SEVERITY, Health
from tallystick.console.model.snapshot import NEVER_MS, PartStatus, Snapshot, StoreFacts, Volume
from tallystick.console.model.state import ConsoleState
from tallystick.console.model.transactions import AssessedTransaction, find_oldest_ms
from tallystick.console.views.events import EventRow, list_last_events
from tallystick.console.views.holders import find_blockers, index_groups, list_waiting_groups
from tallystick.console.views.page import PageInfo, describe_page, list_failures
from tallystick.console.views.refusals import NoWrites, list_refusals
from tallystick.console.views.texts import format_bytes, format_duration, pluralize
from tallystick.console.views.transactions import build_key, count_by_health
from tallystick.kernel.value import Value, replace

PROBLEMS_MAX: Final = 20
"""Problems shown one by one, the worst first; the page links to the rest."""


class Problem(Value, kw_only=True):
    """Something that an operator has to look at.

    key     of the transaction in a URL; empty if it is not one transaction's
    prefix  of a Spark query, if the problem is the same for several of its transactions
    age_ms           of the oldest of these transactions; None if there is none, or its age is not known
    held_back_count  records that readers of committed records cannot see because of them
    groups           that wait for these records
    """

    health: str
    subject: str
    reason: str
    command: str
    key: str = ""
    prefix: str = ""
    age_ms: int | None = None
    held_back_count: int = 0
    groups: tuple[str, ...] = ()


class StoreSummary(Value, kw_only=True):
    """A store in one line. `open_count`: transactions of its ids that are open in Kafka."""

    name: str
    kind: str
    is_reachable: bool
    takes_writes: bool
    id_count: int
    open_count: int
    age_ms: int | None


class OverviewPage(Value, kw_only=True):
    """Everything in one look.

    health               a word of `Health`: the worst there is, or `unknown` if something could not be read
    headline             the same as a sentence
    counts               transactions by health, those that are broken and not open any more among them
    prepared_count       open two-phase ones: they may be prepared, and never time out
    oldest_ms            age of the oldest open transaction
    oldest_in_doubt_ms   age of the oldest two-phase transaction
    held_back_count      records that no `read_committed` reader sees yet, in all partitions
    held_back_partitions partitions with such records
    disks                directories of brokers, with the room that is left; empty if they do not tell
    events               the last ones, newest first
    """

    info: PageInfo
    health: str
    headline: str
    problems: tuple[Problem, ...]
    problem_count: int
    counts: Mapping[str, int]
    open_count: int
    prepared_count: int
    oldest_ms: int | None
    oldest_in_doubt_ms: int | None
    held_back_count: int
    held_back_partitions: int
    id_count: int
    brokers: tuple[str, ...]
    disks: tuple[str, ...]
    cluster_id: str | None
    features: Mapping[str, int]
    stores: tuple[StoreSummary, ...]
    prefix_count: int
    group_count: int
    events: tuple[EventRow, ...]


def build_overview(state: ConsoleState, now_ms: int) -> OverviewPage:
    """Build the overview."""
    snapshot, transactions = state.snapshot, state.transactions
    refusals = list_refusals(snapshot)
    problems, problem_count = _list_worst(state, refusals, now_ms)
    open_ones = [each for each in transactions if each.is_open]
    in_doubt = [each for each in open_ones if each.views.is_two_phase]
    offsets = snapshot.topics.offsets.values()
    health, headline = _summarize(state, refusals, now_ms)
    groups = snapshot.groups.status
    statuses = (*_list_essential(snapshot), *([groups] if groups.is_away else []))
    return OverviewPage(
        info=describe_page("Overview", snapshot, statuses, now_ms),
        health=health.value,
        headline=headline,
        problems=problems,
        problem_count=problem_count,
        counts=count_by_health(transactions),
        open_count=len(open_ones),
        prepared_count=len(in_doubt),
        oldest_ms=find_oldest_ms(open_ones, now_ms),
        oldest_in_doubt_ms=find_oldest_ms(in_doubt, now_ms),
        held_back_count=sum(each.held_back_count for each in offsets),
        held_back_partitions=sum(each.held_back_count > 0 for each in offsets),
        id_count=snapshot.transactions.id_count,
        brokers=tuple(f"{node.id} {node.address}" for node in snapshot.cluster.brokers),
        disks=tuple(
            _describe_disk(node_id, volume)
            for node_id, volumes in sorted(snapshot.cluster.volumes.items())
            for volume in volumes
        ),
        cluster_id=snapshot.cluster.cluster_id,
        features=snapshot.cluster.features,
        stores=_summarize_stores(state, refusals, now_ms),
        prefix_count=len(snapshot.pipelines.prefixes),
        group_count=len(snapshot.groups.groups),
        events=list_last_events(state.events),
    )


def _summarize(state: ConsoleState, refusals: tuple[NoWrites, ...], now_ms: int) -> tuple[Health, str]:
    """Return the worst health, and a sentence that says why [CON-11]."""
    snapshot = state.snapshot
    if state.is_first:
        return Health.UNKNOWN, "Nothing has been read yet."
    counts = Counter(each.health for each in state.transactions)
    worst = [health for health in Health if counts[health] and health not in (Health.OK, Health.UNSETTLED)]
    texts = [_HEADLINES[health].format(pluralize(counts[health], "transaction")) for health in worst]
    if refusals:
        worst.insert(1 if Health.BROKEN in worst else 0, Health.REFUSING)
        names = ", ".join(dict.fromkeys(each.subject for each in refusals))
        texts.insert(worst.index(Health.REFUSING), f"Writes are refused by {names}.")
    statuses = _list_essential(snapshot)
    is_away = any(status.is_away for status in statuses)
    if is_away and texts:
        texts.insert(0, "When it was last read:")
    if any(health.needs_action for health in worst):
        return worst[0], " ".join(texts)
    if any(status.read_ms == NEVER_MS for status in statuses):
        return Health.UNKNOWN, "Not everything has been read yet."
    if is_away:
        return Health.UNKNOWN, " ".join(texts) or "When it was last read, nothing needed an operator."
    if any(status.failures for status in snapshot.list_statuses()):
        return Health.UNKNOWN, "Not everything could be read, so this page may lack something."
    if worst:
        return worst[0], " ".join(texts)
    open_ones = [each for each in state.transactions if each.is_open]
    if not open_ones:
        return Health.OK, "No transaction is open."
    oldest = format_duration(find_oldest_ms(open_ones, now_ms))
    return Health.OK, f"{pluralize(len(open_ones), 'transaction')} open, the oldest for {oldest}."


_HEADLINES: Final[Mapping[Health, str]] = {
    Health.BROKEN: "{}: the two sides differ, or neither end would be right.",
    Health.HANGING: "{} hanging: nothing will end it.",
    Health.ORPHAN: "{} in doubt that nothing here can decide.",
    Health.RECOVER: "{} to recover.",
    Health.UNKNOWN: "{} that cannot be judged.",
    Health.SLOW: "{} slow.",
}


def _list_essential(snapshot: Snapshot) -> tuple[PartStatus, ...]:
    """Return the parts without which nothing can be called well: all but groups, which wait for others."""
    return (
        snapshot.cluster.status,
        snapshot.transactions.status,
        snapshot.topics.status,
        snapshot.pipelines.status,
        *(store.status for store in snapshot.stores),
    )


def _is_problem(each: AssessedTransaction) -> bool:
    return each.health not in (Health.OK, Health.UNSETTLED)


# Sides that differ and full disks first, then what has to be ended, by what it holds back, then the rest.
_TIERS: Final = {Health.BROKEN: 0, Health.REFUSING: 1, Health.UNKNOWN: 3, Health.SLOW: 4}
_TO_BE_ENDED: Final = 2


def _list_worst(
    state: ConsoleState, refusals: tuple[NoWrites, ...], now_ms: int
) -> tuple[tuple[Problem, ...], int]:
    """Return what hurts most, and how many problems there are; only what is shown is described."""
    others = [*map(_describe_refusal, refusals), *_list_read_failures(state.snapshot)]
    ranked: list[tuple[tuple[int, ...], Problem | list[AssessedTransaction]]] = [
        (_rank(Health(each.health)), each) for each in others
    ]
    ranked += [
        (_rank(some[0].health, sum(each.held_back_count for each in some)), some)
        for some in _group_problems(state.transactions)
    ]
    ranked.sort(key=lambda each: each[0])
    blockers, groups = find_blockers(state), index_groups(state.snapshot)
    problems = []
    for _, each in ranked[:PROBLEMS_MAX]:
        if isinstance(each, Problem):
            problems.append(each)
            continue
        waiting = {name for one in each for name in list_waiting_groups(one, blockers, groups)}
        problems.append(_describe_problem(each, tuple(sorted(waiting)), now_ms))
    return tuple(problems), len(ranked)


def _rank(health: Health, held_back_count: int = 0) -> tuple[int, ...]:
    """Return the place of a problem: what hurts most comes first. The oldest come first already."""
    return _TIERS.get(health, _TO_BE_ENDED), -held_back_count, SEVERITY[health]


def _group_problems(transactions: Iterable[AssessedTransaction]) -> Iterable[list[AssessedTransaction]]:
    """Group what one command ends of a Spark query: it may be hundreds of transactions."""
    together: dict[object, list[AssessedTransaction]] = {}
    for each in filter(_is_problem, transactions):
        spark = each.views.spark
        key = (spark.prefix, each.assessment) if spark is not None and each.assessment.command else id(each)
        together.setdefault(key, []).append(each)
    return together.values()


def _describe_problem(some: list[AssessedTransaction], groups: tuple[str, ...], now_ms: int) -> Problem:
    first = some[0]
    problem = Problem(
        health=first.health.value,
        subject=first.transactional_id or build_key(first),
        reason=first.assessment.reason,
        command=first.assessment.command,
        key=build_key(first),
        age_ms=find_oldest_ms(some, now_ms),
        held_back_count=sum(each.held_back_count for each in some),
        groups=groups,
    )
    spark = first.views.spark
    if len(some) == 1 or spark is None:
        return problem
    subject = f"{spark.prefix}, {pluralize(len(some), 'transaction')}"
    return replace(problem, subject=subject, key="", prefix=spark.prefix)


def _describe_refusal(each: NoWrites) -> Problem:
    return Problem(
        health=Health.REFUSING.value, subject=each.subject, reason=each.reason, command=each.command
    )


def _describe_disk(node_id: int, volume: Volume) -> str:
    if volume.failure:
        return f"broker {node_id} {volume.path}: {volume.failure}"
    usable, total = format_bytes(volume.usable_bytes), format_bytes(volume.total_bytes)
    return f"broker {node_id} {volume.path}: {usable} of {total} free"


def _list_read_failures(snapshot: Snapshot) -> Iterator[Problem]:
    """List what was read in part; of what was not read at all the head of the page says so."""
    of_stores = {failure: store.name for store in snapshot.stores for failure in store.status.failures}
    for text in list_failures((), snapshot.list_statuses()):
        yield Problem(
            health=Health.UNKNOWN.value,
            subject=of_stores.get(text, "not read"),
            reason=text,
            command="" if text in of_stores else commands.doctor_command(snapshot.bootstrap_servers),
        )


def _summarize_stores(
    state: ConsoleState, refusals: tuple[NoWrites, ...], now_ms: int
) -> tuple[StoreSummary, ...]:
    open_counts = Counter(
        each.views.store.store.name
        for each in state.transactions
        if each.views.store is not None and each.is_open
    )
    refusing = frozenset(each.subject for each in refusals)
    return tuple(
        _summarize_store(store, open_counts[store.name], refusing, now_ms) for store in state.snapshot.stores
    )


def _summarize_store(
    store: StoreFacts, open_count: int, refusing: frozenset[str], now_ms: int
) -> StoreSummary:
    return StoreSummary(
        name=store.name,
        kind=store.kind.value,
        is_reachable=store.status.is_complete,
        takes_writes=store.name not in refusing,
        id_count=len(store.rows),
        open_count=open_count,
        age_ms=max(0, now_ms - store.status.read_ms) if store.status.read_ms else None,
    )
