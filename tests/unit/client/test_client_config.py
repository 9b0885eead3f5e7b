"""What clients can be told, held to Kafka's own definitions."""

from collections.abc import Mapping
from pathlib import Path

import pytest

from tallystick.client.settings.config import (
    CLIENT_SETTINGS,
    ROLE_SETTINGS,
    Address,
    AdminConfig,
    ConsumerConfig,
    ProducerConfig,
)
from tallystick.client.settings.kafka_names import INEFFECTIVE_SETTINGS, RENAMED_SETTINGS, is_refused
from tallystick.kernel.settings import BadConfig, SettingType

TABLE = Path(__file__).parents[2] / "vectors/config/kafka-4.3.1-client-configs.txt"
ROLES = {"producer": ProducerConfig, "consumer": ConsumerConfig, "admin": AdminConfig}

# Where ours differs, and what Kafka has.
OTHER_DEFAULTS = {
    "bootstrap.servers": "the admin client's may be empty, there being controllers to ask",
    "connections.max.idle.ms": "300000 for admin, set by AdminConfig.parse",
    "receive.buffer.bytes": "the system sizes it",
    "send.buffer.bytes": "the system sizes it",
    "partition.assignment.strategy": "class names there, short names here",
}
KINDS = {
    "boolean": {SettingType.BOOLEAN},
    "int": {SettingType.INT},
    "long": {SettingType.LONG},
    "string": {SettingType.STRING},
    "list": {SettingType.LIST},
    "short": {SettingType.INT},
    "double": {SettingType.DOUBLE},
    "password": {SettingType.PASSWORD, SettingType.STRING},
}
KAFKA = [tuple(line.split("\t")) for line in TABLE.read_text().splitlines()]


def problems(role: str, **given: object) -> list[str]:
    """What is wrong with settings, dots written as underscores."""
    named = {"bootstrap.servers": "b:9092"} | {name.replace("_", "."): v for name, v in given.items()}
    try:
        ROLES[role].parse(named)
    except BadConfig as exc:
        return str(exc).splitlines()
    return []


def producer(**given: object) -> ProducerConfig:
    return ProducerConfig.parse(
        {"bootstrap.servers": "b:9092"} | {name.replace("_", "."): v for name, v in given.items()}
    )


@pytest.mark.parametrize(("role", "name", "kind", "default"), KAFKA)
@pytest.mark.slow
def test_every_name_of_kafka_is_known_with_its_type_and_default(
    role: str, name: str, kind: str, default: str
) -> None:
    made = ROLE_SETTINGS[role].get(name) or CLIENT_SETTINGS.get(name)
    if made is None:
        assert (name in INEFFECTIVE_SETTINGS) != is_refused(name)
        return
    assert made.kind in KINDS[kind]
    if name not in OTHER_DEFAULTS:
        text = None if default == "null" else default.strip("`")
        assert made.format(made.default) == text


def test_a_name_is_known_in_one_way_only() -> None:
    ours = {name for role in ROLE_SETTINGS.values() for name in role} | set(CLIENT_SETTINGS)
    assert not ours & INEFFECTIVE_SETTINGS
    assert not [name for name in ours | INEFFECTIVE_SETTINGS if is_refused(name)]
    assert set(RENAMED_SETTINGS.values()) <= ours
    assert not set(RENAMED_SETTINGS) & (ours | INEFFECTIVE_SETTINGS)


def test_all_problems_are_reported_at_once() -> None:
    found = problems(
        "producer",
        bootstrap_servers="nowhere",
        linger_ms=-1,
        acsk=1,
        security_protocol="SASL_SSL",
        sasl_mechanism="PLAIN",
        group_id="g",
        compression_type="lzma",
    )
    for part in (
        "bootstrap.servers: 'nowhere' is not host:port",
        "linger.ms: '-1' is not long, 0 to",
        "acsk: unknown setting; did you mean acks?",
        "sasl.username: is missing, and so is sasl.jaas.config",
        "sasl.password: is missing, and so is sasl.jaas.config",
        "group.id: a setting of consumer, this is producer",
        "compression.type: 'lzma' is not one of none, gzip, snappy, lz4, zstd",
    ):
        assert any(line.startswith(part) for line in found), part


