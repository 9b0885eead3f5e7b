"""Our client on Apache Kafka over TLS and SASL: every mechanism, every kind of client, every mistake."""

import base64
import json
import time
from collections.abc import Mapping

import pytest
import trustme
from tests.support.secure_kafka import PASSWORD, SESSION_MS, SecureKafka

from tallystick import Consumer, Producer
from tallystick.admin import Admin, NewTopic
from tallystick.client.errors import AuthenticationFailed, BadAnswer, TimedOut, TlsFailed, Unreachable
from tallystick.testing import eventually

pytestmark = [pytest.mark.gate(0), pytest.mark.kafka, pytest.mark.server]

MECHANISMS = ["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER"]
QUICK = {"retry.backoff.ms": 20, "reconnect.backoff.ms": 20}


def build_token() -> tuple[str, float]:
    """An unsecured JWS, which a listener without a validator accepts."""
    now_s = time.time()
    parts = [{"alg": "none"}, {"sub": "alice", "iat": now_s, "exp": now_s + 600}]
    texts = [base64.urlsafe_b64encode(json.dumps(part).encode()).decode().rstrip("=") for part in parts]
    return ".".join([*texts, ""]), now_s + 600


def log_in(kafka: SecureKafka, mechanism: str, listener: str = "SECURE") -> dict[str, object]:
    given: dict[str, object] = {
        **QUICK,
        **kafka.tls,
        "bootstrap.servers": kafka.address(listener),
        "security.protocol": "SASL_SSL",
        "sasl.mechanism": mechanism,
    }
    if mechanism == "OAUTHBEARER":
        return {**given, "oauth_cb": build_token}
    module = "plain.PlainLoginModule" if mechanism == "PLAIN" else "scram.ScramLoginModule"
    quoted = PASSWORD.replace('"', '\\"')
    jaas = f'org.apache.kafka.common.security.{module} required username="alice" password="{quoted}";'
    return {**given, "sasl.jaas.config": jaas}


def write_and_read(config: Mapping[str, object], topic: str) -> list[bytes | None]:
    """Create a topic, commit a transaction in it, and return what a group reads of it."""
    with Admin(config) as admin:
        admin.create_topics([NewTopic(name=topic, partitions=1)])
    with Producer({**config, "transactional.id": topic}) as producer:
        producer.init_transactions()
        producer.begin_transaction()
        producer.send(topic, value=b"one")
        producer.commit_transaction()
        producer.begin_transaction()
        producer.send(topic, value=b"aborted")
        producer.flush()
        producer.abort_transaction()
    return read(config, topic, 1)


def read(config: Mapping[str, object], topic: str, count: int) -> list[bytes | None]:
    reading = {"group.id": topic, "auto.offset.reset": "earliest", "isolation.level": "read_committed"}
    values: list[bytes | None] = []
    with Consumer({**config, **reading}) as consumer:
        consumer.subscribe([topic])

        def enough() -> bool:
            values.extend(record.value for record in consumer.poll(0.5))
            return len(values) >= count

        eventually(enough, 60)
        consumer.commit()
    return values


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_every_client_works_over_every_login(secure_kafka: SecureKafka, mechanism: str) -> None:
    config = log_in(secure_kafka, mechanism)
    assert write_and_read(config, secure_kafka.fresh_name()) == [b"one"]


def test_a_client_with_a_certificate(secure_kafka: SecureKafka) -> None:
    config = {
        **QUICK,
        **secure_kafka.tls,
        **secure_kafka.client_key,
        "bootstrap.servers": secure_kafka.address("MUTUAL"),
        "security.protocol": "SSL",
    }
    assert write_and_read(config, secure_kafka.fresh_name()) == [b"one"]


