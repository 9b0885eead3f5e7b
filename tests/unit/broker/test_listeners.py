"""Listeners: names, protocols, advertised addresses and settings of their own."""

import pytest

from tallystick.broker.config.broker_config import BrokerConfig
from tallystick.broker.config.endpoint import Endpoint
from tallystick.broker.config.listeners import Listener
from tallystick.broker.serve import list_exposures
from tallystick.broker.server.handshakes import HandshakeTable
from tallystick.kernel.log_throttle import LogThrottle
from tallystick.kernel.secret import Secret
from tallystick.kernel.settings import BadConfig
from tallystick.security.protocol import SecurityProtocol

NAMED = {
    "listeners": "INSIDE://127.0.0.1:9092,outside://127.0.0.1:9093",
    "listener.security.protocol.map": "INSIDE:PLAINTEXT, OUTSIDE:ssl",
}


def listeners_of(given: dict[str, str]) -> dict[str, Listener]:
    return {each.name: each for each in BrokerConfig.parse(given).make_listeners()}


def problems_of(given: dict[str, str]) -> list[str]:
    with pytest.raises(BadConfig) as caught:
        BrokerConfig.parse(given)
    return str(caught.value).splitlines()


def test_without_settings_there_is_one_plain_listener_on_the_loopback() -> None:
    (listener,) = BrokerConfig.parse({}).make_listeners()
    assert (listener.name, listener.protocol) == ("PLAINTEXT", SecurityProtocol.PLAINTEXT)
    assert str(listener) == "PLAINTEXT://127.0.0.1:9092"
    assert not listener.is_open_to_the_network


@pytest.mark.parametrize(
    ("address", "client_auth", "is_open"),
    [
        ("192.0.2.1", "none", True),
        ("192.0.2.1", "requested", True),
        ("192.0.2.1", "required", False),
        ("127.0.0.1", "none", False),
    ],
)
def test_tls_that_asks_for_no_certificate_keeps_no_one_out(
    address: str, client_auth: str, is_open: bool
) -> None:
    """It is encrypted, and so needs no word of its own; the start line and the log say that all come in."""
    (made,) = listeners_of(
        {
            "listeners": f"SSL://{address}:9092",
            "ssl.keystore.type": "PEM",
            "ssl.keystore.location": "broker.pem",
            "ssl.truststore.type": "PEM",
            "ssl.truststore.location": "ca.pem",
            "ssl.client.auth": client_auth,
        }
    ).values()
    assert not made.is_open_to_the_network
    assert list_exposures([made]) == (["SSL open to the network without a login"] if is_open else [])


@pytest.mark.parametrize(
    ("listeners", "mechanisms", "shows"),
    [
        ("SASL_PLAINTEXT://192.0.2.1:9092", "PLAIN", True),
        ("SASL_PLAINTEXT://127.0.0.1:9092", "PLAIN", False),
        ("SASL_SSL://192.0.2.1:9092", "PLAIN", False),
    ],
)
def test_passwords_in_clear_are_seen(listeners: str, mechanisms: str, shows: bool) -> None:
    """Allowed, since a client still needs a login; the start line and the log say so."""
    name = listeners.partition(":")[0].lower()
    jaas = 'org.apache.kafka.common.security.plain.PlainLoginModule required user_alice="x";'
    (made,) = listeners_of(
        {
            "listeners": listeners,
            "sasl.enabled.mechanisms": mechanisms,
            f"listener.name.{name}.plain.sasl.jaas.config": jaas,
        }
    ).values()
    assert made.shows_secrets_to_the_network is shows
    assert not made.is_open_to_the_network
    assert list_exposures([made]) == ([f"{made.name} with passwords or tokens in clear"] if shows else [])


def test_names_are_free_once_they_are_mapped() -> None:
    found = listeners_of(NAMED | {"advertised.listeners": "OUTSIDE://broker.example:19093"})
    assert {name: each.protocol for name, each in found.items()} == {
        "INSIDE": SecurityProtocol.PLAINTEXT,
        "OUTSIDE": SecurityProtocol.SSL,
    }
    assert found["OUTSIDE"].advertised == Endpoint("broker.example", 19093)
    assert found["INSIDE"].advertised is None


def test_a_listener_has_its_own_settings_over_those_of_all() -> None:
    found = listeners_of(
        NAMED
        | {
            "ssl.client.auth": "required",
            "ssl.keystore.location": "/all.pem",
            "listener.name.outside.ssl.keystore.location": "/outside.pem",
            "listener.name.outside.ssl.keystore.password": "geheim",
        }
    )
    assert found["INSIDE"].tls.ssl_keystore_location == "/all.pem"
    assert found["OUTSIDE"].tls.ssl_keystore_location == "/outside.pem"
    assert found["OUTSIDE"].tls.ssl_client_auth == "required"
    assert found["OUTSIDE"].tls.ssl_keystore_password == Secret("geheim")