def test_values_may_be_numbers_booleans_and_lists() -> None:
    made = producer(
        bootstrap_servers=["a:1", "[::1]:2"], linger_ms=7, enable_idempotence=True, client_id=None
    )
    assert made.client.bootstrap_addresses == (Address("a", 1), Address("::1", 2))
    assert [str(address) for address in made.client.bootstrap_addresses] == ["a:1", "[::1]:2"]
    assert (made.linger_ms, made.client.client_id) == (7, "")


@pytest.mark.parametrize("text", ["", "b", "b:", ":9", "b:0", "b:65536", "b:9x", "SSL://b:9"])
def test_addresses_that_are_none(text: str) -> None:
    assert problems("admin", bootstrap_servers=text)


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ({"security_protocol": "plain"}, "security.protocol: 'PLAIN' is not one of PLAINTEXT, SSL"),
        ({"ssl_truststore_location": "/ca.pem"}, "security.protocol=PLAINTEXT has no TLS"),
        ({"security_protocol": "SASL_PLAINTEXT", "ssl_key_password": "x"}, "has no TLS"),
        ({"security_protocol": "SSL", "sasl_mechanism": "PLAIN"}, "security.protocol=SSL has no login"),
    ],
)
@pytest.mark.parametrize("role", ROLES)
def test_security_is_never_ignored(role: str, given: Mapping[str, object], text: str) -> None:
    assert any(text in line for line in problems(role, **given))


def test_a_timeout_together_with_two_phase_commit_is_an_error() -> None:
    """KIP-939: "it would be an error to set transaction.timeout.ms when two.phase.commit.enable is set"."""
    two_phase = {"transactional_id": "t", "transaction_two_phase_commit_enable": True}
    (line,) = problems("producer", transaction_timeout_ms=60_000, **two_phase)
    assert "KIP-939" in line
    assert producer(**two_phase).modes == ("2pc",)
    assert problems("producer", transaction_timeout_ms=60_000, transactional_id="t") == []
    weaker = {"tallystick_modes": ["2pc", "resume"], **two_phase}
    assert producer(transaction_timeout_ms=900_000, **weaker).transaction_timeout_ms == 900_000


@pytest.mark.parametrize(
    ("modes", "two_phase", "fine"),
    [
        ("2pc,keep,resume", True, True),
        (["2pc", "resume"], True, True),
        ("keep", False, True),
        ("resume", False, True),
        ("keep,2pc", True, False),
        ("keep,keep", False, False),
        ("2pc", False, False),
        ("keep", True, False),
        ("kept", False, False),
    ],
)
def test_modes_are_listed_strongest_first(modes: object, two_phase: bool, fine: bool) -> None:
    found = problems(
        "producer",
        transactional_id="t",
        tallystick_modes=modes,
        transaction_two_phase_commit_enable=two_phase,
    )
    assert (not found) == fine
    assert fine or found[0].startswith("tallystick.modes")


def test_two_phase_commit_needs_an_id() -> None:
    assert problems("producer", transaction_two_phase_commit_enable=True)
    assert problems("producer", tallystick_modes="keep")
    assert problems("producer", transactional_id="")


@pytest.mark.parametrize(
    ("given", "name"),
    [
        ({"acks": "1"}, "acks"),
        ({"acks": 0}, "acks"),
        ({"max_in_flight_requests_per_connection": 6}, "max.in.flight"),
        ({"retries": 0}, "retries"),
    ],
)
def test_idempotence_gives_way_unless_it_was_asked_for(given: Mapping[str, object], name: str) -> None:
    """As Kafka's ProducerConfig.postProcessParsedConfig does it."""
    assert producer(**given).enable_idempotence is False
    assert any("enable.idempotence" in note for note in producer(**given).notes)
    for asked in ({"enable_idempotence": True}, {"transactional_id": "t"}):
        (line,) = problems("producer", **given, **asked)
        assert line.startswith(name)
    assert producer(acks=-1).enable_idempotence


def test_a_transaction_is_idempotent() -> None:
    assert problems("producer", transactional_id="t", enable_idempotence=False)


