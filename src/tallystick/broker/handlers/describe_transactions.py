"""DescribeTransactions: state of transactional ids, forced outcomes included (KIP-664)."""

from collections.abc import Callable

from tallystick.broker.broker import Broker
from tallystick.broker.handlers.distinct import distinct
from tallystick.broker.handlers.listing import Listed
from tallystick.broker.handlers.txn_wire import NO_NAME, NOT_ALLOWED
from tallystick.broker.server.acl import Operation, topic, transactional_id
from tallystick.broker.server.request_context import RequestContext
from tallystick.broker.txn.machine.model import NO_PARTITIONS, Decided, Idle, Ongoing, Partitions, TxnEntry
from tallystick.kernel.codes import ErrorCode
from tallystick.kernel.errors import Reject
from tallystick.kernel.ids import INT32_MAX, TransactionalId
from tallystick.protocol.messages.describe_transactions import (
    DescribeTransactionsRequest,
    DescribeTransactionsResponse,
    ForcedOutcome,
    SupersededPair,
    TopicData,
    TransactionState,
)

NEVER_TIMES_OUT = INT32_MAX
NO_START = -1


def handle(broker: Broker, request: DescribeTransactionsRequest, context: RequestContext) -> Listed:
    def may_see(name: str) -> bool:
        return broker.authorizer.allows(context, Operation.DESCRIBE, topic(name))

    def describe(name: str) -> TransactionState:
        entry = _find(broker, name, context)
        return _refused(name, entry) if isinstance(entry, Reject) else _described(entry, may_see)

    return Listed(
        lambda states: DescribeTransactionsResponse(transaction_states=states),
        distinct(request.transactional_ids),
        describe,
    )


def _find(broker: Broker, name: str, context: RequestContext) -> TxnEntry | Reject:
    if not broker.authorizer.allows(context, Operation.DESCRIBE, transactional_id(name)):
        return NOT_ALLOWED
    if not name:
        return NO_NAME
    missing = Reject(ErrorCode.TRANSACTIONAL_ID_NOT_FOUND, f"transactional id {name!r} is not known")
    return broker.transactions.entry(TransactionalId(name)) or missing


def _refused(name: str, refused: Reject) -> TransactionState:
    return TransactionState(
        error_code=refused.code,
        transactional_id=name,
        transaction_state="",
        transaction_timeout_ms=0,
        transaction_start_time_ms=0,
        producer_id=0,
        producer_epoch=0,
    )


def _described(entry: TxnEntry, may_see: Callable[[str], bool]) -> TransactionState:
    """Describe an entry, with the producer id and epoch of the data, not those of the client (KIP-939)."""
    phase, shown, before = entry.phase, entry.shown, entry.superseded
    timeout_ms = entry.timeout_ms if isinstance(phase, Idle) else phase.timeout_ms
    return TransactionState(
        transactional_id=entry.transactional_id,
        transaction_state=entry.state.label,
        transaction_timeout_ms=NEVER_TIMES_OUT if timeout_ms is None else timeout_ms,
        transaction_start_time_ms=NO_START if phase.started_ms is None else phase.started_ms,
        producer_id=shown.producer_id,
        producer_epoch=shown.epoch,
        topics=_topics(_open_in(entry), may_see),
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
            for each in entry.forced
            if each.partition is None or may_see(each.partition.topic)
        ),
    )


def _open_in(entry: TxnEntry) -> Partitions:
    """Return the partitions without a marker yet."""
    match entry.phase:
        case Ongoing(partitions=partitions):
            return partitions
        case Decided() as decided:
            return decided.unmarked
        case Idle():
            return NO_PARTITIONS


def _topics(partitions: Partitions, may_see: Callable[[str], bool]) -> tuple[TopicData, ...]:
    by_topic: dict[str, list[int]] = {}
    for name in sorted(partitions):
        by_topic.setdefault(name.topic, []).append(name.partition)
    return tuple(
        TopicData(topic=name, partitions=tuple(indexes))
        for name, indexes in by_topic.items()
        if may_see(name)
    )
