"""Arrow batches whose rows say where they go."""

from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tallystick.client.producer.batches.arrow_table import split_by_partition
from tallystick.client.producer.batches.rows import BatchProducerState, assemble_batch
from tallystick.protocol.records import Codec, decode_records

pa = pytest.importorskip("pyarrow", reason="the extra `arrow` is not installed")
pytestmark = pytest.mark.usefixtures("either_codec")

NOW = 1_700_000_000_000
HEADERS = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
TEXT = st.none() | st.binary(max_size=9)
ROWS = st.lists(
    st.fixed_dictionaries(
        {
            "key": TEXT,
            "value": st.none() | st.binary(max_size=50),
            "topic": st.sampled_from(["a", "b", "c"]),
            "partition": st.none() | st.integers(0, 3),
            "timestamp": st.none() | st.integers(0, 2**40) | st.just(NOW),
            "headers": st.none()
            | st.lists(
                st.fixed_dictionaries(
                    {"key": st.text(max_size=3), "value": st.none() | st.binary(max_size=3)}
                )
            ),
        }
    ),
    min_size=1,
    max_size=60,
)
TYPES = {
    "key": pa.binary(),
    "value": pa.binary(),
    "topic": pa.string(),
    "partition": pa.int32(),
    "timestamp": pa.int64(),
    "headers": HEADERS,
}


def batch(rows: list[dict[str, object]]):  # type: ignore[no-untyped-def]
    return pa.RecordBatch.from_pylist(rows, schema=pa.schema(TYPES.items()))


def _record(row: dict) -> tuple:  # type: ignore[type-arg]
    headers = tuple((header["key"], header["value"]) for header in row["headers"] or ())
    time = NOW if row["timestamp"] is None else row["timestamp"]
    return time, row["key"], row["value"], headers


@given(ROWS, st.booleans())
def test_every_row_goes_where_it_says_as_it_is_and_in_order(rows: list[dict], as_table: bool) -> None:  # type: ignore[type-arg]
    given_rows = batch(rows)
    if as_table:
        given_rows = pa.Table.from_batches([given_rows.slice(0, 1), given_rows.slice(1)])
    seen: list[Any] = []
    for share in split_by_partition(given_rows, None, NOW):
        section = assemble_batch(share.rows, share.rows.encode_section(), Codec.NONE, BatchProducerState())
        records = decode_records(section)
        assert len(records) == len(share.places)
        assert list(share.places) == sorted(share.places)
        for place, record in zip(share.places, records, strict=True):
            row = rows[place]
            assert (share.topic, share.partition) == (row["topic"], row["partition"])
            assert tuple(record)[1:] == _record(row)
        seen += share.places
    assert sorted(seen) == list(range(len(rows)))


def test_one_topic_for_all_takes_the_batch_as_it_is() -> None:
    made = pa.RecordBatch.from_pydict({"value": ["one", "two"], "topic": ["x", "y"]})
    (share,) = split_by_partition(made, "t", NOW)
    assert (share.topic, share.partition, list(share.places)) == ("t", None, [0, 1])
    assert split_by_partition(made.slice(0, 0), None, NOW) == []


@pytest.mark.parametrize("unit", ["s", "ms", "us", "ns"])
def test_timestamps_of_any_unit_will_do(unit: str) -> None:
    when = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
    made = pa.RecordBatch.from_pydict(
        {"value": [b"v", b"w"], "timestamp": pa.array([when, None], pa.timestamp(unit, tz="UTC"))}
    )
    (share,) = split_by_partition(made, "t", NOW)
    assert share.rows.timestamp_runs == [(0, int(when.timestamp() * 1000)), (1, NOW)]


@pytest.mark.parametrize(
    ("columns", "why"),
    [
        ({"key": [b"k"]}, "`value`"),
        ({"value": [b"v"]}, "no topic is given"),
        ({"value": [b"v", b"w"], "topic": ["t", None]}, "1 of 2 rows have no topic"),
        ({"value": [b"v"], "topic": ["t"], "partition": [-1]}, "partition -1"),
    ],
)
def test_what_cannot_be_sent_is_said(columns: dict, why: str) -> None:  # type: ignore[type-arg]
    with pytest.raises(ValueError, match=why):
        split_by_partition(pa.RecordBatch.from_pydict(columns), None, NOW)


def test_values_that_are_no_texts_are_refused() -> None:
    with pytest.raises(TypeError, match="int64"):
        split_by_partition(pa.RecordBatch.from_pydict({"value": [1]}), "t", NOW)