def test_delivery_takes_at_least_one_request() -> None:
    assert problems("producer", delivery_timeout_ms=30_004)
    assert not problems("producer", delivery_timeout_ms=30_005)
    assert producer(request_timeout_ms=200_000).delivery_timeout_ms == 200_005


@pytest.mark.parametrize(
    ("role", "given", "name"),
    [
        ("consumer", {"heartbeat_interval_ms": 45_000}, "heartbeat.interval.ms"),
        ("consumer", {"fetch_max_wait_ms": 30_000}, "fetch.max.wait.ms"),
        ("consumer", {"group_id": ""}, "group.id"),
        ("consumer", {"group_instance_id": ""}, "group.instance.id"),
        ("consumer", {"enable_auto_commit": True}, "enable.auto.commit"),
        ("consumer", {"partition_assignment_strategy": ""}, "partition.assignment.strategy"),
        ("admin", {"default_api_timeout_ms": 1_000}, "default.api.timeout.ms"),
        ("admin", {"retry_backoff_ms": 2_000}, "retry.backoff.ms"),
        ("producer", {"compression_gzip_level": 0}, "compression.gzip.level"),
    ],
)
def test_rules_of_more_than_one_setting(role: str, given: Mapping[str, object], name: str) -> None:
    (line,) = problems(role, **given)
    assert line.startswith(name)


def test_librdkafkas_names_are_understood() -> None:
    made = ProducerConfig.parse(
        {
            "metadata.broker.list": "a:1",
            "compression.codec": "lz4",
            "message.timeout.ms": 99_000,
            "queue.buffering.max.ms": 50,
            "linger.ms": 7,
            "statistics.interval.ms": 0,
            "partitioner": "murmur2_random",
        }
    )
    assert (made.compression_type, made.delivery_timeout_ms) == ("lz4", 99_000)
    assert made.linger_ms == 7, "the name used here wins"
    assert made.notes == ("statistics.interval.ms: has no effect in this client",)


@pytest.mark.parametrize(
    ("role", "name", "value", "why"),
    [
        ("producer", "on_delivery", print, "pass on_delivery to send()"),
        ("producer", "interceptor.classes", "com.x.Y", "no Java classes"),
        ("producer", "partitioner.class", "com.x.Y", "pass a partition to send()"),
        ("producer", "queue.buffering.max.kbytes", 1024, "buffer.memory"),
        ("consumer", "group.protocol", "consumer", "classic protocol"),
        ("consumer", "enable.partition.eof", True, "end_offsets()"),
        ("admin", "ssl.curves.list", "P-256", "ssl_context"),
        ("admin", "bootstrap.controllers", "c:9093", "bootstrap.servers"),
    ],
)
def test_what_promises_something_is_refused_with_the_reason(
    role: str, name: str, value: object, why: str
) -> None:
    with pytest.raises(BadConfig, match="not supported") as refusal:
        ROLES[role].parse({"bootstrap.servers": "b:1", name: value})
    assert why in str(refusal.value)


def test_javas_assignors_are_understood() -> None:
    strategy = "partition.assignment.strategy"
    java = "org.apache.kafka.clients.consumer.StickyAssignor,RangeAssignor,cooperative-sticky"
    made = ConsumerConfig.parse({"bootstrap.servers": "b:1", strategy: java})
    assert made.partition_assignment_strategy == ("sticky", "range", "cooperative-sticky")
    with pytest.raises(BadConfig, match=r"com\.x\.Mine"):
        ConsumerConfig.parse({"bootstrap.servers": "b:1", strategy: "com.x.Mine"})


def test_an_admin_client_forgets_connections_sooner() -> None:
    assert AdminConfig.parse({"bootstrap.servers": "b:1"}).client.connections_max_idle_ms == 300_000


def test_every_setting_is_documented() -> None:
    text = (Path(__file__).parents[3] / "docs/config.md").read_text()
    for name in [*CLIENT_SETTINGS, *(name for role in ROLE_SETTINGS.values() for name in role)]:
        assert f"| `{name}` |" in text, f"{name}: run tools/config_docs.py"
