"""Requests of the transaction APIs in short form, for the tests of their handlers."""

from dataclasses import dataclass
from typing import Any

from tests.support.memory_broker import MemoryBroker

from tallystick.protocol.messages.cluster.find_coordinator import FindCoordinatorRequest
from tallystick.protocol.messages.txn.add_offsets_to_txn import AddOffsetsToTxnRequest
from tallystick.protocol.messages.txn.add_partitions_to_txn import (
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnTopic,
    AddPartitionsToTxnTransaction,
)
from tallystick.protocol.messages.txn.end_txn import EndTxnRequest
from tallystick.protocol.messages.txn.init_producer_id import InitProducerIdRequest


def init(
    name: str | None = "t", *, timeout: int = 60_000, pair: tuple[int, int] = (-1, -1), **flags: Any
) -> Any:
    return InitProducerIdRequest(
        transactional_id=name,
        transaction_timeout_ms=timeout,
        producer_id=pair[0],
        producer_epoch=pair[1],
        **flags,
    )


def named(wanted: dict[str, tuple[int, ...]]) -> tuple[AddPartitionsToTxnTopic, ...]:
    return tuple(AddPartitionsToTxnTopic(name=name, partitions=indexes) for name, indexes in wanted.items())


def add(pair: Any, wanted: dict[str, tuple[int, ...]], name: str = "t") -> Any:
    """Return an AddPartitionsToTxn request, up to version 3."""
    return AddPartitionsToTxnRequest(
        v3_and_below_transactional_id=name,
        v3_and_below_producer_id=pair.producer_id,
        v3_and_below_producer_epoch=pair.producer_epoch,
        v3_and_below_topics=named(wanted),
    )


def batched(*transactions: tuple[str, Any, dict[str, tuple[int, ...]], bool]) -> Any:
    """Return an AddPartitionsToTxn request from version 4 on.

    Each transaction gives its name, producer id and epoch, partitions, and whether to verify only.
    """
    return AddPartitionsToTxnRequest(
        transactions=tuple(
            AddPartitionsToTxnTransaction(
                transactional_id=name,
                producer_id=pair.producer_id,
                producer_epoch=pair.producer_epoch,
                verify_only=verify_only,
                topics=named(wanted),
            )
            for name, pair, wanted, verify_only in transactions
        )
    )


def add_offsets(pair: Any, name: str = "t", group_id: str = "g") -> Any:
    return AddOffsetsToTxnRequest(
        transactional_id=name,
        producer_id=pair.producer_id,
        producer_epoch=pair.producer_epoch,
        group_id=group_id,
    )


def end(pair: Any, name: str = "t", *, committed: bool = True) -> Any:
    return EndTxnRequest(
        transactional_id=name,
        producer_id=pair.producer_id,
        producer_epoch=pair.producer_epoch,
        committed=committed,
    )


def find(version: int, *keys: str, key_type: int = 1) -> Any:
    if version >= 4:
        return FindCoordinatorRequest(coordinator_keys=keys, key_type=key_type)
    return FindCoordinatorRequest(key=keys[0], key_type=key_type)


def codes(results: Any) -> dict[str, int]:
    return {
        f"{each.name}-{partition.partition_index}": partition.partition_error_code
        for each in results
        for partition in each.results_by_partition
    }


@dataclass
class Pair:
    producer_id: int
    producer_epoch: int


def pair_of(answer: Any) -> tuple[int, int]:
    return answer.producer_id, answer.producer_epoch


async def claimed(desk: MemoryBroker, name: str = "t", **flags: Any) -> Pair:
    """Return the producer id and epoch of a new incarnation; creates the topics and loads the coordinator."""
    await desk.make_topic("orders")
    await desk.ask(find(4, name), 4)
    answer = await desk.ask(init(name, **flags), 6 if flags else 5)
    assert answer.error_code == 0
    return Pair(*pair_of(answer))