def test_secrets_of_listeners_are_not_shown() -> None:
    config = BrokerConfig.parse(
        NAMED
        | {
            "ssl.keystore.location": "/k",
            "ssl.keystore.password": "geheim",
            "listener.name.outside.ssl.key.password": "geheim",
            "listener.name.outside.ssl.truststore.certificates": "geheim",
        }
    )
    assert "geheim" not in repr(config) + repr(config.make_listeners())
    assert config.originals["ssl.keystore.password"] == "geheim"


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        ({"listeners": "A://127.0.0.1:1"}, "A is not in listener.security.protocol.map"),
        ({"listeners": "SSL://127.0.0.1:1,SSL://127.0.0.1:2"}, "two listeners named SSL"),
        ({"listeners": "SSL://127.0.0.1:1,PLAINTEXT://127.0.0.1:1"}, "are both at 127.0.0.1:1"),
        ({"listeners": " , "}, "no listener is left"),
        ({"listeners": "SSL://127.0.0.1"}, "is not HOST:PORT"),
        ({"listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,A:TLS"}, "'A:TLS' is not NAME:PROTOCOL"),
        (
            {"listener.security.protocol.map": "PLAINTEXT:SSL,PLAINTEXT:PLAINTEXT"},
            "PLAINTEXT is mapped twice",
        ),
        ({"advertised.listeners": "SSL://a:1"}, "SSL is not in listeners, which has PLAINTEXT"),
        ({"advertised.listeners": "PLAINTEXT://0.0.0.0:1"}, "no address a client could connect to"),
        ({"listener.name.ssl.ssl.client.auth": "none"}, "there is no listener SSL, only PLAINTEXT"),
        ({"listener.name.PLAINTEXT.ssl.client.auth": "none"}, "in lower case here"),
        (
            {"listener.name.plaintext.ssl.client.auht": "none"},
            "listener.name.plaintext.ssl.client.auht: unknown setting; did you mean ssl.client.auth?",
        ),
        ({"listener.name.plaintext.ssl.client.auth": "want"}, "'want' is not one of none"),
        ({"ssl.keystore.key": "k"}, "a private key needs its certificates (listener PLAINTEXT)"),
        ({"ssl.principal.mapping.rules": "RULE:x"}, "neither DEFAULT nor RULE"),
    ],
)
def test_bad_listeners(given: dict[str, str], problem: str) -> None:
    (found,) = problems_of(given)
    assert problem in found


def test_problems_of_all_listeners_come_together() -> None:
    problems = problems_of(
        NAMED
        | {
            "listener.name.inside.ssl.client.auth": "x",
            "listener.name.outside.ssl.protocol": "y",
        }
    )
    assert [line[-18:] for line in problems] == ["(listener INSIDE)".rjust(18), "(listener OUTSIDE)"]


@pytest.mark.parametrize(
    ("listener", "is_refused"),
    [
        ("PLAINTEXT://192.0.2.1:9092", True),
        ("PLAINTEXT://broker.example:9092", True),
        ("PLAINTEXT://localhost:9092", False),
        ("PLAINTEXT://127.8.8.8:9092", False),
        ("PLAINTEXT://[::1]:9092", False),
        ("SSL://192.0.2.1:9092", False),
    ],
)
def test_a_plain_listener_on_the_network_must_be_asked_for(listener: str, is_refused: bool) -> None:
    if is_refused:
        (problem,) = problems_of({"listeners": listener})
        assert listener in problem
    assert BrokerConfig.parse({"listeners": listener, "allow.insecure.listeners": "true"})


def test_a_listener_without_scheme_is_advertised_if_it_is_the_only_one() -> None:
    (listener,) = BrokerConfig.parse(
        {"listeners": "SSL://127.0.0.1:1", "advertised.listeners": "b.example:2"}
    ).make_listeners()
    assert listener.advertised == Endpoint("b.example", 2)


# --------------------------------------------------------------------- handshakes, log


def test_one_handshake_too_many_ends_the_oldest_of_the_greediest_address() -> None:
    table: HandshakeTable[int] = HandshakeTable(4)
    assert [table.add(host, key) for key, host in enumerate("abaa")] == [None] * 4
    assert table.add("c", 4) == 0
    assert (len(table), table.count("a"), table.keys()) == (4, 2, [2, 3, 1, 4])
    table.remove("b", 1)
    table.remove("b", 1)
    assert table.add("d", 5) is None
    assert table.count("b") == 0


def test_a_flood_of_lines_is_one_a_second() -> None:
    now = [0.0]
    throttle = LogThrottle(lambda: now[0])
    assert [throttle.take() for _ in range(3)] == ["", None, None]
    now[0] = 1.0
    assert throttle.take() == " (2 more since the last such line)"
