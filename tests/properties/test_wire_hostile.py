"""[WIRE-1] [WIRE-2] Hostile bytes give a value or a DecodeError, within bounds on elements and memory."""

import random
import tracemalloc

import pytest
from tests.support.effort import LONG
from tests.support.hostile import attack, bombs, message_classes, versions_of

from tallystick.kernel.limits import DECODE_MEMORY_BASE_BYTES, MIB
from tallystick.protocol import DecodeError, decode, encode
from tallystick.protocol.compile import _UNKNOWN_TAG_BYTES, DECODE_MEMORY_BYTES
from tallystick.protocol.messages.data.produce import ProduceRequest
from tallystick.protocol.messages.groups.administration import ListGroupsRequest
from tallystick.protocol.primitives import encode_uvarint


@pytest.mark.gate(0)
def test_any_bytes_give_a_value_or_a_decode_error() -> None:
    """[WIRE-1] `make fuzz` runs a million of these."""
    seed = 1 if not LONG else random.randrange(2**32)
    counts = attack(20_000 if not LONG else 1_000_000, seed)
    assert counts["refused"] > counts["values"] > 0


def peak_of(cls: type, version: int, frame: bytes) -> int:
    """Most bytes allocated at a time while a frame is decoded."""
    tracemalloc.start()
    try:
        decode(cls, frame, version)
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


@pytest.mark.gate(0)
def test_no_element_costs_more_than_it_is_charged_for() -> None:
    """[WIRE-2] Every array of every message; in the long form the worst as large as the purse allows."""
    few, spread = 400, []
    for cls in message_classes():
        for version in versions_of(cls) if LONG else versions_of(cls)[-1:]:
            for bomb in bombs(cls, version):
                frame = bomb.frame(few)
                decode(cls, frame, version)  # compiles the decoder, which is not the frame's memory
                charged = few * bomb.price + 4 * len(frame)
                spread.append((peak_of(cls, version, frame) / charged, bomb))
    spread.sort(key=lambda pair: -pair[0])
    assert spread[0][0] < DECODE_MEMORY_BASE_BYTES / DECODE_MEMORY_BYTES, f"{spread[0][1]}"
    worst = spread[0][1]
    with pytest.raises(DecodeError, match="elements"):
        decode(worst.cls, worst.frame(DECODE_MEMORY_BYTES // worst.price + 1), worst.version)
    for _, bomb in spread[:10] if LONG else ():
        frame = bomb.frame(DECODE_MEMORY_BYTES // bomb.price - 10)  # its parents cost something, too
        assert peak_of(bomb.cls, bomb.version, frame) < DECODE_MEMORY_BASE_BYTES + 4 * len(frame), f"{bomb}"


def test_tagged_fields_are_paid_for() -> None:
    """[WIRE-2] Many structs with many unknown tags each: small on the wire, large in memory."""

    def frame(topics: int) -> bytes:
        topic = b"\x01\x01" + encode_uvarint(1000) + b"\x7f\x01\xaa" * 1000  # no name, no partitions, tags
        return b"\x00" + bytes(6) + encode_uvarint(topics + 1) + topic * topics + b"\x00"

    decode(ProduceRequest, frame(1), 12)
    assert peak_of(ProduceRequest, 12, frame(4)) < 4 * 1000 * _UNKNOWN_TAG_BYTES + 4 * len(frame(4))
    with pytest.raises(DecodeError, match="tagged"):
        decode(ProduceRequest, frame(DECODE_MEMORY_BYTES // _UNKNOWN_TAG_BYTES // 1000 + 1), 12)


def test_wide_characters_cost_four_bytes_each() -> None:
    """[WIRE-2] One character above U+FFFF makes Python keep four bytes for every character."""
    text = "\U0001d11e" + "a" * 32_700
    group = ListGroupsRequest(states_filter=(text,) * 300)
    frame = encode(group, 5)
    assert peak_of(ListGroupsRequest, 5, frame) < 8 * MIB + 4 * len(frame)
