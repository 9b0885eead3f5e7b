"""A checksum of rows that does not depend on their order, and depends on everything else."""

from itertools import combinations

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tallystick.client.producer.batches.arrow_table import split_by_partition
from tallystick.spark.protocol.committable import RowChecksum
from tallystick.spark.protocol.errors import InvalidRows
from tallystick.spark.sink.task.row_checksum import checksum_columns

CELL = st.none() | st.binary(max_size=4)
HEADERS = st.none() | st.lists(st.fixed_dictionaries({"key": st.text(max_size=2), "value": CELL}), max_size=2)
ROW = st.tuples(CELL, CELL, st.sampled_from(["a", "b"]), st.none() | st.integers(0, 3), HEADERS)
_HEADERS = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))


def of(rows: list[tuple[object, ...]]) -> RowChecksum:
    columns = list(zip(*rows, strict=True)) if rows else [()] * 5
    types = (pa.binary(), pa.binary(), pa.string(), pa.int32(), _HEADERS)
    value, key, topic, partition, headers = (
        pa.array(list(column), kind) for column, kind in zip(columns, types, strict=True)
    )
    return checksum_columns(value, key, topic, partition, headers)


@given(st.lists(ROW, max_size=8), st.randoms(use_true_random=False), st.integers(0, 8))
def test_order_and_split_do_not_matter(rows: list[tuple[object, ...]], random: object, cut: int) -> None:
    """[SPK-22]"""
    shuffled = list(rows)
    random.shuffle(shuffled)  # type: ignore[attr-defined]
    assert of(shuffled) == of(rows)
    assert of(shuffled[:cut]).combine(of(shuffled[cut:])) == of(rows)


@pytest.mark.slow
def test_everything_else_does() -> None:
    """[SPK-22] Null is not empty, a key is not a value, and where one ends matters."""
    rows: list[tuple[object, ...]] = [
        (None, None, "a", None, None),
        (b"", None, "a", None, None),
        (None, b"", "a", None, None),
        (b"x", None, "a", None, None),
        (b"x", b"", "a", None, None),
        (None, b"x", "a", None, None),
        (b"", b"x", "a", None, None),
        (b"yz", b"x", "a", None, None),
        (b"z", b"xy", "a", None, None),
        (b"x", None, "b", None, None),
        (b"x", None, "a", 0, None),
        (b"x", None, "a", 1, None),
        (b"x", None, "a", None, [{"key": "h", "value": None}]),
        (b"x", None, "a", None, [{"key": "h", "value": b""}]),
        (b"x", None, "a", None, [{"key": "", "value": b"h"}]),
    ]
    for one, other in combinations(rows, 2):
        assert of([one]) != of([other]), (one, other)
        assert of([one, one]) != of([one, other])


def test_the_type_of_a_column_is_not_part_of_its_rows() -> None:
    texts = ["a", None, "bc"]
    found = {checksum_columns(pa.array(texts, kind)) for kind in (pa.string(), pa.large_string())}
    blobs = [b"a", None, b"bc"]
    found |= {checksum_columns(pa.array(blobs, kind)) for kind in (pa.binary(), pa.large_binary())}
    assert len(found) == 1
    assert found.pop().rows == 3


@pytest.mark.parametrize(
    ("header", "problem"),
    [(None, "row 1: a header is null"), ({"key": None, "value": b"v"}, "row 1: a header has no key")],
)
def test_a_header_that_cannot_be_sent_is_refused_with_its_row(header: object, problem: str) -> None:
    """A left join gives both. The sink hashes records before it sends them, or sends them first."""
    values = pa.array([b"a", b"b"])
    headers = pa.array([[{"key": "k", "value": None}], [header]], _HEADERS)
    with pytest.raises(InvalidRows, match=problem):
        checksum_columns(values, headers=headers)
    with pytest.raises(ValueError, match=problem):
        split_by_partition(pa.record_batch({"value": values, "headers": headers}), "t", 0)
