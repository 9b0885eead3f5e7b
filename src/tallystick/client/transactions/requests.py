"""Requests of a transactional producer, and the meaning of their responses. Pure: no waiting, no retries.

A response with an error code becomes the error it means, so that `client.errors.rules` alone decides about
retries. -1 and similar placeholders do not leave this module.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import Final, TypeVar

from tallystick.client.errors import build_broker_error
from tallystick.client.offsets import GroupMetadata, OffsetAndMetadata
from tallystick.client.transactions.modes import TxnDecision, TxnDescription
from tallystick.client.transactions.state import DueEndTxn
from tallystick.kernel.codes import ErrorCode
from tallystick.kernel.ids import ProducerEpoch, ProducerId, ProducerIdAndEpoch, TopicPartition
from tallystick.protocol.messages.txn.add_offsets_to_txn import AddOffsetsToTxnRequest
from tallystick.protocol.messages.txn.add_partitions_to_txn import (
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
    AddPartitionsToTxnTopic,
)
from tallystick.protocol.messages.txn.describe_transactions import DescribeTransactionsResponse
from tallystick.protocol.messages.txn.end_txn import EndTxnRequest, EndTxnResponse
from tallystick.protocol.messages.txn.init_producer_id import InitProducerIdResponse
from tallystick.protocol.messages.txn.txn_offset_commit import (
    TxnOffsetCommitRequest,
    TxnOffsetCommitRequestPartition,
    TxnOffsetCommitRequestTopic,
    TxnOffsetCommitResponse,
)

V = TypeVar("V")

# KIP-890: these request versions imply transaction version 2, lower ones the versions before.
END_TXN_BUMP_VERSION: Final = 5
TXN_OFFSETS_JOIN_VERSION: Final = 5
ADD_PARTITIONS_CLIENT_MAX: Final = 3
INIT_EPOCH_BUMP_VERSION: Final = 3
"""KIP-360: the producer sends its producer id and epoch, and gets the next epoch."""


def parse_identity(producer_id: int, epoch: int) -> ProducerIdAndEpoch | None:
    """Return the producer id and epoch of a message, where -1 stands for none."""
    if producer_id < 0 or epoch < 0:
        return None
    return ProducerIdAndEpoch(ProducerId(producer_id), ProducerEpoch(epoch))


def parse_init_producer_id(
    transactional_id: str, answer: InitProducerIdResponse
) -> tuple[ProducerIdAndEpoch, ProducerIdAndEpoch | None]:
    """Return the client's producer id and epoch, and those of the transaction in doubt, if any."""
    client = parse_identity(answer.producer_id, answer.producer_epoch)
    if answer.error_code or client is None:
        code = answer.error_code or ErrorCode.UNKNOWN_SERVER_ERROR
        raise build_broker_error("InitProducerId", transactional_id, code)
    return client, parse_identity(answer.ongoing_txn_producer_id, answer.ongoing_txn_producer_epoch)


def parse_description(transactional_id: str, answer: DescribeTransactionsResponse) -> TxnDescription | None:
    """Return the coordinator's description of an id; None when it knows of none (105)."""
    (state,) = answer.transaction_states
    if state.error_code == ErrorCode.TRANSACTIONAL_ID_NOT_FOUND:
        return None
    if state.error_code:
        raise build_broker_error("DescribeTransactions", transactional_id, state.error_code)
    identity = parse_identity(state.producer_id, state.producer_epoch)
    if identity is None:  # created, and never initialised
        return None
    # docs/formats/private-tags.md: tallystick's broker reports transactions it ended for a client.
    forced_identities = {
        parse_identity(f.producer_id, f.producer_epoch) for f in state.forced_outcomes if f.topic is None
    }
    return TxnDescription(
        state=state.transaction_state,
        identity=identity,
        forced_identities=frozenset(f for f in forced_identities if f is not None),
    )


