"""[WIRE-4] The quick paths of Produce and Fetch say what the generated codecs say, byte for byte."""

import random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from wire_values import random_value, values

from tallystick.protocol import (
    DecodeError,
    EncodeError,
    UnsupportedVersion,
    decode,
    encode,
    produce_fetch_codec,
)
from tallystick.protocol.messages.fetch import FetchRequest
from tallystick.protocol.messages.produce import ProduceRequest

PRODUCE_VERSIONS = range(3, 14)
FETCH_VERSIONS = range(4, 19)


def produce_call(request: ProduceRequest, version: int) -> produce_fetch_codec.ProduceRequestView:
    by_id = version >= produce_fetch_codec.PRODUCE_TOPIC_ID_SINCE
    topics = [
        (
            t.topic_id if by_id else t.name,
            [produce_fetch_codec.ProducePartitionData(p.index, p.records) for p in t.partition_data],
        )
        for t in request.topic_data
    ]
    return produce_fetch_codec.ProduceRequestView(
        request.transactional_id, request.acks, request.timeout_ms, topics
    )


def fetch_call(request: FetchRequest, version: int) -> tuple[Any, ...]:
    by_id = version >= produce_fetch_codec.FETCH_TOPIC_ID_SINCE
    topics = [
        (
            t.topic_id if by_id else t.topic,
            [
                tuple(getattr(p, name) for name in produce_fetch_codec.FetchPartitionSpec._fields)
                for p in t.partitions
            ],
        )
        for t in request.topics
    ]
    forgotten = [
        (t.topic_id if by_id else t.topic, list(t.partitions)) for t in request.forgotten_topics_data
    ]
    replica_id = request.replica_state.replica_id if version >= 15 else request.replica_id
    return (
        *(replica_id, request.max_wait_ms, request.min_bytes, request.max_bytes, request.isolation_level),
        *(request.session_id, request.session_epoch, topics, forgotten, request.rack_id),
    )


def plain(call: produce_fetch_codec.FetchRequestView) -> tuple[Any, ...]:
    return (*call[:7], list(call.topics), [(t, list(p)) for t, p in call.forgotten], call.rack_id)


@pytest.mark.parametrize("version", PRODUCE_VERSIONS)
@given(data=st.data())
def test_a_produce_request_reads_the_same(version: int, data: st.DataObject) -> None:
    request = data.draw(values(ProduceRequest, version))
    body = memoryview(encode(request, version))
    assert produce_fetch_codec.read_produce_request(body, version) == produce_call(request, version)


@pytest.mark.parametrize("version", FETCH_VERSIONS)
@given(data=st.data())
def test_a_fetch_request_reads_the_same(version: int, data: st.DataObject) -> None:
    request = data.draw(values(FetchRequest, version))
    body = memoryview(encode(request, version))
    assert plain(produce_fetch_codec.read_fetch_request(body, version)) == fetch_call(request, version)


@pytest.mark.parametrize("cls", [ProduceRequest, FetchRequest])
def test_damaged_requests_are_judged_the_same(cls: type) -> None:
    """The quick reader never accepts what the generated decoder refuses, nor the other way round."""
    rng = random.Random(20)
    versions = PRODUCE_VERSIONS if cls is ProduceRequest else FETCH_VERSIONS
    accepted = 0
    for _ in range(4000):
        version = rng.choice(versions)
        body = bytearray(encode(random_value(cls, version, rng), version))
        for _ in range(rng.choice((0, 1, 1, 2))):
            body[rng.randrange(len(body))] = rng.choice((0, 1, 127, 128, 255, rng.randrange(256)))
        view = memoryview(body)[: rng.choice((len(body), len(body), rng.randrange(len(body))))]
        quick = outcome(
            produce_fetch_codec.read_produce_request
            if cls is ProduceRequest
            else produce_fetch_codec.read_fetch_request,
            view,
            version,
        )
        request = outcome(lambda v, n: decode(cls, v, n), view, version)
        if isinstance(request, str):
            assert quick == request
            continue
        accepted += 1
        if isinstance(quick, produce_fetch_codec.FetchRequestView):
            assert plain(quick) == fetch_call(request, version)
        else:
            assert quick == produce_call(request, version)
    assert 400 < accepted < 3900


