"""Sections of Arrow arrays are those of lists [CLI-26]."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tallystick.client.producer.batches.arrow_rows import ArrowRows, is_arrow_array
from tallystick.client.producer.batches.rows import ListRows, split_rows

pa = pytest.importorskip("pyarrow", reason="the extra `arrow` is not installed")

pytestmark = pytest.mark.usefixtures("either_codec")

TEXTS = st.binary(max_size=200) | st.sampled_from([b"x" * 63, b"x" * 64, b"x" * 8191, b"x" * 70_000])
RUN = [(0, 1_700_000_000_000)]


@st.composite
def tables(draw: st.DrawFn) -> tuple[list[bytes | None], list[bytes | None] | None]:
    n = draw(st.integers(1, 120))
    values = draw(st.lists(st.none() | TEXTS, min_size=n, max_size=n))
    return values, draw(st.none() | st.lists(st.none() | TEXTS, min_size=n, max_size=n))


def _arrow(column: list[bytes | None] | None) -> object:
    return None if column is None else pa.array(column, pa.binary())


@given(tables())
@pytest.mark.slow
def test_sections_are_those_of_lists(table: tuple[list[bytes | None], list[bytes | None] | None]) -> None:
    values, keys = table
    rows = ArrowRows.from_arrays(_arrow(values), _arrow(keys), RUN)  # type: ignore[arg-type]
    columns = ListRows(values=values, keys=keys, timestamp_runs=RUN)
    assert rows.encode_section() == columns.encode_section()
    assert list(rows.compute_size_bounds()) == columns.compute_size_bounds()


@given(tables(), st.integers(0, 100_000), st.data())
@pytest.mark.slow
def test_parts_and_picks_are_those_of_lists(
    table: tuple[list[bytes | None], list[bytes | None] | None], room: int, data: st.DataObject
) -> None:
    values, keys = table
    rows = ArrowRows.from_arrays(_arrow(values), _arrow(keys), RUN)  # type: ignore[arg-type]
    columns = ListRows(values=values, keys=keys, timestamp_runs=RUN)
    for (ours, size), (theirs, their_size) in zip(
        split_rows(rows, room), split_rows(columns, room), strict=True
    ):
        assert (ours.encode_section(), size) == (theirs.encode_section(), their_size)
    places = data.draw(st.lists(st.integers(0, len(values) - 1), min_size=1, max_size=20))
    for keyed in (False, True):
        assert (
            rows.select_rows(places, with_keys=keyed).encode_section()
            == columns.select_rows(places, with_keys=keyed).encode_section()
        )


def test_large_batches_cross_every_length_of_an_offset() -> None:
    values: list[bytes | None] = [b"v" * (i % 90) for i in range(20_000)]
    rows = ArrowRows.from_arrays(pa.array(values), None, RUN)
    assert rows.encode_section() == ListRows(values=values, timestamp_runs=RUN).encode_section()


@pytest.mark.parametrize("kind", ["string", "large_string", "binary", "large_binary"])
def test_every_kind_of_text_and_chunks_will_do(kind: str) -> None:
    texts = ["one", None, "three"]
    chunked = pa.chunked_array([pa.array(texts[:1]), pa.array(texts[1:])]).cast(getattr(pa, kind)())
    rows = ArrowRows.from_arrays(chunked, None, RUN)
    assert is_arrow_array(chunked)
    assert (
        rows.encode_section()
        == ListRows(values=[b"one", None, b"three"], timestamp_runs=RUN).encode_section()
    )
    sliced = ArrowRows.from_arrays(pa.array(texts).cast(getattr(pa, kind)())[1:], None, RUN)
    assert sliced.encode_section() == ListRows(values=[None, b"three"], timestamp_runs=RUN).encode_section()


def test_numbers_are_refused() -> None:
    with pytest.raises(TypeError, match="int64"):
        ArrowRows.from_arrays(pa.array([1, 2]), None, RUN)
