"""A listener with OAUTHBEARER: our client with tokens of a little provider, whose keys change and go away."""

import contextlib
import logging
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import cast

import confluent_kafka
import pytest
import trustme
from tests.support.identity_provider import AUDIENCE, CLIENT_ID, CLIENT_SECRET, ISSUER, IdentityProvider

from tallystick.broker.embedded import BrokerDidNotStart, EmbeddedBroker
from tallystick.broker.server.listening import list_signing_keys
from tallystick.broker.server.login_rules import fetch_jwks
from tallystick.broker.server.server import Server
from tallystick.broker.server.signing_keys import SigningKeys
from tallystick.client.blocking.producer import Producer
from tallystick.client.errors import AuthenticationFailed
from tallystick.security.sasl import key_set
from tallystick.security.sasl.key_set import KeySetFailure
from tallystick.testing import eventually

pytestmark = pytest.mark.server


@dataclass
class World:
    """A provider, its address, and settings of a broker that trusts it."""

    provider: IdentityProvider
    url: str
    folder: Path

    @property
    def broker_settings(self) -> dict[str, str]:
        authority = trustme.CA(key_type=trustme.KeyType.ECDSA)
        (self.folder / "ca.pem").write_bytes(authority.cert_pem.bytes())
        leaf = authority.issue_cert("localhost", key_type=trustme.KeyType.ECDSA)
        (self.folder / "broker.pem").write_bytes(leaf.private_key_and_cert_chain_pem.bytes())
        return {
            "listeners": "SASL_SSL://localhost:0",
            "ssl.keystore.location": f"{self.folder}/broker.pem",
            "sasl.enabled.mechanisms": "OAUTHBEARER",
            "sasl.oauthbearer.jwks.endpoint.url": f"{self.url}/jwks",
            "https.ca.location": f"{self.folder}/idp-ca.pem",
            "sasl.oauthbearer.expected.issuer": ISSUER,
            "sasl.oauthbearer.expected.audience": AUDIENCE,
            "sasl.oauthbearer.jwks.endpoint.retry.backoff.ms": "10",
            "sasl.oauthbearer.jwks.endpoint.retry.backoff.max.ms": "100",
        }

    @contextlib.contextmanager
    def broker(self, **more: str) -> Iterator[EmbeddedBroker]:
        config = self.broker_settings | {name.replace("__", "."): text for name, text in more.items()}
        with EmbeddedBroker(self.folder / "data", in_process=True, config=config) as broker:
            yield broker

    def client(self, broker: EmbeddedBroker, **more: object) -> dict[str, object]:
        return {
            "bootstrap.servers": f"localhost:{broker.bootstrap_servers.rpartition(':')[2]}",
            "security.protocol": "SASL_SSL",
            "ssl.truststore.location": f"{self.folder}/ca.pem",
            "sasl.mechanism": "OAUTHBEARER",
            "max.block.ms": 30_000,
            **more,
        }

    def send(self, broker: EmbeddedBroker, token: Callable[[], str]) -> None:
        """Send one record with a token of a function."""
        with Producer(self.client(broker, oauth_cb=lambda: (token(), None))) as producer:
            producer.send("t", b"1").result(30)


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    provider = IdentityProvider()
    with provider.serve(tmp_path) as url:
        yield World(provider, url, tmp_path)


def server_of(broker: EmbeddedBroker) -> Server:
    return cast(Server, broker._runner._service._server)  # type: ignore[union-attr]


def test_a_function_and_client_credentials_give_tokens(world: World) -> None:
    with world.broker() as broker:
        world.send(broker, world.provider.sign)
        credentials = {
            "sasl.oauthbearer.token.endpoint.url": f"{world.url}/token",
            "sasl.oauthbearer.client.credentials.client.id": CLIENT_ID,
            "sasl.oauthbearer.client.credentials.client.secret": CLIENT_SECRET,
            "sasl.oauthbearer.scope": "kafka",
            "https.ca.location": f"{world.folder}/idp-ca.pem",
        }
        with Producer(world.client(broker, **credentials)) as producer:
            producer.send("t", b"2").result(30)
        assert world.provider.token_requests == [{"grant_type": "client_credentials", "scope": "kafka"}]
        assert world.provider.fetches == 1


@pytest.mark.gate(0)
def test_librdkafka_logs_in_with_a_token_and_renews_it(world: World) -> None:
    tokens: list[str] = []

    def give(_: str) -> tuple[str, float]:
        # It asks for the next token at 80 % of this life, and logs in again at 85 % of the session's.
        tokens.append(world.provider.sign(life_s=8))
        return tokens[-1], time.time() + 4

    with world.broker() as broker:
        config = {
            "bootstrap.servers": world.client(broker)["bootstrap.servers"],
            "security.protocol": "SASL_SSL",
            "ssl.ca.location": f"{world.folder}/ca.pem",
            "sasl.mechanism": "OAUTHBEARER",
            "oauth_cb": give,
        }
        producer = confluent_kafka.Producer(config)
        (counts,) = server_of(broker).authentications.values()
        eventually(lambda: (producer.produce("t", b"1"), producer.flush(5)) and counts.successful_renewals)
        assert producer.flush(30) == 0
        assert len(set(tokens)) > 1
        assert (counts.failed, counts.failed_renewals, counts.expired) == (0, 0, 0)


