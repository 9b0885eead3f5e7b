"""[LGN-1] to [LGN-5] Hostile logins, key stores and handshakes; `make fuzz` sends a million of them."""

import random
import ssl

import pytest
from tests.support.effort import LONG
from tests.support.hostile_stores import OTHER_HELLOS, TlsPair, contexts
from tools.fuzzing.logins import SHARES, attack


@pytest.mark.gate(0)
def test_a_login_takes_no_harm_from_any_bytes() -> None:
    """[LGN-1] [LGN-2] [LGN-3] [LGN-4] [LGN-5] Each kind of input is taken at times, and refused at times."""
    counts = attack(3_000 if not LONG else 1_000_000, 1 if not LONG else random.randrange(2**32))
    for kind in SHARES:
        assert counts[kind, True] > 0, kind
        assert counts[kind, False] > 0, kind


def test_a_seed_gives_the_same_inputs() -> None:
    assert attack(300, 7) == attack(300, 7)


@pytest.mark.parametrize("version", [1, 2], ids=["TLSv1.3", "TLSv1.2"])
@pytest.mark.parametrize("piece", [1, 4, 5, 6, 100])
def test_a_handshake_may_come_in_pieces_of_any_size(version: int, piece: int) -> None:
    pair = TlsPair(contexts()[version], contexts()[0])
    for _ in range(3):
        pair.to_client.write(pair.give(pair.start_client(), piece))
    assert pair.is_open


@pytest.mark.parametrize("version", [1, 2], ids=["TLSv1.3", "TLSv1.2"])
def test_a_flight_may_be_split_at_every_byte(version: int) -> None:
    hello_size = len(TlsPair(contexts()[version], contexts()[0]).start_client())
    for at in range(1, hello_size):
        pair = TlsPair(contexts()[version], contexts()[0])
        hello = pair.start_client()
        assert not pair.give(hello[:at], hello_size)
        assert pair.give(hello[at:], hello_size)


@pytest.mark.parametrize("hello", OTHER_HELLOS, ids=range(len(OTHER_HELLOS)))
def test_what_is_no_hello_of_our_versions_ends_the_handshake(hello: bytes) -> None:
    """HTTP, TLS 1.0, SSL 2, Kafka's own protocol, endless and broken records."""
    pair = TlsPair(contexts()[1], contexts()[0])
    # Records that never end are refused, too, once they are longer than a hello may be.
    with pytest.raises(ssl.SSLError):
        pair.give(hello * 60, len(hello))
    assert not pair.is_open


def test_a_listener_does_not_renegotiate() -> None:
    """CVE-2009-3555, and the cost of a handshake for every few bytes of a client (CVE-2011-1473)."""
    pair = TlsPair(contexts()[2], contexts()[0])
    assert contexts()[0].options & ssl.OP_NO_RENEGOTIATION
    for _ in range(3):
        pair.to_client.write(pair.give(pair.start_client(), 1_000_000))
    assert pair.server.version() == "TLSv1.2"
    again = TlsPair(contexts()[2], contexts()[0]).start_client()
    with pytest.raises(ssl.SSLError):
        pair.give(again, len(again))
