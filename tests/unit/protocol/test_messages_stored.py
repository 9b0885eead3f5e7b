"""Transaction-log records and the consumers' own bytes, against what Kafka's own code writes."""

from pathlib import Path

import pytest

from tallystick.protocol import DecodeError, UnsupportedField, decode, encode
from tallystick.protocol.messages.groups.consumer_protocol import (
    ConsumerProtocolAssignment,
    ConsumerProtocolSubscription,
    TopicPartition,
)
from tallystick.protocol.messages.txn.stored_transactions import (
    PartitionsSchema,
    TransactionLogKey,
    TransactionLogValue,
)

FILE = Path(__file__).parents[2] / "vectors" / "stored_transactions" / "written_by_kafka.hex"
VECTORS = dict(line.split() for line in FILE.read_text().splitlines() if not line.startswith("#"))

ORDERS = PartitionsSchema(topic="orders", partition_ids=(0, 3))
OWNED = TopicPartition(topic="orders", partitions=(0, 3))


def entry(
    status: int,
    partitions: tuple[PartitionsSchema, ...] | None,
    start_ms: int = 1_700_000_000_000,
    tags: tuple[int, int, int, int] = (-1, -1, -1, 0),
) -> TransactionLogValue:
    return TransactionLogValue(
        producer_id=42,
        previous_producer_id=tags[0],
        next_producer_id=tags[1],
        producer_epoch=7,
        next_producer_epoch=tags[2],
        transaction_timeout_ms=60_000,
        transaction_status=status,
        transaction_partitions=partitions,
        transaction_last_update_timestamp_ms=1_700_000_000_001,
        transaction_start_timestamp_ms=start_ms,
        client_transaction_version=tags[3],
    )


def subscription(version: int) -> ConsumerProtocolSubscription:
    return ConsumerProtocolSubscription(
        topics=("orders", "payments"),
        user_data=b"\1\2",
        owned_partitions=(OWNED,) if version >= 1 else (),
        generation_id=9 if version >= 2 else -1,
        rack_id="r1" if version >= 3 else None,
    )


MOVED = entry(1, (ORDERS,), tags=(41, 43, 8, 2))
CASES: dict[str, object] = {
    "TransactionLogKey-0": TransactionLogKey(transactional_id="pay-7"),
    **{f"Ongoing-{version}": entry(1, (ORDERS,)) for version in range(2)},
    **{f"Empty-{version}": entry(0, None, start_ms=-1) for version in range(2)},
    **{f"CompleteCommit-{version}": entry(4, ()) for version in range(2)},
    "Tagged-1": MOVED,
    **{f"ConsumerProtocolSubscription-{version}": subscription(version) for version in range(4)},
    **{
        f"ConsumerProtocolAssignment-{version}": ConsumerProtocolAssignment(assigned_partitions=(OWNED,))
        for version in range(4)
    },
}


def test_every_vector_is_checked() -> None:
    assert set(CASES) == set(VECTORS)


@pytest.mark.parametrize("name", CASES)
def test_kafkas_bytes_are_ours(name: str) -> None:
    value, version = CASES[name], int(name[-1])
    stored = bytes.fromhex(VECTORS[name])
    assert encode(value, version) == stored
    assert decode(type(value), stored, version) == value


@pytest.mark.parametrize("name", CASES)
def test_a_cut_value_is_refused(name: str) -> None:
    stored = bytes.fromhex(VECTORS[name])
    for size in range(len(stored)):
        with pytest.raises(DecodeError):
            decode(type(CASES[name]), stored[:size], int(name[-1]))


def test_an_identity_on_the_move_is_never_written_without_its_tags() -> None:
    with pytest.raises(UnsupportedField, match="previous_producer_id"):
        encode(MOVED, 0)