def test_a_refused_token_is_explained_to_the_operator_alone(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    with world.broker() as broker:
        token = world.provider.sign(aud="web")
        with pytest.raises(AuthenticationFailed, match="invalid_token") as caught:
            world.send(broker, lambda: token)
        assert "aud" not in str(caught.value)
        assert "login failed: the token is refused: aud has none of" in caplog.text
        assert token not in caplog.text


@pytest.mark.gate(0)
def test_a_transaction_lives_through_new_tokens(world: World) -> None:
    """KIP-368: the session ends with its token, and is renewed with a fresh one on the same connection."""
    world.provider.life_s = 3
    tokens: list[str] = []

    def give() -> tuple[str, None]:
        tokens.append(world.provider.sign())
        return tokens[-1], None

    with world.broker() as broker:
        config = world.client(broker, oauth_cb=give) | {"transactional.id": "t-1"}
        with Producer(config) as producer:
            producer.init_transactions()
            producer.begin_transaction()
            eventually(lambda: producer.send("t", b"1").result(30) is not None and len(set(tokens)) >= 3)
            producer.commit_transaction()


def test_a_new_key_is_fetched_while_others_log_in(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(key_set, "UNKNOWN_KEY_INTERVAL_MS", 3_000)
    with world.broker() as broker, ThreadPoolExecutor() as pool:
        world.provider.add_key("second")
        waiting = pool.submit(world.send, broker, lambda: world.provider.sign("second"))
        eventually(lambda: signing_keys(broker)._waiting)
        world.send(broker, lambda: world.provider.sign("first"))
        assert not waiting.done()
        waiting.result(30)
        world.provider.published.remove("first")
        assert world.provider.fetches == 2


def signing_keys(broker: EmbeddedBroker) -> SigningKeys:
    (port,) = server_of(broker).ports
    assert port.logins is not None
    assert port.logins.signing_keys is not None
    return port.logins.signing_keys


def test_no_keys_at_the_start_are_the_end_of_it(world: World) -> None:
    world.provider.is_away = True
    with (
        pytest.raises(BrokerDidNotStart, match=r"no token could be checked: the endpoint answered 503"),
        world.broker(),
    ):
        pytest.fail("started")
    assert not (world.folder / "data" / "meta.properties").exists()
    world.provider.is_away = False
    with pytest.raises(BrokerDidNotStart, match=r"https\.ca\.location"), world.broker(https__ca__location=""):
        pytest.fail("started")


def test_keys_stay_in_use_while_the_provider_is_away(world: World, caplog: pytest.LogCaptureFixture) -> None:
    with (
        caplog.at_level(logging.ERROR),
        world.broker(sasl__oauthbearer__jwks__endpoint__refresh__ms="50") as broker,
    ):
        world.provider.is_away = True
        eventually(lambda: list_signing_keys(server_of(broker).ports)[0].state.is_fetch_failed)
        world.send(broker, world.provider.sign)
        assert (
            "listener SASL_SSL: keys for tokens cannot be fetched, those at hand stay in use" in caplog.text
        )
        world.provider.is_away = False
        eventually(lambda: not list_signing_keys(server_of(broker).ports)[0].state.is_fetch_failed)


def test_keys_come_from_the_host_that_was_configured(world: World, tmp_path: Path) -> None:
    """CVE-2025-27817: no redirect leads to another host, a file, or another scheme."""
    authority = f"{tmp_path}/idp-ca.pem"
    port = world.url.rpartition(":")[2]
    (tmp_path / "jwks.json").write_bytes(world.provider.format_jwks())
    world.provider.redirects = {
        "/moved": "/jwks",
        "/elsewhere": f"https://127.0.0.1:{port}/jwks",
        "/file": f"file://{tmp_path}/jwks.json",
        "/http": f"http://localhost:{port}/jwks",
    }
    assert fetch_jwks(f"{world.url}/moved", authority) == world.provider.format_jwks()
    for path in ("/elsewhere", "/file", "/http"):
        with pytest.raises(KeySetFailure, match="the endpoint answered 302"):
            fetch_jwks(f"{world.url}{path}", authority)
    with pytest.raises(KeySetFailure, match="more than 1048576 bytes"):
        fetch_jwks(f"{world.url}/large", authority)
    with pytest.raises(KeySetFailure, match="the peer's certificate is refused"):
        fetch_jwks(f"{world.url}/jwks", None)
    with pytest.raises(KeySetFailure, match=r"https\.ca\.location: "):
        fetch_jwks(f"{world.url}/jwks", "/no/such/file")
    with pytest.raises(KeySetFailure, match="does not answer"):
        fetch_jwks("https://localhost:1/jwks", authority)
