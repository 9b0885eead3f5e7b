"""The protocol of one connection, without a socket."""

import pytest

from tallystick.client.errors import NotSupported
from tallystick.client.net.protocol_state import (
    ANY_BROKER,
    NO_FEATURE_LEVELS,
    FeatureLevels,
    NodeApiVersions,
    ProtocolState,
    RequestHeaders,
    VersionNegotiation,
    guess_protocol,
)
from tallystick.kernel.check import InvariantBroken
from tallystick.protocol import DecodeError, decode_prefix, encode
from tallystick.protocol.apis import API_SPECS, ApiKey
from tallystick.protocol.messages.cluster.api_versions import (
    ApiVersion,
    ApiVersionsResponse,
    FinalizedFeatureKey,
)
from tallystick.protocol.messages.groups.membership import HeartbeatResponse
from tallystick.protocol.messages.headers import RequestHeader
from tallystick.protocol.messages.txn.end_txn import EndTxnResponse
from tallystick.protocol.wire import Versions

END_TXN, HEARTBEAT = API_SPECS[ApiKey.END_TXN], API_SPECS[ApiKey.HEARTBEAT]


def header(frame: bytes) -> tuple[int, int, int, str | None]:
    """API key, version, correlation id, client id."""
    assert int.from_bytes(frame[:4], "big") >= len(frame) - 4
    version = 2 if API_SPECS[ApiKey(int.from_bytes(frame[4:6], "big"))].is_flexible(frame[7]) else 1
    found, _ = decode_prefix(RequestHeader, frame, version, 4)
    return found.request_api_key, found.request_api_version, found.correlation_id, found.client_id


def correlated(correlation_id: int, rest: bytes) -> bytes:
    return correlation_id.to_bytes(4, "big") + rest


def negotiation() -> VersionNegotiation:
    return VersionNegotiation(RequestHeaders("me"), "1.0", ANY_BROKER)


def welcomed(in_flight_max: int = 5) -> ProtocolState[str]:
    headers = RequestHeaders("me")
    made = VersionNegotiation(headers, "1.0", ANY_BROKER)
    made.build_request()
    answer = ApiVersionsResponse(
        api_keys=(
            ApiVersion(api_key=ApiKey.END_TXN, min_version=0, max_version=5),
            ApiVersion(api_key=ApiKey.HEARTBEAT, min_version=0, max_version=3),
        ),
        finalized_features=(
            FinalizedFeatureKey(name="transaction.version", max_version_level=2, min_version_level=2),
        ),
        finalized_features_epoch=7,
    )
    versions = made.handle_response(correlated(1, encode(answer, 4)))
    assert isinstance(versions, NodeApiVersions)
    return ProtocolState(headers, versions, in_flight_max)


def test_the_first_frame_asks_for_versions_in_the_newest_form() -> None:
    assert header(negotiation().build_request()) == (18, 5, 1, "me")


def test_versions_and_features_are_read() -> None:
    versions = welcomed().versions
    assert versions.ranges[ApiKey.END_TXN] == Versions(0, 5)
    assert versions.features == FeatureLevels(7, {"transaction.version": 2})


@pytest.mark.parametrize(("offered", "expected"), [((0, 3), 3), ((0, 2), 2), (None, 0)])
def test_an_older_broker_is_asked_again_in_a_version_it_has(
    offered: tuple[int, int] | None, expected: int
) -> None:
    """KIP-511: code 35 comes in version 0, with the range of the API itself if the broker is recent."""
    made = negotiation()
    made.build_request()
    keys = (
        () if offered is None else (ApiVersion(api_key=18, min_version=offered[0], max_version=offered[1]),)
    )
    refusal = encode(ApiVersionsResponse(error_code=35, api_keys=keys), 0)
    again = made.handle_response(correlated(1, refusal))
    assert isinstance(again, bytes)
    assert header(again)[:3] == (18, expected, 2)
    versions = made.handle_response(correlated(2, encode(ApiVersionsResponse(), expected)))
    assert versions == NodeApiVersions({}, NO_FEATURE_LEVELS)


def test_a_broker_that_refuses_its_own_offer_is_asked_for_less_and_then_given_up() -> None:
    """A range that says 5 and a refusal of 5: each question is for an older version, so it ends."""
    made = negotiation()
    made.build_request()
    refusal = encode(
        ApiVersionsResponse(error_code=35, api_keys=(ApiVersion(api_key=18, min_version=0, max_version=5),)),
        0,
    )
    for asked in range(1, 6):
        assert isinstance(made.handle_response(correlated(asked, refusal)), bytes)
    with pytest.raises(NotSupported, match="UNSUPPORTED_VERSION"):
        made.handle_response(correlated(6, refusal))


def test_another_error_ends_the_negotiation() -> None:
    made = negotiation()
    made.build_request()
    with pytest.raises(NotSupported, match="INVALID_REQUEST"):
        made.handle_response(correlated(1, encode(ApiVersionsResponse(error_code=42), 4)))


