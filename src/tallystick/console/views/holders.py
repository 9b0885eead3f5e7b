"""Transactions that hold back the readers of partitions, and the groups that wait for them. Pure."""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence

from tallystick.console.model.health import SEVERITY
from tallystick.console.model.snapshot import Snapshot
from tallystick.console.model.state import ConsoleState
from tallystick.console.model.transactions import AssessedTransaction
from tallystick.kernel.ids import TopicPartition
from tallystick.kernel.value import Value


class Holder(Value, kw_only=True):
    """A transaction that holds back the readers of a partition, as a row names it.

    key      of the transaction in a URL
    name     its transactional id, or its producer
    health   a word of `Health`
    command  that ends it, if it has to be ended
    """

    key: str
    name: str
    health: str
    command: str


def find_holder(
    transactions: Sequence[AssessedTransaction], at: TopicPartition
) -> AssessedTransaction | None:
    """Return the transaction that begins first in a partition, which its readers wait for."""
    starts = [
        (case.transaction.start_offset, number)
        for number, each in enumerate(transactions)
        for case in each.views.cases
        if case.transaction.partition == at
    ]
    return transactions[min(starts)[1]] if starts else None


def find_blockers(state: ConsoleState) -> Mapping[TopicPartition, AssessedTransaction]:
    """Return the transaction that holds back the readers of each partition in which records wait.

    Cost: in proportion to the transactions that hold something back, which few of very many do.
    """
    open_there: dict[TopicPartition, list[AssessedTransaction]] = defaultdict(list)
    for each in state.transactions:
        for case in each.views.cases if each.held_back_count else ():
            open_there[case.transaction.partition].append(each)
    offsets = state.snapshot.topics.offsets
    blockers = {
        at: find_holder(some, at)
        for at, some in open_there.items()
        if at in offsets and offsets[at].held_back_count
    }
    return {at: each for at, each in blockers.items() if each is not None}


def index_groups(snapshot: Snapshot) -> Mapping[TopicPartition, tuple[str, ...]]:
    """Return the groups that read each partition: it has an offset of theirs, or a member that reads it."""
    groups: dict[TopicPartition, set[str]] = defaultdict(set)
    for group_id, offsets in snapshot.groups.offsets.items():
        for at in offsets:
            groups[at].add(group_id)
    for group_id, group in snapshot.groups.groups.items():
        for member in group.members:
            for at in member.partitions:
                groups[at].add(group_id)
    return {at: tuple(sorted(names)) for at, names in groups.items()}


def list_waiting_groups(
    each: AssessedTransaction,
    blockers: Mapping[TopicPartition, AssessedTransaction],
    groups: Mapping[TopicPartition, tuple[str, ...]],
) -> tuple[str, ...]:
    """Return the groups that a transaction holds back."""
    held = (at for at in each.views.partitions if blockers.get(at) is each)
    return tuple(sorted({name for at in held for name in groups.get(at, ())}))


def describe_holders(transactions: Iterable[AssessedTransaction]) -> tuple[Holder, ...]:
    """Describe transactions, each once, the worst first."""
    holders = {each.key: describe_holder(each) for each in sorted(transactions, key=_rank)}
    return tuple(holders.values())


def describe_holder(each: AssessedTransaction) -> Holder:
    """Describe one transaction."""
    return Holder(
        key=each.key,
        name=each.transactional_id or each.key,
        health=each.health.value,
        command=each.assessment.command,
    )


def _rank(each: AssessedTransaction) -> tuple[int, int]:
    return SEVERITY[each.health], -each.held_back_count