@pytest.mark.parametrize("mechanism", ["PLAIN", "SCRAM-SHA-512"])
def test_a_transaction_lives_through_reauthentications(secure_kafka: SecureKafka, mechanism: str) -> None:
    """KIP-368. Kafka closes a connection whose session is over at its next request; none is closed here."""
    config = log_in(secure_kafka, mechanism, "SHORT")
    topic = secure_kafka.fresh_name()
    with Admin(config) as admin:
        admin.create_topics([NewTopic(name=topic, partitions=1)])
    with Producer({**config, "transactional.id": topic}) as producer:
        producer.init_transactions()
        producer.begin_transaction()
        before = producer.metrics()
        sent = 0
        end = time.monotonic() + 3.5 * SESSION_MS / 1000
        while time.monotonic() < end:
            producer.send(topic, value=str(sent).encode())
            producer.flush()
            sent += 1
        producer.commit_transaction()
        after = producer.metrics()
    assert after["connection-close-total"] == before["connection-close-total"] == 0
    assert read(config, topic, sent) == [str(number).encode() for number in range(sent)]


def fail(config: Mapping[str, object]) -> Exception:
    with Admin({**QUICK, **config}) as admin:
        with pytest.raises((AuthenticationFailed, BadAnswer, Unreachable, TimedOut)) as caught:
            admin.list_topics()
        return caught.value


def test_mistakes_are_named(secure_kafka: SecureKafka) -> None:
    kafka = secure_kafka
    plain, scram = log_in(kafka, "PLAIN"), log_in(kafka, "SCRAM-SHA-256")
    for config in (plain, scram):
        jaas = str(config["sasl.jaas.config"]).replace("pa,ss", "hunter2")
        error = fail({**config, "sasl.jaas.config": jaas})
        assert isinstance(error, AuthenticationFailed)
        assert "Authentication failed" in str(error)
        assert "hunter2" not in str(error)
    stranger = {**plain, "ssl.truststore.location": None, "ssl.truststore.certificates": other_authority()}
    assert "its authority is not in ssl.truststore" in str(fail(stranger))
    by_address = {**plain, "bootstrap.servers": kafka.address("SECURE").replace("localhost", "127.0.0.1")}
    error = fail(by_address)
    assert isinstance(error, TlsFailed)
    assert "it names another address" in str(error)
    mutual = {**kafka.tls, "bootstrap.servers": kafka.address("MUTUAL"), "security.protocol": "SSL"}
    error = fail(mutual)
    assert isinstance(error, TlsFailed), error
    assert "certificate" in str(error)
    expired = {**log_in(kafka, "OAUTHBEARER"), "oauth_cb": lambda: (build_token()[0][:-2] + "x.", 2e9)}
    assert isinstance(fail(expired), AuthenticationFailed)


def test_ports_that_speak_something_else(secure_kafka: SecureKafka) -> None:
    kafka = secure_kafka
    patience = {"default.api.timeout.ms": 3_000, "request.timeout.ms": 2_000}
    tls_to_plain = {**kafka.tls, "security.protocol": "SSL", "bootstrap.servers": kafka.address("PLAINTEXT")}
    assert "is that a port without TLS" in str(fail({**patience, **tls_to_plain}))
    plain_to_tls = {"bootstrap.servers": kafka.address("SECURE")}
    error = str(fail({**patience, **plain_to_tls}))
    assert "that listener speaks TLS" in error or "see security.protocol" in error, error
    plain_to_login = {"bootstrap.servers": kafka.address("CLEAR")}
    assert "a listener that asks for a login does so" in str(fail({**patience, **plain_to_login}))
    login_to_plain = {
        "bootstrap.servers": kafka.address("PLAINTEXT"),
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": "PLAIN",
        "sasl.username": "alice",
        "sasl.password": PASSWORD,
    }
    assert "asks for no login" in str(fail({**patience, **login_to_plain}))
    assert "login with PLAIN" not in str(fail({**patience, **login_to_plain}))


def other_authority() -> str:
    return trustme.CA().cert_pem.bytes().decode()
