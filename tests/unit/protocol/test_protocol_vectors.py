"""Golden bytes of the transaction APIs: what is written by hand in tests/vectors/protocol is what we say."""

import uuid
from pathlib import Path
from typing import Any

import pytest

from tallystick.kernel.codes import ErrorCode
from tallystick.kernel.ids import INT32_MAX
from tallystick.protocol import decode, encode
from tallystick.protocol.messages.txn import add_offsets_to_txn as offsets
from tallystick.protocol.messages.txn import add_partitions_to_txn as partitions
from tallystick.protocol.messages.txn import describe_producers as producers
from tallystick.protocol.messages.txn import describe_transactions as transactions
from tallystick.protocol.messages.txn import list_transactions as listed
from tallystick.protocol.messages.txn import txn_offset_commit as commit
from tallystick.protocol.messages.txn import write_txn_markers as markers
from tallystick.protocol.messages.txn.end_txn import EndTxnRequest, EndTxnResponse
from tallystick.protocol.messages.txn.init_producer_id import InitProducerIdRequest, InitProducerIdResponse

VECTORS = Path(__file__).parents[2] / "vectors" / "protocol" / "transactions.hex"
TOPIC_ID = uuid.UUID(bytes=bytes(range(16)))
WRITER: Any = {"transactional_id": "t", "producer_id": 42, "producer_epoch": 7}
V3: Any = {f"v3_and_below_{name}": value for name, value in WRITER.items()}
NOVEMBER_2023 = 1_700_000_000_000


def asked(*numbers: int) -> partitions.AddPartitionsToTxnTopic:
    return partitions.AddPartitionsToTxnTopic(name="a", partitions=numbers)


def added(code: ErrorCode) -> partitions.AddPartitionsToTxnTopicResult:
    result = partitions.AddPartitionsToTxnPartitionResult(partition_index=3, partition_error_code=code)
    return partitions.AddPartitionsToTxnTopicResult(name="a", results_by_partition=(result,))


def marker(**more: Any) -> markers.WriteTxnMarkersRequest:
    made = markers.WritableTxnMarker(producer_id=42, producer_epoch=8, coordinator_epoch=9, **more)
    return markers.WriteTxnMarkersRequest(markers=(made,))


def marked(code: ErrorCode) -> markers.WriteTxnMarkersResponse:
    partition = markers.WritableTxnMarkerPartitionResult(partition_index=3, error_code=code)
    topic = markers.WritableTxnMarkerTopicResult(name="a", partitions=(partition,))
    result = markers.WritableTxnMarkerResult(producer_id=42, topics=(topic,))
    return markers.WriteTxnMarkersResponse(markers=(result,))


def offset(metadata: str | None, epoch: int = -1, **topic: Any) -> Any:
    partition = commit.TxnOffsetCommitRequestPartition(
        partition_index=3, committed_offset=100, committed_leader_epoch=epoch, committed_metadata=metadata
    )
    return (commit.TxnOffsetCommitRequestTopic(partitions=(partition,), **topic),)


def committed(code: ErrorCode, **topic: Any) -> commit.TxnOffsetCommitResponse:
    partition = commit.TxnOffsetCommitResponsePartition(partition_index=3, error_code=code)
    made = commit.TxnOffsetCommitResponseTopic(partitions=(partition,), **topic)
    return commit.TxnOffsetCommitResponse(topics=(made,))


def producer_states() -> producers.DescribeProducersResponse:
    state = producers.ProducerState(
        producer_id=42,
        producer_epoch=7,
        last_sequence=99,
        last_timestamp=NOVEMBER_2023,
        coordinator_epoch=-1,
        current_txn_start_offset=100,
    )
    partition = producers.PartitionResponse(partition_index=3, active_producers=(state,))
    topic = producers.TopicResponse(name="a", partitions=(partition,))
    return producers.DescribeProducersResponse(topics=(topic,))


def transaction_states() -> transactions.DescribeTransactionsResponse:
    state = transactions.TransactionState(
        **WRITER,
        transaction_state="Ongoing",
        transaction_timeout_ms=60_000,
        transaction_start_time_ms=NOVEMBER_2023,
        topics=(transactions.TopicData(topic="a", partitions=(3,)),),
    )
    return transactions.DescribeTransactionsResponse(transaction_states=(state,))


