"""Requests of KIP-664 and their answers as values of `admin.model`: list, describe, describe producers."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from tallystick.admin.admin_call import AdminCall, Answers, group_by_topic
from tallystick.admin.model import (
    AbortCause,
    ForcedOutcome,
    OpenTransaction,
    ProducerState,
    TransactionDescription,
    TransactionListing,
)
from tallystick.client.errors import BrokerRefused, ClientError, NotSupported, build_broker_error
from tallystick.kernel.codes import ErrorCode
from tallystick.kernel.ids import INT32_MAX, ProducerEpoch, ProducerId, ProducerIdAndEpoch, TopicPartition
from tallystick.protocol.messages.txn import describe_producers as dp
from tallystick.protocol.messages.txn import describe_transactions as dt
from tallystick.protocol.messages.txn.list_transactions import (
    ListTransactionsRequest,
    ListTransactionsResponse,
)
from tallystick.protocol.transaction_history import STATE_LABELS, TransactionTransition, TransitionKind

DESCRIBE_TRANSACTIONS: Final = "DescribeTransactions"
DESCRIBE_PRODUCERS: Final = "DescribeProducers"


async def list_transactions(
    call: AdminCall, node_id: int, request: ListTransactionsRequest
) -> tuple[TransactionListing, ...]:
    """List the transactional ids that one broker coordinates.

    Raises: NotSupported for a state that the broker does not have.
    """
    answer = await call.send_to_broker(node_id, request, ListTransactionsResponse, _explain_list_error)
    if answer.unknown_state_filters:
        raise NotSupported("states to filter by", ", ".join(answer.unknown_state_filters))
    return tuple(
        TransactionListing(
            transactional_id=each.transactional_id,
            coordinator=node_id,
            producer_id=each.producer_id,
            state=each.transaction_state,
        )
        for each in answer.transaction_states
    )


def _explain_list_error(answer: ListTransactionsResponse) -> tuple[int, str | None]:
    """Return the code and a text of our own, because the response has none."""
    if answer.error_code == ErrorCode.INVALID_REGULAR_EXPRESSION:
        return answer.error_code, "not in RE2's dialect, or a tallystick broker without its extra [re2]"
    return answer.error_code, None


async def describe_transactions(
    call: AdminCall, names: Iterable[str], *, with_history: bool = False
) -> Answers[str, TransactionDescription]:
    """Describe transactional ids, in as few requests to each coordinator as possible."""

    async def ask(node_id: int, some: Sequence[str]) -> Mapping[str, TransactionDescription | ClientError]:
        request = dt.DescribeTransactionsRequest(transactional_ids=tuple(some), include_history=with_history)
        answer = await call.cluster.send(node_id, request, dt.DescribeTransactionsResponse)
        return {
            state.transactional_id: build_broker_error(
                DESCRIBE_TRANSACTIONS, state.transactional_id, state.error_code
            )
            if state.error_code
            else _to_description(node_id, state)
            for state in answer.transaction_states
        }

    return await call.send_to_coordinators("transaction", names, ask, DESCRIBE_TRANSACTIONS)


async def describe_transaction(call: AdminCall, name: str) -> TransactionDescription:
    """Describe one transactional id. Raises: IdExpired if it is unknown; the errors of the lookup."""
    return (await describe_transactions(call, (name,))).one(name)


def _to_description(node_id: int, state: dt.TransactionState) -> TransactionDescription:
    return TransactionDescription(
        transactional_id=state.transactional_id,
        coordinator=node_id,
        state=state.transaction_state,
        writer=_to_identity(state.producer_id, state.producer_epoch),
        timeout_ms=None if state.transaction_timeout_ms == INT32_MAX else state.transaction_timeout_ms,
        started_ms=_none_if_negative(state.transaction_start_time_ms),
        partitions=frozenset(TopicPartition(t.topic, index) for t in state.topics for index in t.partitions),
        superseded=None
        if state.superseded is None
        else _to_identity(state.superseded.producer_id, state.superseded.producer_epoch),
        forced_outcomes=tuple(_to_forced_outcome(each) for each in state.forced_outcomes),
        history=None
        if state.history is None
        else tuple(_to_transition(state.transactional_id, each) for each in state.history),
    )


def is_forgotten(failure: ClientError) -> bool:
    """Return whether the coordinator no longer knows a transactional id."""
    return isinstance(failure, BrokerRefused) and failure.code == ErrorCode.TRANSACTIONAL_ID_NOT_FOUND


def _to_forced_outcome(each: dt.ForcedOutcome) -> ForcedOutcome:
    return ForcedOutcome(
        writer=_to_identity(each.producer_id, each.producer_epoch),
        cause=AbortCause(each.cause) if each.cause in set(AbortCause) else each.cause,
        at_ms=each.timestamp_ms,
        partition=None if each.topic is None else TopicPartition(each.topic, each.partition_id),
    )


def _to_transition(name: str, each: dt.HistoryTransition) -> TransactionTransition:
    has_producer = each.producer_id >= 0
    return TransactionTransition(
        transactional_id=name,
        kind=TransitionKind(each.kind) if each.kind in set(TransitionKind) else each.kind,
        at_ms=each.timestamp_ms,
        state=STATE_LABELS.get(each.state, str(each.state)),
        producer=_to_identity(each.producer_id, each.producer_epoch) if has_producer else None,
        partition_count=each.partition_count,
        client_id=each.client_id,
        address=each.address,
    )


async def describe_producers(
    call: AdminCall, partitions: Iterable[TopicPartition], broker: int | None
) -> Answers[TopicPartition, tuple[ProducerState, ...]]:
    """Describe the producers of partitions, as the leaders or one broker's replicas see them."""

    async def ask(
        node_id: int, some: Sequence[TopicPartition]
    ) -> dict[TopicPartition, tuple[ProducerState, ...] | ClientError]:
        topics = tuple(
            dp.TopicRequest(name=name, partition_indexes=tuple(indexes))
            for name, indexes in group_by_topic(some).items()
        )
        request = dp.DescribeProducersRequest(topics=topics)
        answer = await call.cluster.send(node_id, request, dp.DescribeProducersResponse)
        answers: dict[TopicPartition, tuple[ProducerState, ...] | ClientError] = {}
        for at, each in (
            (TopicPartition(t.name, p.partition_index), p) for t in answer.topics for p in t.partitions
        ):
            if each.error_code:
                answers[at] = build_broker_error(DESCRIBE_PRODUCERS, at, each.error_code, each.error_message)
            else:
                answers[at] = tuple(_to_producer_state(state) for state in each.active_producers)
        return answers

    return await call.send_to_leaders(partitions, ask, DESCRIBE_PRODUCERS, broker)


def _to_producer_state(state: dp.ProducerState) -> ProducerState:
    return ProducerState(
        identity=_to_identity(state.producer_id, state.producer_epoch),
        last_sequence=_none_if_negative(state.last_sequence),
        last_timestamp_ms=_none_if_negative(state.last_timestamp),
        coordinator_epoch=_none_if_negative(state.coordinator_epoch),
        txn_start_offset=_none_if_negative(state.current_txn_start_offset),
    )


def list_open(partition: TopicPartition, states: Iterable[ProducerState]) -> tuple[OpenTransaction, ...]:
    """Return the open transactions among the producers of a partition."""
    return tuple(
        OpenTransaction(
            partition=partition,
            writer=state.identity,
            coordinator_epoch=state.coordinator_epoch,
            start_offset=state.txn_start_offset,
            last_timestamp_ms=state.last_timestamp_ms,
        )
        for state in states
        if state.txn_start_offset is not None
    )


def _to_identity(producer_id: int, epoch: int) -> ProducerIdAndEpoch:
    return ProducerIdAndEpoch(ProducerId(producer_id), ProducerEpoch(epoch))


def _none_if_negative(value: int) -> int | None:
    return None if value < 0 else value
