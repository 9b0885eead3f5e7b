"""The stored name of a prepared transaction: one text per pair, and nothing else is read."""

import pickle

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tallystick.client.transactions.prepared import BadPreparedTxnState, PreparedTxnState
from tallystick.kernel.ids import INT16_MAX, INT64_MAX, ProducerEpoch, ProducerId, ProducerIdAndEpoch

PAIRS = st.builds(
    ProducerIdAndEpoch,
    st.integers(0, INT64_MAX).map(ProducerId),
    st.integers(0, INT16_MAX).map(ProducerEpoch),
)


@given(PAIRS)
@example(ProducerIdAndEpoch(ProducerId(0), ProducerEpoch(0)))
@example(ProducerIdAndEpoch(ProducerId(INT64_MAX), ProducerEpoch(INT16_MAX)))
def test_the_text_gives_an_equal_state_back(pair: ProducerIdAndEpoch) -> None:
    state = PreparedTxnState.of(pair)
    assert str(state) == f"{pair.producer_id}:{pair.epoch}"
    again = PreparedTxnState(str(state))
    assert (again, hash(again), again.identity) == (state, hash(state), pair)
    assert pickle.loads(pickle.dumps(state)) == state


def test_nothing_prepared_is_the_empty_text() -> None:
    for nothing in (
        PreparedTxnState(),
        PreparedTxnState(""),
        PreparedTxnState(None),
        PreparedTxnState.of(None),
    ):
        assert nothing == PreparedTxnState()
        assert str(nothing) == ""
        assert not nothing
        assert (nothing.identity, nothing.producer_id, nothing.epoch) == (None, None, None)


@pytest.mark.parametrize(
    "text",
    [
        *("5", "5:", ":3", ":", "5:3:", "5:3:1", "a:b", "-1:3", "5:-1", "+5:3", " 5:3", "5:3 ", "5:3\n"),
        *("05:3", "5:03", "5 :3", "0x5:3", "5:3.0", "5;3", "٥:3", "5:32768", "9223372036854775808:0"),
        *(" ", "None", "null", "5:3" * 1000),
    ],
)
def test_anything_else_is_refused_and_named(text: str) -> None:
    """Kafka's own reader takes `5:3:`; its writer never writes it."""
    with pytest.raises(BadPreparedTxnState) as caught:
        PreparedTxnState(text)
    assert isinstance(caught.value, ValueError)
    assert text[:20].strip() in str(caught.value) or repr(text[:20])[1:-1] in str(caught.value)
    assert len(str(caught.value)) < 300
    again = pickle.loads(pickle.dumps(caught.value))
    assert (type(again), again.text) == (BadPreparedTxnState, text)


@given(st.text(alphabet="0123456789:-+ a", max_size=24))
def test_what_is_read_is_what_would_be_written(text: str) -> None:
    try:
        state = PreparedTxnState(text)
    except BadPreparedTxnState:
        return
    assert str(state) == text


@given(PAIRS, PAIRS)
def test_equal_means_both_numbers(one: ProducerIdAndEpoch, other: ProducerIdAndEpoch) -> None:
    assert (PreparedTxnState.of(one) == PreparedTxnState.of(other)) == (one == other)
    assert PreparedTxnState.of(one) != str(PreparedTxnState.of(one))