def test_the_version_is_the_highest_both_have_below_what_is_asked() -> None:
    versions = welcomed().versions
    assert versions.choose_version(ApiKey.END_TXN) == 5
    assert versions.choose_version(ApiKey.END_TXN, 4) == 4
    assert versions.require_version(ApiKey.HEARTBEAT, 2) == 2
    assert versions.find_latest_usable(ApiKey.PRODUCE) is None
    with pytest.raises(NotSupported, match="does not offer"):
        versions.choose_version(ApiKey.PRODUCE)
    with pytest.raises(NotSupported, match="has 0 to 3"):
        versions.require_version(ApiKey.HEARTBEAT, 4)
    with pytest.raises(NotSupported, match=r"versions 0 to 1, this client needs 3 to 13"):
        NodeApiVersions({ApiKey.PRODUCE: Versions(0, 1)}, NO_FEATURE_LEVELS).choose_version(ApiKey.PRODUCE)


def test_answers_belong_to_the_requests_in_their_order() -> None:
    made = welcomed()
    first = made.register_request(END_TXN, 5, 0, "first")
    second = made.register_request(HEARTBEAT, 3, 0, "second")
    assert [header(first)[2], header(second)[2]] == [2, 3]
    assert made.waiters == ["first", "second"]
    answer = made.match_response(correlated(2, b"\0" + encode(EndTxnResponse(producer_id=4), 5)))
    assert answer == ("first", EndTxnResponse(producer_id=4))
    assert made.match_response(correlated(3, encode(HeartbeatResponse(), 3)))[0] == "second"
    assert made.in_flight_count == 0


def test_no_more_requests_in_flight_than_allowed() -> None:
    made = welcomed(in_flight_max=2)
    made.register_request(END_TXN, 5, 0, "a")
    made.register_request(END_TXN, 5, 0, "b")
    assert not made.can_send_more
    with pytest.raises(InvariantBroken):
        made.register_request(END_TXN, 5, 0, "c")


def test_a_request_without_an_answer_takes_no_place() -> None:
    made = welcomed(in_flight_max=1)
    made.register_request(END_TXN, 5, 0, None)
    assert made.can_send_more
    made.register_request(END_TXN, 5, 0, "a")
    assert made.match_response(correlated(3, b"\0" + encode(EndTxnResponse(), 5)))[0] == "a"


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"\0\0",
        correlated(3, b"\0" + encode(EndTxnResponse(), 5)),  # out of turn
        correlated(2, b"\0"),  # too short
        correlated(2, b"\0" + encode(EndTxnResponse(), 5) + b"more"),
        correlated(2, b"\xff\xff\xff\xff\xff"),  # a header of endless tags
    ],
)
def test_an_answer_that_is_none_says_so_and_keeps_who_waits(body: bytes) -> None:
    """[CLI-3] Whoever waits is told by the owner of the connection, which ends it."""
    made = welcomed()
    made.register_request(END_TXN, 5, 0, "who")
    made.register_request(HEARTBEAT, 3, 0, "next")
    with pytest.raises(DecodeError):
        made.match_response(body)
    assert made.awaited_api == "EndTxn"
    assert made.clear_in_flight() == ["who", "next"]


def test_an_answer_to_no_request_is_an_error() -> None:
    """[CLI-3]"""
    with pytest.raises(DecodeError, match="answer no request"):
        welcomed().match_response(correlated(2, b""))


def test_tags_in_the_header_of_an_answer_are_passed_over() -> None:
    made = welcomed()
    made.register_request(END_TXN, 5, 0, "who")
    assert made.match_response(correlated(2, b"\x01\x09\x02ab" + encode(EndTxnResponse(), 5)))[0] == "who"


def test_correlation_ids_stay_positive() -> None:
    made = welcomed()
    made._headers.correlation_id = 2**31 - 2
    assert header(made.register_request(END_TXN, 5, 0, None))[2] == 2**31 - 1
    assert header(made.register_request(END_TXN, 5, 0, None))[2] == 0


def test_features_of_a_higher_epoch_win() -> None:
    """KIP-584: brokers learn of a change at different times."""
    old, new = FeatureLevels(3, {"transaction.version": 1}), FeatureLevels(4, {"transaction.version": 2})
    assert old.pick_newer(new) is new
    assert new.pick_newer(old) is new
    assert new.pick_newer(NO_FEATURE_LEVELS) is new


@pytest.mark.parametrize(
    ("start", "said"),
    [
        (b"HTTP/1.1 400 Bad Request", "HTTP"),
        (b"\x15\x03\x03\x00\x02\x02\x46", "TLS"),
        (b"SSH-2.0-OpenSSH_9", "SSH"),
        (b"\0\0\0\x01", ""),
        (b"", ""),
    ],
)
def test_what_else_may_be_listening(start: bytes, said: str) -> None:
    assert said in guess_protocol(start)
    assert bool(guess_protocol(start)) == bool(said)