EXPECTED: dict[str, object] = {
    "InitProducerIdRequest 0": InitProducerIdRequest(transactional_id="t", transaction_timeout_ms=60_000),
    "InitProducerIdRequest 1": InitProducerIdRequest(transactional_id=None, transaction_timeout_ms=INT32_MAX),
    "InitProducerIdRequest 4": InitProducerIdRequest(
        transactional_id="é", transaction_timeout_ms=1000, producer_id=42, producer_epoch=7
    ),
    "InitProducerIdRequest 6": InitProducerIdRequest(
        transactional_id="t", transaction_timeout_ms=60_000, enable_2pc=True, keep_prepared_txn=True
    ),
    "InitProducerIdResponse 0": InitProducerIdResponse(
        error_code=ErrorCode.CONCURRENT_TRANSACTIONS, producer_id=-1, producer_epoch=-1
    ),
    "InitProducerIdResponse 5": InitProducerIdResponse(
        throttle_time_ms=5, producer_id=42, producer_epoch=32766
    ),
    "InitProducerIdResponse 6": InitProducerIdResponse(
        producer_id=73, producer_epoch=0, ongoing_txn_producer_id=42, ongoing_txn_producer_epoch=32766
    ),
    "AddPartitionsToTxnRequest 0": partitions.AddPartitionsToTxnRequest(
        **V3, v3_and_below_topics=(asked(0, 3),)
    ),
    "AddPartitionsToTxnRequest 3": partitions.AddPartitionsToTxnRequest(
        **V3, v3_and_below_topics=(asked(3),)
    ),
    "AddPartitionsToTxnRequest 5": partitions.AddPartitionsToTxnRequest(
        transactions=(
            partitions.AddPartitionsToTxnTransaction(**WRITER, verify_only=True, topics=(asked(3),)),
        )
    ),
    "AddPartitionsToTxnResponse 1": partitions.AddPartitionsToTxnResponse(
        results_by_topic_v3_and_below=(added(ErrorCode.OPERATION_NOT_ATTEMPTED),)
    ),
    "AddPartitionsToTxnResponse 4": partitions.AddPartitionsToTxnResponse(
        error_code=ErrorCode.CLUSTER_AUTHORIZATION_FAILED,
        results_by_transaction=(
            partitions.AddPartitionsToTxnResult(
                transactional_id="t", topic_results=(added(ErrorCode.INVALID_TXN_STATE),)
            ),
        ),
    ),
    "AddOffsetsToTxnRequest 2": offsets.AddOffsetsToTxnRequest(**WRITER, group_id="g"),
    "AddOffsetsToTxnRequest 4": offsets.AddOffsetsToTxnRequest(**WRITER, group_id="g"),
    "AddOffsetsToTxnResponse 0": offsets.AddOffsetsToTxnResponse(error_code=ErrorCode.NOT_COORDINATOR),
    "AddOffsetsToTxnResponse 4": offsets.AddOffsetsToTxnResponse(error_code=ErrorCode.TRANSACTION_ABORTABLE),
    "EndTxnRequest 1": EndTxnRequest(**WRITER, committed=False),
    "EndTxnRequest 5": EndTxnRequest(**WRITER, committed=True),
    "EndTxnResponse 0": EndTxnResponse(error_code=ErrorCode.INVALID_PRODUCER_EPOCH),
    "EndTxnResponse 4": EndTxnResponse(error_code=ErrorCode.PRODUCER_FENCED),
    "EndTxnResponse 5": EndTxnResponse(producer_id=42, producer_epoch=8),
    "WriteTxnMarkersRequest 1": marker(
        transaction_result=True,
        topics=(markers.WritableTxnMarkerTopic(name="a", partition_indexes=(3,)),),
    ),
    "WriteTxnMarkersRequest 2": marker(transaction_result=False, transaction_version=2),
    "WriteTxnMarkersResponse 2": marked(ErrorCode.TRANSACTION_COORDINATOR_FENCED),
    "TxnOffsetCommitRequest 1": commit.TxnOffsetCommitRequest(
        **WRITER, group_id="g", topics=offset(None, name="a")
    ),
    "TxnOffsetCommitRequest 5": commit.TxnOffsetCommitRequest(
        **WRITER,
        group_id="g",
        generation_id_or_member_epoch=5,
        member_id="m",
        topics=offset("", epoch=1, name="a"),
    ),
    "TxnOffsetCommitRequest 6": commit.TxnOffsetCommitRequest(
        **WRITER, group_id="g", group_instance_id="i", topics=offset(None, topic_id=TOPIC_ID)
    ),
    "TxnOffsetCommitResponse 3": committed(ErrorCode.ILLEGAL_GENERATION, name="a"),
    "TxnOffsetCommitResponse 6": committed(ErrorCode.UNKNOWN_TOPIC_ID, topic_id=TOPIC_ID),
    "DescribeProducersRequest 0": producers.DescribeProducersRequest(
        topics=(producers.TopicRequest(name="a", partition_indexes=(3,)),)
    ),
    "DescribeProducersResponse 0": producer_states(),
    "DescribeTransactionsRequest 0": transactions.DescribeTransactionsRequest(transactional_ids=("t", "u")),
    "DescribeTransactionsResponse 0": transaction_states(),
    "ListTransactionsRequest 0": listed.ListTransactionsRequest(state_filters=("Empty",)),
    "ListTransactionsRequest 1": listed.ListTransactionsRequest(
        producer_id_filters=(42,), duration_filter=1000
    ),
    "ListTransactionsRequest 2": listed.ListTransactionsRequest(transactional_id_pattern="p.*"),
    "ListTransactionsResponse 2": listed.ListTransactionsResponse(
        unknown_state_filters=("X",),
        transaction_states=(
            listed.TransactionState(transactional_id="t", producer_id=42, transaction_state="Ongoing"),
        ),
    ),
}


def vectors() -> dict[str, bytes]:
    blocks = VECTORS.read_text().split("\n== ")[1:]
    split = (block.split("\n") for block in blocks)
    return {head: bytes.fromhex("".join(line.split("#")[0] for line in lines)) for head, *lines in split}


@pytest.mark.parametrize(("name", "raw"), vectors().items(), ids=vectors())
def test_bytes_written_by_hand(name: str, raw: bytes) -> None:
    message, version = EXPECTED[name], int(name.split()[1])
    assert name.split()[0] == type(message).__name__
    assert encode(message, version).hex(" ") == raw.hex(" ")
    assert decode(type(message), raw, version) == message


def test_every_vector_has_a_value() -> None:
    assert set(vectors()) == set(EXPECTED)