def outcome(read: Any, view: memoryview, version: int) -> Any:
    try:
        return read(view, version)
    except DecodeError as error:
        return str(error)


NAMES = st.one_of(st.text(st.characters(exclude_categories=("Cs",)), max_size=8), st.just("n" * 200))
INT16 = st.integers(-(2**15), 2**15 - 1)
INT32 = st.integers(-(2**31), 2**31 - 1)
INT64 = st.integers(-(2**63), 2**63 - 1)
PRODUCED = st.builds(
    produce_fetch_codec.ProducePartitionResult,
    INT32,
    INT16,
    INT64,
    INT64,
    INT64,
    st.one_of(st.none(), st.text("aé", max_size=200)),
)
FETCHED = st.builds(
    produce_fetch_codec.FetchPartitionResult,
    *(INT32, INT16, INT64, INT64, INT64),
    st.one_of(st.none(), st.lists(st.tuples(INT64, INT64), max_size=3)),
    st.just(-1),
    st.one_of(st.none(), st.binary(max_size=300)),
)


def topics(answer: st.SearchStrategy[Any], by_id: bool) -> st.SearchStrategy[Any]:
    many = st.one_of(st.lists(answer, max_size=3), st.builds(lambda a: [a] * 140, answer))
    return st.lists(st.tuples(st.uuids() if by_id else NAMES, many), max_size=3)


@pytest.mark.parametrize("version", PRODUCE_VERSIONS)
@given(data=st.data(), throttle=INT32)
def test_a_produce_response_is_written_the_same(version: int, data: st.DataObject, throttle: int) -> None:
    answers = data.draw(topics(PRODUCED, version >= produce_fetch_codec.PRODUCE_TOPIC_ID_SINCE))
    written = produce_fetch_codec.write_produce_response(answers, version, throttle)
    assert written == encode(produce_fetch_codec._build_produce_response(answers, version, throttle), version)


@pytest.mark.parametrize("version", FETCH_VERSIONS)
@given(
    data=st.data(),
    session=st.builds(produce_fetch_codec.FetchResponseHeader, st.integers(0, 9), st.integers(0, 99), INT32),
)
def test_a_fetch_response_is_written_the_same(version: int, data: st.DataObject, session: Any) -> None:
    if version < 7:
        session = session._replace(session_id=0)
    answers = data.draw(topics(FETCHED, version >= produce_fetch_codec.FETCH_TOPIC_ID_SINCE))
    written = b"".join(produce_fetch_codec.write_fetch_response(answers, version, session))
    assert written == encode(produce_fetch_codec._build_fetch_response(answers, version, session), version)


def test_record_data_is_neither_copied_in_nor_out() -> None:
    records = memoryview(bytes(5000))
    for version in (11, 17):
        topic = "t" if version < produce_fetch_codec.FETCH_TOPIC_ID_SINCE else produce_fetch_codec.NIL
        answers = [(topic, [produce_fetch_codec.FetchPartitionResult(0, 0, 1, records=records)] * 2)]
        parts = produce_fetch_codec.write_fetch_response(
            answers, version, produce_fetch_codec.FetchResponseHeader()
        )
        assert sum(part is records for part in parts) == 2
        assert len(parts) <= 5


def test_a_topic_named_the_wrong_way_is_an_encode_error() -> None:
    for topic, version in ((produce_fetch_codec.NIL, 9), ("name", 13), (produce_fetch_codec.NIL, 7)):
        with pytest.raises(EncodeError):
            produce_fetch_codec.write_produce_response(
                [(topic, [produce_fetch_codec.ProducePartitionResult(0, 0, 1)])], version
            )
    with pytest.raises(EncodeError):
        produce_fetch_codec.write_produce_response(
            [("t", [produce_fetch_codec.ProducePartitionResult(0, 0, 2**63)])], 9
        )
    with pytest.raises(UnsupportedVersion):
        produce_fetch_codec.read_produce_request(memoryview(b""), 14)
