"""resourceRefCount of the audit log: how many entries of a request one check answers.

Source: AuthHelper.filterByAuthorized; KafkaApis, for what an entry is in each API.
"""

import logging
from typing import Any

import pytest
from tests.support.memory_broker import memory_broker, on_a_loop

from tallystick.broker.authorizer.audit_log import AUDIT_LOGGER
from tallystick.broker.config.broker_config import STANDARD_AUTHORIZER
from tallystick.protocol.messages.data.fetch import FetchPartition, FetchRequest, FetchTopic
from tallystick.protocol.messages.data.list_offsets import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsTopic,
)
from tallystick.protocol.messages.data.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from tallystick.protocol.messages.txn.add_partitions_to_txn import (
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnTopic,
)
from tallystick.protocol.records import BatchMeta, Record, encode_batch

FETCHED = tuple(FetchPartition(partition=index, fetch_offset=0, partition_max_bytes=1) for index in range(3))
PRODUCED = tuple(PartitionProduceData(index=index, records=b"") for index in range(2))
LISTED = (ListOffsetsPartition(partition_index=0, timestamp=-1),)


@pytest.mark.parametrize(
    ("request_", "version", "counts"),
    [
        (
            FetchRequest(
                max_wait_ms=0,
                min_bytes=0,
                topics=(
                    FetchTopic(topic="orders", partitions=FETCHED),
                    FetchTopic(topic="other", partitions=FETCHED[:1]),
                ),
            ),
            12,
            {"orders": 3, "other": 1},
        ),
        (
            ProduceRequest(
                acks=1,
                timeout_ms=1000,
                topic_data=(TopicProduceData(name="orders", partition_data=PRODUCED),),
            ),
            9,
            {"orders": 2},
        ),
        (
            AddPartitionsToTxnRequest(
                v3_and_below_transactional_id="t",
                v3_and_below_topics=(AddPartitionsToTxnTopic(name="orders", partitions=(0, 1)),),
            ),
            3,
            {"orders": 2},
        ),
        (
            ListOffsetsRequest(
                replica_id=-1,
                topics=(
                    ListOffsetsTopic(name="orders", partitions=LISTED * 2),
                    ListOffsetsTopic(name="orders", partitions=LISTED),
                ),
            ),
            5,
            {"orders": 2},
        ),
    ],
    ids=["Fetch", "Produce", "AddPartitionsToTxn", "ListOffsets"],
)
@on_a_loop
async def test_each_entry_counts(
    request_: Any, version: int, counts: dict[str, int], caplog: pytest.LogCaptureFixture
) -> None:
    async with memory_broker(
        authorizer_class_name=STANDARD_AUTHORIZER, allow_everyone_if_no_acl_found="true"
    ) as desk:
        with caplog.at_level(logging.DEBUG, AUDIT_LOGGER):
            await desk.ask(request_, version)
    lines = [record.getMessage() for record in caplog.records if "Topic:LITERAL" in record.getMessage()]
    assert len(lines) == len(counts)
    for name, count in counts.items():
        (line,) = (line for line in lines if f"Topic:LITERAL:{name} " in line)
        assert f" with resourceRefCount = {count} based on rule " in line


@on_a_loop
async def test_nothing_is_counted_that_is_not_written(monkeypatch: pytest.MonkeyPatch) -> None:
    def count(self: object, name: str) -> int:
        raise AssertionError("counted")

    monkeypatch.setattr("tallystick.broker.handlers.authorization.TopicReferences.__call__", count)
    async with memory_broker(
        authorizer_class_name=STANDARD_AUTHORIZER, allow_everyone_if_no_acl_found="true"
    ) as desk:
        request = ListOffsetsRequest(
            replica_id=-1, topics=(ListOffsetsTopic(name="orders", partitions=LISTED),)
        )
        assert await desk.ask(request, 5)


@pytest.mark.parametrize("level", [logging.DEBUG, logging.INFO])
@on_a_loop
async def test_a_transactional_produce_has_one_line_for_its_id_and_one_for_each_topic(
    level: int, caplog: pytest.LogCaptureFixture
) -> None:
    """KafkaApis.handleProduceRequest: WRITE on the id once, then `filterByAuthorized` of the topics."""
    async with memory_broker(
        authorizer_class_name=STANDARD_AUTHORIZER, allow_everyone_if_no_acl_found="true"
    ) as desk:
        await desk.make_topic("orders")
        request = make_transactional_produce("t", "orders")
        with caplog.at_level(level, AUDIT_LOGGER):
            for _ in range(2):  # the second is like the one before it
                await desk.ask(request, 12)
    lines = [record.getMessage() for record in caplog.records if record.name == AUDIT_LOGGER]
    resources = [line.partition(" on resource = ")[2].partition(" for ")[0] for line in lines]
    expected = ["TransactionalId:LITERAL:t", "Topic:LITERAL:orders"] * 2
    assert resources == (expected if level == logging.DEBUG else [])


def make_transactional_produce(name: str, topic: str) -> ProduceRequest:
    meta = BatchMeta(producer_id=1, producer_epoch=0, base_sequence=0, is_transactional=True)
    data = PartitionProduceData(index=0, records=encode_batch([Record(0, 1, None, b"v", ())], meta))
    return ProduceRequest(
        transactional_id=name,
        acks=-1,
        timeout_ms=1000,
        topic_data=(TopicProduceData(name=topic, partition_data=(data,)),),
    )
