"""The row: what is written is read back, and anything else is refused."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tallystick.client.transactions.prepared import PreparedTxnState
from tallystick.dualwrite.errors import CorruptRow
from tallystick.dualwrite.rules.model import (
    FORMER_MAX,
    StoredState,
    from_bytes,
    from_columns,
    to_bytes,
    to_columns,
)
from tallystick.kernel.ids import INT16_MAX, INT64_MAX

EMPTY = StoredState(transactional_id="t", owner="o")
states = st.one_of(
    st.just(PreparedTxnState()),
    st.builds(
        lambda p, e: PreparedTxnState(f"{p}:{e}"), st.integers(0, INT64_MAX), st.integers(0, INT16_MAX)
    ),
)
stored = st.builds(
    StoredState,
    transactional_id=st.text(min_size=1),
    owner=st.text(),
    state=states,
    settled=st.booleans(),
    former_producer_ids=st.lists(st.integers(0, INT64_MAX), max_size=3).map(tuple),
    cluster_id=st.none() | st.text(),
    transaction_version=st.none() | st.integers(0, 2),
    started_at_ms=st.none() | st.integers(0, INT64_MAX),
    timeout_ms=st.none() | st.integers(1, 900_000),
)


@given(stored)
def test_what_is_written_is_read_back(row: StoredState) -> None:
    assert from_columns(to_columns(row)) == row
    assert from_bytes(row.transactional_id, to_bytes(row)) == row


@pytest.mark.parametrize(
    ("column", "value", "why"),
    [
        ("schema_version", 2, "schema version 2; this library knows 1"),
        ("schema_version", None, "not a whole number"),
        ("prepared_transaction_state", "5", "is not the state of a prepared transaction"),
        ("prepared_transaction_state", None, "is not text"),
        ("former_producer_ids", "5 x", "invalid literal"),
        ("settled", "yes", "not a whole number"),
        ("timeout_ms", 1.5, "not a whole number"),
    ],
)
def test_what_this_library_did_not_write_is_refused(column: str, value: object, why: str) -> None:
    with pytest.raises(CorruptRow, match=why):
        from_columns({**to_columns(EMPTY), column: value})


def test_a_missing_column_is_named() -> None:
    columns = to_columns(EMPTY)
    del columns["settled"]
    with pytest.raises(CorruptRow, match="column 'settled' is missing"):
        from_columns(columns)


@pytest.mark.parametrize("data", [b"", b"[]", b"5:1", b"\xff"])
def test_bytes_that_are_no_row_are_refused(data: bytes) -> None:
    with pytest.raises(CorruptRow):
        from_bytes("t", data)


def test_the_row_of_another_id_is_refused() -> None:
    with pytest.raises(CorruptRow, match="it is the row of 't'"):
        from_bytes("other", to_bytes(EMPTY))


def test_former_producer_ids_are_kept_in_order_and_bounded() -> None:
    row = EMPTY
    for producer_id in range(FORMER_MAX + 5):
        state = PreparedTxnState(f"{producer_id}:0")
        row = StoredState(
            transactional_id="t", owner="o", state=state, former_producer_ids=row.former_ids_before(state)
        )
    last = FORMER_MAX + 4
    assert row.former_producer_ids == tuple(range(last - FORMER_MAX, last))
    assert row.former_ids_before(PreparedTxnState(f"{last}:9")) == row.former_producer_ids
