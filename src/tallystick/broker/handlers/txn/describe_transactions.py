"""DescribeTransactions: state of transactional ids, forced outcomes and history included (KIP-664)."""

from collections.abc import Callable

from tallystick.broker.authorizer.authorizer import CLUSTER_RESOURCE, Operation, transactional_id_resource
from tallystick.broker.handlers.authorization import make_topic_check
from tallystick.broker.handlers.deduplicate import deduplicate
from tallystick.broker.handlers.ports import TransactionsPort
from tallystick.broker.handlers.sliced_response import SlicedListResponse
from tallystick.broker.handlers.txn.txn_wire import (
    EMPTY_TRANSACTIONAL_ID,
    NO_PRODUCER_EPOCH,
    NO_PRODUCER_ID,
    NOT_AUTHORIZED,
)
from tallystick.broker.server.request_context import RequestContext
from tallystick.broker.txn.machine.model import (
    NO_PARTITIONS,
    DecidedPhase,
    IdlePhase,
    OngoingPhase,
    Partitions,
    TxnEntry,
)
from tallystick.kernel.codes import ErrorCode
from tallystick.kernel.errors import Reject
from tallystick.kernel.ids import INT32_MAX, TransactionalId
from tallystick.protocol.messages.txn.describe_transactions import (
    DescribeTransactionsRequest,
    DescribeTransactionsResponse,
    ForcedOutcome,
    HistoryTransition,
    SupersededPair,
    TopicData,
    TransactionState,
)
from tallystick.protocol.transaction_history import STATES_BY_LABEL, TransactionTransition

NEVER_TIMES_OUT = INT32_MAX
NO_START = -1


def handle(
    broker: TransactionsPort, request: DescribeTransactionsRequest, context: RequestContext
) -> SlicedListResponse:
    describe_history = _make_history_reader(broker, request, context)
    may_see = make_topic_check(broker, context, Operation.DESCRIBE, log_denied=False)

    def describe(name: str) -> TransactionState:
        entry = _find_entry(broker, name, context)
        if isinstance(entry, Reject):
            return _refused_state(name, entry)
        return _describe_entry(entry, may_see, describe_history(name))

    return SlicedListResponse(
        lambda states: DescribeTransactionsResponse(transaction_states=states),
        deduplicate(request.transactional_ids),
        describe,
    )


def _find_entry(broker: TransactionsPort, name: str, context: RequestContext) -> TxnEntry | Reject:
    if not broker.authorizer.allows(context, Operation.DESCRIBE, transactional_id_resource(name)):
        return NOT_AUTHORIZED
    if not name:
        return EMPTY_TRANSACTIONAL_ID
    refusal = Reject(
        ErrorCode.TRANSACTIONAL_ID_NOT_FOUND,
        f"transactional id {name!r} is unknown: it has expired, or was never initialized",
    )
    return broker.transactions.get_entry(TransactionalId(name)) or refusal


def _refused_state(name: str, refusal: Reject) -> TransactionState:
    return TransactionState(
        error_code=refusal.code,
        transactional_id=name,
        transaction_state="",
        transaction_timeout_ms=0,
        transaction_start_time_ms=0,
        producer_id=0,
        producer_epoch=0,
    )


def _make_history_reader(
    broker: TransactionsPort, request: DescribeTransactionsRequest, context: RequestContext
) -> Callable[[str], tuple[HistoryTransition, ...] | None]:
    """Return a function that reads the history of an id, if the request asks for it.

    Who may describe an id need not know its clients: their names and addresses are shown to those who may
    describe the cluster.
    """
    if not request.include_history:
        return lambda _: None
    shows_clients = broker.authorizer.allows(context, Operation.DESCRIBE, CLUSTER_RESOURCE, log_denied=False)
    return lambda name: tuple(
        _encode_transition(each, shows_client=shows_clients)
        for each in broker.transactions.list_transitions(TransactionalId(name))
    )


def _encode_transition(each: TransactionTransition, *, shows_client: bool) -> HistoryTransition:
    return HistoryTransition(
        kind=each.kind,
        timestamp_ms=each.at_ms,
        state=STATES_BY_LABEL[each.state],
        producer_id=NO_PRODUCER_ID if each.producer is None else each.producer.producer_id,
        producer_epoch=NO_PRODUCER_EPOCH if each.producer is None else each.producer.epoch,
        partition_count=each.partition_count,
        client_id=each.client_id if shows_client else None,
        address=each.address if shows_client else None,
    )


def _describe_entry(
    entry: TxnEntry,
    may_see: Callable[[str], bool],
    history: tuple[HistoryTransition, ...] | None,
) -> TransactionState:
    """Describe an entry, with the producer id and epoch of the data, not those of the client (KIP-939)."""
    phase, described, before = entry.phase, entry.described_identity, entry.previous_identity
    timeout_ms = entry.timeout_ms if isinstance(phase, IdlePhase) else phase.timeout_ms
    return TransactionState(
        transactional_id=entry.transactional_id,
        transaction_state=entry.state.label,
        transaction_timeout_ms=NEVER_TIMES_OUT if timeout_ms is None else timeout_ms,
        transaction_start_time_ms=NO_START if phase.started_ms is None else phase.started_ms,
        producer_id=described.producer_id,
        producer_epoch=described.epoch,
        topics=_group_by_topic(_list_unmarked_partitions(entry), may_see),
        superseded=None
        if before is None
        else SupersededPair(producer_id=before.producer_id, producer_epoch=before.epoch),
        forced_outcomes=tuple(
            ForcedOutcome(
                producer_id=each.writer.producer_id,
                producer_epoch=each.writer.epoch,
                cause=each.cause,
                timestamp_ms=each.at_ms,
                topic=None if each.partition is None else each.partition.topic,
                partition_id=-1 if each.partition is None else each.partition.partition,
            )
            for each in entry.forced_outcomes
            if each.partition is None or may_see(each.partition.topic)
        ),
        history=history,
    )


def _list_unmarked_partitions(entry: TxnEntry) -> Partitions:
    """Return the partitions without a marker yet."""
    match entry.phase:
        case OngoingPhase(partitions=partitions):
            return partitions
        case DecidedPhase() as decided_phase:
            return decided_phase.unmarked_partitions
        case IdlePhase():
            return NO_PARTITIONS


def _group_by_topic(partitions: Partitions, may_see: Callable[[str], bool]) -> tuple[TopicData, ...]:
    by_topic: dict[str, list[int]] = {}
    for name in sorted(partitions):
        by_topic.setdefault(name.topic, []).append(name.partition)
    return tuple(
        TopicData(topic=name, partitions=tuple(indexes))
        for name, indexes in by_topic.items()
        if may_see(name)
    )
