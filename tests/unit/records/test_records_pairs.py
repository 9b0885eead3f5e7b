"""Key and value of every record, read in place: the same as reading it all."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tallystick.kernel.ids import ProducerEpoch, ProducerId, ProducerIdAndEpoch
from tallystick.protocol.records import (
    BatchMeta,
    Codec,
    CorruptBatch,
    Record,
    RecordsError,
    decode_records,
    encode_batch,
    iter_headers,
)
from tallystick.protocol.records.control import ControlType, EndTransactionMarker, encode_marker
from tallystick.protocol.records.key_values import iter_key_values

some_bytes = st.none() | st.binary(max_size=200) | st.sampled_from([b"", b"x" * 63, b"x" * 64, b"x" * 20_000])
some_records = st.builds(
    Record,
    offset=st.integers(0, 300),
    timestamp_ms=st.integers(0, 1 << 40),
    key=some_bytes,
    value=some_bytes,
    headers=st.sampled_from([(), (("name", b"value"),)]),
)


@st.composite
def batches(draw: st.DrawFn) -> bytes:
    drawn = draw(st.lists(some_records, min_size=1, max_size=3, unique_by=lambda record: record.offset))
    codec = draw(st.sampled_from([Codec.NONE, Codec.NONE, Codec.NONE, Codec.LZ4]))
    return encode_batch(sorted(drawn), BatchMeta(codec=codec))


@given(st.lists(batches(), max_size=4))
def test_pairs_are_those_of_the_records(many: list[bytes]) -> None:
    data = b"".join(many)
    records = [record for at, _ in iter_headers(data) for record in decode_records(data, at)]
    assert list(iter_key_values(data)) == [(record.key, record.value) for record in records]


def test_control_batches_are_left_out() -> None:
    marker = EndTransactionMarker(control_type=ControlType.COMMIT, coordinator_epoch=1)
    batch = encode_marker(marker, ProducerIdAndEpoch(ProducerId(1), ProducerEpoch(1)), timestamp_ms=1)
    assert list(iter_key_values(batch)) == []


@given(batches(), st.data())
def test_damage_is_a_value_or_an_error(batch: bytes, data: st.DataObject) -> None:
    damaged = bytearray(batch)
    for _ in range(data.draw(st.integers(1, 3))):
        damaged[data.draw(st.integers(0, len(damaged) - 1))] = data.draw(st.integers(0, 255))
    try:
        list(iter_key_values(bytes(damaged)))
    except RecordsError:
        pass


@pytest.mark.parametrize("kept", [1, 60, 61, 70])
def test_a_batch_cut_off_is_corrupt(kept: int) -> None:
    batch = encode_batch([Record(offset=0, timestamp_ms=0, key=b"key", value=b"value")], BatchMeta())
    with pytest.raises(CorruptBatch):
        list(iter_key_values(batch[:kept]))
