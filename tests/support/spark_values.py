"""Values of Spark's sink, drawn by Hypothesis."""

from hypothesis import strategies as st

from tallystick.kernel.ids import INT16_MAX, INT64_MAX, ProducerEpoch, ProducerId, ProducerIdAndEpoch
from tallystick.spark.protocol.committable import (
    BatchLease,
    BatchWrite,
    Decision,
    DecisionSummary,
    JobChecksums,
    MicroBatch,
    Participant,
    RowChecksum,
    Vote,
)

_PART = st.text("abz09._-", min_size=1, max_size=6)
PREFIXES = st.lists(_PART, min_size=1, max_size=3).map("/".join)
TEXTS = st.text(max_size=12)
NUMBERS = st.integers(0, INT64_MAX)

IDENTITIES = st.builds(
    ProducerIdAndEpoch, NUMBERS.map(ProducerId), st.integers(0, INT16_MAX).map(ProducerEpoch)
)
TALLIES = st.builds(RowChecksum, NUMBERS, st.integers(0, 2**64 - 1))
PARTICIPANTS = st.builds(Participant, transactional_id=TEXTS, identity=IDENTITIES)
_SINKS = st.lists(TALLIES, max_size=2).map(tuple)

_NAMES = st.lists(TEXTS, max_size=2).map(tuple)
LEASES = st.builds(
    BatchLease,
    nonce=TEXTS,
    coordinator=IDENTITIES,
    transaction_version=st.integers(0, 2),
    last_decision=st.none()
    | st.builds(DecisionSummary, nonce=TEXTS, query_id=st.none() | TEXTS, batch_id=st.none() | NUMBERS),
    repeats=st.booleans(),
    began_ms=NUMBERS,
)
VOTES = st.builds(
    Vote,
    nonce=TEXTS,
    coordinator=IDENTITIES,
    transaction_version=st.integers(0, 2),
    job=st.builds(MicroBatch, TEXTS, NUMBERS) | st.builds(BatchWrite, TEXTS),
    row_checksums=_SINKS,
    participant=st.none() | PARTICIPANTS,
    is_skipped=st.booleans(),
    mode=TEXTS,
    began_ms=NUMBERS,
    sinks=_NAMES,
)
DECISIONS = st.builds(
    Decision,
    nonce=TEXTS,
    participants=st.lists(PARTICIPANTS, max_size=4).map(tuple),
    transaction_version=st.integers(0, 2),
    decided_ms=NUMBERS,
    query_id=st.none() | TEXTS,
    batches=st.lists(st.builds(JobChecksums, NUMBERS, _SINKS, _NAMES), max_size=4).map(tuple),
    writes=st.lists(st.builds(JobChecksums, TEXTS, _SINKS, _NAMES), max_size=4).map(tuple),
    mode=TEXTS,
    offsets=st.none() | TEXTS,
    number=NUMBERS,
)
