"""Records as Arrow batches."""

from importlib.util import find_spec

import pytest

from tallystick.client.consumer.arrow import records_to_arrow
from tallystick.client.consumer.decode import ConsumerRecord
from tallystick.client.errors import NotSupported
from tallystick.protocol.records import TimestampType

RECORDS = [
    ConsumerRecord("t", 1, 7, 1234, TimestampType.CREATE_TIME, b"k", None, (("h", b"1"), ("h", None)), 3),
    ConsumerRecord("u", 0, 0, 0, TimestampType.LOG_APPEND_TIME, None, b"v", (), None),
]


@pytest.mark.skipif(find_spec("pyarrow") is not None, reason="pyarrow is there")
def test_without_pyarrow_the_package_to_install_is_named() -> None:
    with pytest.raises(NotSupported, match=r"the extra `arrow`"):
        records_to_arrow(RECORDS)


def test_columns_are_those_of_sparks_source() -> None:
    pytest.importorskip("pyarrow")
    batch = records_to_arrow(RECORDS)
    assert batch.schema.names == [
        "key", "value", "topic", "partition", "offset", "timestamp", "timestampType", "headers",
    ]  # fmt: skip
    first, second = batch.to_pylist()
    assert (first["key"], first["value"], first["topic"], first["partition"]) == (b"k", None, "t", 1)
    assert (first["offset"], first["timestamp"].timestamp(), first["timestampType"]) == (7, 1.234, 0)
    assert first["headers"] == [{"key": "h", "value": b"1"}, {"key": "h", "value": None}]
    assert (second["value"], second["timestampType"], second["headers"]) == (b"v", 1, [])


def test_no_records_are_a_batch_without_rows() -> None:
    pytest.importorskip("pyarrow")
    empty = records_to_arrow([])
    assert empty.num_rows == 0
    assert empty.schema == records_to_arrow(RECORDS).schema
