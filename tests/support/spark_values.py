"""Values of Spark's sink, drawn by Hypothesis."""

from hypothesis import strategies as st

from tallystick.kernel.ids import INT16_MAX, INT64_MAX, Identity, ProducerEpoch, ProducerId
from tallystick.spark.protocol.committable import (
    Batch,
    Decided,
    Decision,
    Lease,
    Participant,
    Tally,
    Vote,
    Write,
    Written,
)

_PART = st.text("abz09._-", min_size=1, max_size=6)
PREFIXES = st.lists(_PART, min_size=1, max_size=3).map("/".join)
TEXTS = st.text(max_size=12)
NUMBERS = st.integers(0, INT64_MAX)

IDENTITIES = st.builds(Identity, NUMBERS.map(ProducerId), st.integers(0, INT16_MAX).map(ProducerEpoch))
TALLIES = st.builds(Tally, NUMBERS, st.integers(0, 2**64 - 1))
PARTICIPANTS = st.builds(Participant, transactional_id=TEXTS, identity=IDENTITIES)
_SINKS = st.lists(TALLIES, max_size=2).map(tuple)

LEASES = st.builds(
    Lease,
    nonce=TEXTS,
    coordinator=IDENTITIES,
    transaction_version=st.integers(0, 2),
    decided=st.none()
    | st.builds(Decided, nonce=TEXTS, query_id=st.none() | TEXTS, batch_id=st.none() | NUMBERS),
    repeats=st.booleans(),
    began_ms=NUMBERS,
)
VOTES = st.builds(
    Vote,
    nonce=TEXTS,
    coordinator=IDENTITIES,
    transaction_version=st.integers(0, 2),
    job=st.builds(Batch, TEXTS, NUMBERS) | st.builds(Write, TEXTS),
    tallies=_SINKS,
    participant=st.none() | PARTICIPANTS,
    skipped=st.booleans(),
    mode=TEXTS,
    began_ms=NUMBERS,
)
DECISIONS = st.builds(
    Decision,
    nonce=TEXTS,
    participants=st.lists(PARTICIPANTS, max_size=4).map(tuple),
    transaction_version=st.integers(0, 2),
    decided_ms=NUMBERS,
    query_id=st.none() | TEXTS,
    batches=st.lists(st.builds(Written, NUMBERS, _SINKS), max_size=4).map(tuple),
    writes=st.lists(st.builds(Written, TEXTS, _SINKS), max_size=4).map(tuple),
    mode=TEXTS,
    offsets=st.none() | TEXTS,
    number=NUMBERS,
)
