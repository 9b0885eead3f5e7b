"""Votes, leases and decisions as bytes."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.spark_values import DECISIONS, LEASES, TALLIES, VOTES

from tallystick.kernel.ids import ProducerEpoch, ProducerId, ProducerIdAndEpoch
from tallystick.kernel.value import replace
from tallystick.spark.protocol.committable import (
    BATCHES_MAX,
    BatchLease,
    Decision,
    DecisionNote,
    JobChecksums,
    MicroBatch,
    Participant,
    RowChecksum,
    Vote,
    decode_decision,
    decode_decision_note,
    decode_lease,
    decode_vote,
    encode_decision,
    encode_decision_note,
    encode_lease,
    encode_vote,
)
from tallystick.spark.protocol.errors import BadCommittable

PAIR = ProducerIdAndEpoch(ProducerId(4_000_000), ProducerEpoch(32_000))


@given(LEASES, VOTES, DECISIONS)
def test_bytes_read_back(lease: BatchLease, vote: Vote, decision: Decision) -> None:
    assert decode_lease(encode_lease(lease)) == lease
    assert decode_vote(encode_vote(vote)) == vote
    assert decode_decision(encode_decision(decision)) == decision


def test_a_decision_is_written_like_this() -> None:
    """What is in a cluster's log stays readable: version 1, byte for byte."""
    decision = Decision(
        nonce="n1",
        participants=(Participant(transactional_id="p/w/0/0", identity=PAIR),),
        transaction_version=2,
        decided_ms=7,
        query_id="q",
        batches=(JobChecksums(3, (RowChecksum(10, 255),)),),
        mode="2pc",
    )
    written = (
        b'{"v":1,"kind":"decision","nonce":"n1","txns":[["p/w/0/0",4000000,32000]],"tv":2,"decided_ms":7,'
        b'"query":"q","batches":[[3,[10,"00000000000000ff"]]],"writes":[],"mode":"2pc","offsets":null'
    )
    sinks = b',"number":0,"sinks":[%b],"batch_sinks":[0],"write_sinks":[]}'
    assert encode_decision(decision) == written + sinks % b"[]"
    assert decode_decision(written + b"}") == decision, "before decisions were counted, or told their sinks"
    assert decode_decision(written + b',"number":5}').number == 5
    named = replace(decision, batches=(JobChecksums(3, (RowChecksum(10, 255),), ("topic a",)),))
    assert encode_decision(named) == written + sinks % b'["topic a"]'


def test_a_note_of_a_decision_reads_back() -> None:
    noted = DecisionNote(number=3, description="batch 2 of query q", offsets='{"a":{"0":5}}')
    assert decode_decision_note(encode_decision_note(noted)) == noted


@given(
    st.binary(max_size=40) | st.sampled_from([b"{}", b"[]", b"null", b'{"v":1}', b'{"v":1,"kind":"vote"}'])
)
def test_other_bytes_are_refused(data: bytes) -> None:
    for decode in (decode_decision, decode_lease, decode_vote):
        with pytest.raises(BadCommittable):
            decode(data)


def test_a_later_version_is_refused_by_name() -> None:
    with pytest.raises(BadCommittable, match="version 2, and this one reads 1"):
        decode_decision(b'{"v":2,"kind":"decision"}')


def test_sizes() -> None:
    """About 300 bytes a vote, and under 70 a participant and 40 a remembered batch in a decision."""
    name = "pipeline.flights/w/0123456789abcdef/12"
    one = Participant(transactional_id=name, identity=PAIR)
    vote = Vote(
        nonce="0123456789abcdef",
        coordinator=PAIR,
        transaction_version=2,
        job=MicroBatch("a" * 36, 123_456),
        row_checksums=(RowChecksum(10**6, 2**63),),
        participant=one,
        mode="2pc",
        last_nonce="0123456789abcdef",
    )
    assert len(encode_vote(vote)) < 340
    kept = tuple(JobChecksums(123_456 + n, (RowChecksum(10**6, 2**63),)) for n in range(BATCHES_MAX))
    decision = Decision(
        nonce="n", participants=(one,) * 1000, transaction_version=2, decided_ms=1, query_id="q", batches=kept
    )
    assert len(encode_decision(decision)) < 70 * 1000 + 40 * BATCHES_MAX + 500


@given(st.lists(TALLIES))
def test_tallies_add_up_in_any_order(row_checksums: list[RowChecksum]) -> None:
    """[SPK-22]"""
    forward = backward = RowChecksum()
    for each in row_checksums:
        forward = forward.combine(each)
    for each in reversed(row_checksums):
        backward = backward.combine(each)
    assert forward == backward
