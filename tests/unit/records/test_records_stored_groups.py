"""The schemas of `__consumer_offsets`, against what Kafka's own code writes."""

from pathlib import Path
from uuid import UUID

import pytest

from tallystick.protocol import DecodeError, decode, encode
from tallystick.protocol.messages.groups.stored_offsets import (
    GroupMetadataKey,
    GroupMetadataValue,
    MemberMetadata,
    OffsetCommitKey,
    OffsetCommitValue,
)

FILE = Path(__file__).parents[2] / "vectors" / "stored_groups" / "written_by_kafka.hex"
VECTORS = dict(line.split() for line in FILE.read_text().splitlines() if not line.startswith("#"))


def commit(version: int) -> OffsetCommitValue:
    return OffsetCommitValue(
        offset=1234567890123,
        leader_epoch=5 if version >= 3 else -1,
        metadata="meta",
        commit_timestamp=1_700_000_000_000,
        expire_timestamp=1_700_000_100_000 if version == 1 else -1,
        topic_id=UUID("01234567-89ab-cdef-0fed-cba987654321") if version >= 4 else UUID(int=0),
    )


def group(version: int) -> GroupMetadataValue:
    member = MemberMetadata(
        member_id="m-1",
        group_instance_id="static" if version >= 3 else None,
        client_id="c",
        client_host="/127.0.0.1",
        rebalance_timeout=300_000 if version >= 1 else -1,
        session_timeout=45_000,
        subscription=b"\1\2",
        assignment=b"\3",
    )
    return GroupMetadataValue(
        protocol_type="consumer",
        generation=3,
        protocol="range",
        leader="m-1",
        current_state_timestamp=1_700_000_000_001 if version >= 2 else -1,
        members=(member,),
    )


CASES: dict[str, tuple[object, int]] = {
    # Both versions of an offset's key have one layout; a group's key is version 2 and has one more.
    "OffsetCommitKey-0": (OffsetCommitKey(group="g", topic="orders", partition=7), 1),
    "GroupMetadataKey-0": (GroupMetadataKey(group="g"), 2),
    **{f"OffsetCommitValue-{version}": (commit(version), version) for version in range(5)},
    **{f"GroupMetadataValue-{version}": (group(version), version) for version in range(5)},
    "OffsetCommitValueWithoutTopicId-4": (OffsetCommitValue(offset=1, metadata="", commit_timestamp=2), 4),
    "GroupMetadataValueEmpty-3": (
        GroupMetadataValue(protocol_type="", generation=0, protocol=None, leader=None),
        3,
    ),
}


def test_every_vector_is_checked() -> None:
    assert set(CASES) == set(VECTORS)


@pytest.mark.parametrize("name", CASES)
def test_kafkas_bytes_are_ours(name: str) -> None:
    value, version = CASES[name]
    stored = bytes.fromhex(VECTORS[name])
    assert encode(value, version) == stored
    assert decode(type(value), stored, version) == value


@pytest.mark.parametrize("name", CASES)
def test_a_cut_value_is_refused(name: str) -> None:
    value, version = CASES[name]
    stored = bytes.fromhex(VECTORS[name])
    for size in range(len(stored)):
        with pytest.raises(DecodeError):
            decode(type(value), stored[:size], version)