def build_end_txn(transactional_id: str, end: DueEndTxn) -> EndTxnRequest:
    return EndTxnRequest(
        transactional_id=transactional_id,
        producer_id=end.client.producer_id,
        producer_epoch=end.client.epoch,
        committed=end.decision is TxnDecision.COMMIT,
    )


def parse_end_txn(transactional_id: str, answer: EndTxnResponse) -> ProducerIdAndEpoch | None:
    """Return the producer id and epoch for the next transaction, if the end bumped them."""
    if answer.error_code:
        raise build_broker_error("EndTxn", transactional_id, answer.error_code)
    return parse_identity(answer.producer_id, answer.producer_epoch)


def build_add_partitions(
    transactional_id: str, client: ProducerIdAndEpoch, partitions: Iterable[TopicPartition]
) -> AddPartitionsToTxnRequest:
    topics = _group_by_topic({each: each.partition for each in partitions})
    return AddPartitionsToTxnRequest(
        v3_and_below_transactional_id=transactional_id,
        v3_and_below_producer_id=client.producer_id,
        v3_and_below_producer_epoch=client.epoch,
        v3_and_below_topics=tuple(
            AddPartitionsToTxnTopic(name=name, partitions=tuple(sorted(of_topic)))
            for name, of_topic in sorted(topics.items())
        ),
    )


def check_partitions_added(transactional_id: str, answer: AddPartitionsToTxnResponse) -> None:
    """Raise the first refusal; 55 only says that another partition was refused."""
    codes = {
        TopicPartition(topic.name, result.partition_index): result.partition_error_code
        for topic in answer.results_by_topic_v3_and_below
        for result in topic.results_by_partition
        if result.partition_error_code
    }
    if not codes:
        return
    at = min(codes, key=lambda each: (codes[each] == ErrorCode.OPERATION_NOT_ATTEMPTED, each))
    raise build_broker_error("AddPartitionsToTxn", transactional_id, codes[at], f"partition {at}")


def build_add_offsets(
    transactional_id: str, client: ProducerIdAndEpoch, group_id: str
) -> AddOffsetsToTxnRequest:
    return AddOffsetsToTxnRequest(
        transactional_id=transactional_id,
        producer_id=client.producer_id,
        producer_epoch=client.epoch,
        group_id=group_id,
    )


def build_txn_offset_commit(
    transactional_id: str,
    client: ProducerIdAndEpoch,
    group: GroupMetadata,
    offsets: Mapping[TopicPartition, OffsetAndMetadata],
) -> TxnOffsetCommitRequest:
    topics = _group_by_topic({at: _build_offset(at, offset) for at, offset in sorted(offsets.items())})
    return TxnOffsetCommitRequest(
        transactional_id=transactional_id,
        group_id=group.group_id,
        producer_id=client.producer_id,
        producer_epoch=client.epoch,
        generation_id_or_member_epoch=group.generation_id,
        member_id=group.member_id,
        group_instance_id=group.group_instance_id,
        topics=tuple(
            TxnOffsetCommitRequestTopic(name=name, partitions=tuple(of_topic))
            for name, of_topic in topics.items()
        ),
    )


def _build_offset(at: TopicPartition, offset: OffsetAndMetadata) -> TxnOffsetCommitRequestPartition:
    return TxnOffsetCommitRequestPartition(
        partition_index=at.partition,
        committed_offset=offset.offset,
        committed_leader_epoch=-1 if offset.leader_epoch is None else offset.leader_epoch,
        committed_metadata=offset.metadata,
    )


def parse_error_codes(answer: TxnOffsetCommitResponse) -> dict[TopicPartition, int]:
    """Return the error code of every answered partition, 0 included."""
    return {
        TopicPartition(topic.name, result.partition_index): result.error_code
        for topic in answer.topics
        for result in topic.partitions
    }


def _group_by_topic(values: Mapping[TopicPartition, V]) -> dict[str, list[V]]:
    topics: defaultdict[str, list[V]] = defaultdict(list)
    for at, value in values.items():
        topics[at.topic].append(value)
    return topics
