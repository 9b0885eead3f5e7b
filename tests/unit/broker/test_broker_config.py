"""Settings: Kafka's names, bounds, all problems at once, and what a topic falls back to."""

from pathlib import Path

import pytest

from tallystick.broker.config.broker_config import (
    BROKER_SETTINGS,
    TOPIC_SETTINGS,
    BrokerConfig,
    list_ineffective,
)
from tallystick.broker.config.endpoint import Endpoint
from tallystick.broker.config.kafka_names import INEFFECTIVE_SETTINGS, REFUSED_SETTINGS
from tallystick.broker.partitions.data_directory import make_log_config
from tallystick.kernel.settings import BadConfig, read_properties
from tallystick.protocol.records import Codec, TimestampType

# What Kafka 4.3 ships as config/server.properties, its comments left out.
STOCK = """
process.roles=broker,controller
node.id=1
controller.quorum.bootstrap.servers=localhost:9093
listeners=PLAINTEXT://:9092,CONTROLLER://:9093
inter.broker.listener.name=PLAINTEXT
advertised.listeners=PLAINTEXT://localhost:9092,CONTROLLER://localhost:9093
controller.listener.names=CONTROLLER
listener.security.protocol.map=CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT,SSL:SSL,SASL_PLAINTEXT:SASL_PLAINTEXT
num.network.threads=3
num.io.threads=8
socket.send.buffer.bytes=102400
socket.receive.buffer.bytes=102400
socket.request.max.bytes=104857600
log.dirs=/tmp/kraft-combined-logs
num.partitions=1
num.recovery.threads.per.data.dir=1
offsets.topic.replication.factor=1
share.coordinator.state.topic.replication.factor=1
share.coordinator.state.topic.min.isr=1
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
log.retention.hours=168
log.segment.bytes=1073741824
log.retention.check.interval.ms=300000
"""


def problems_of(given: dict[str, str]) -> list[str]:
    with pytest.raises(BadConfig) as caught:
        BrokerConfig.parse(given)
    return str(caught.value).splitlines()


def test_the_file_kafka_ships_starts_this_broker() -> None:
    """But for one word: it listens everywhere, and asks nobody for a name."""
    given = read_properties(STOCK, "server.properties")
    (problem,) = problems_of(given)
    assert "allow.insecure.listeners=true" in problem
    config = BrokerConfig.parse(given | {"allow.insecure.listeners": "true"})
    (listener,) = config.make_listeners()
    assert listener.endpoint == Endpoint("", 9092)
    assert listener.advertised == Endpoint("localhost", 9092)
    assert "num.io.threads" in list_ineffective(given)


def test_every_problem_is_reported_at_once_and_unknown_names_get_a_hint() -> None:
    found = problems_of(
        {"num.partition": "1", "node.id": "one", "flush.policy": "never", "max.connections": "-1"}
    )
    assert found == [
        "num.partition: unknown setting; did you mean num.partitions?",
        "node.id: 'one' is not int, 0 to 2147483647",
        "flush.policy: 'never' is not one of ack, interval, os",
        "max.connections: '-1' is not int, 1 to 2147483647",
    ]


def test_rules_between_settings_are_reported_together() -> None:
    found = problems_of(
        {
            "group.min.session.timeout.ms": "10",
            "group.max.session.timeout.ms": "9",
            "listeners": "SASL_SSL://127.0.0.1:1",
            "log.dirs": "/a,/b",
        }
    )
    assert len(found) == 3


@pytest.mark.parametrize("listen", ["PLAINTEXT://0.0.0.0:9092", "PLAINTEXT://:9092", "PLAINTEXT://[::]:9092"])
def test_a_wildcard_needs_an_advertised_address(listen: str) -> None:
    (problem,) = problems_of({"listeners": listen})
    assert "--advertise HOST:PORT" in problem
    told = {"listeners": listen, "advertised.listeners": "PLAINTEXT://broker:9092"}
    (problem,) = problems_of(told)
    assert "allow.insecure.listeners" in problem
    assert BrokerConfig.parse(told | {"allow.insecure.listeners": "true"})


@pytest.mark.parametrize(
    ("given", "hours"),
    [
        ({}, 168),
        ({"log.retention.hours": "2"}, 2),
        ({"log.retention.hours": "2", "log.retention.minutes": "60"}, 1),
        ({"log.retention.hours": "2", "log.retention.minutes": "60", "log.retention.ms": "10800000"}, 3),
    ],
)
def test_retention_falls_back_from_ms_to_minutes_to_hours(given: dict[str, str], hours: int) -> None:
    assert BrokerConfig.parse(given).make_topic_config().retention_ms == hours * 3_600_000


def test_minus_one_is_no_limit_wherever_it_was_said() -> None:
    assert BrokerConfig.parse({"log.retention.hours": "-1"}).make_topic_config().retention_ms is None
    assert BrokerConfig.parse({}).make_topic_config({"retention.ms": "-1"}).retention_ms is None


def test_a_topic_overrides_what_the_broker_says() -> None:
    config = BrokerConfig.parse({"message.max.bytes": "2000", "log.cleanup.policy": "compact"})
    assert config.make_topic_config().max_message_bytes == 2000
    own = config.make_topic_config({"max.message.bytes": "3000", "cleanup.policy": "delete, compact"})
    assert own.max_message_bytes == 3000
    assert own.cleanup_policy == ("delete", "compact")


def test_topic_problems_come_together_too() -> None:
    with pytest.raises(BadConfig) as caught:
        BrokerConfig.parse({}).make_topic_config(
            {"retention.mss": "1", "segment.bytes": "1", "cleanup.policy": "shrink"}
        )
    assert len(str(caught.value).splitlines()) == 3


def test_tiered_storage_and_throttles_are_accepted_as_their_defaults_only() -> None:
    config = BrokerConfig.parse({})
    assert config.make_topic_config({"remote.storage.enable": "false"})
    with pytest.raises(BadConfig, match=r"remote\.storage\.enable"):
        config.make_topic_config({"remote.storage.enable": "true"})


def test_the_storage_layer_gets_every_value() -> None:
    config = BrokerConfig.parse({"flush.policy": "os", "producer.id.expiration.ms": "5"})
    topic = config.make_topic_config(
        {"compression.type": "zstd", "message.timestamp.type": "LogAppendTime", "cleanup.policy": "compact"}
    )
    made = make_log_config("t", topic, config)
    assert made.compression_type is Codec.ZSTD
    assert made.compression_level == 3
    assert made.message_timestamp_type is TimestampType.LOG_APPEND_TIME
    assert made.cleanup_policy == frozenset({"compact"})
    assert made.flush_policy == "os"
    assert made.producer_id_expiration_ms == 5
    assert not made.internal
    assert make_log_config("__consumer_offsets", topic, config).internal


def test_synonyms_name_settings_that_exist_and_have_the_same_default() -> None:
    for made in TOPIC_SETTINGS.values():
        for synonym in made.synonyms:
            assert synonym.name in BROKER_SETTINGS, made.name
        if not made.synonyms:
            continue
        fallback = BROKER_SETTINGS[made.synonyms[-1].name]
        scale = made.synonyms[-1].scale
        if made.name != "flush.ms":  # Kafka's null there means "never", as the topic's maximum does
            expected = fallback.default * scale if isinstance(fallback.default, int) else fallback.default
            assert made.default == expected, made.name


def test_no_setting_is_both_effective_and_without_effect() -> None:
    assert not INEFFECTIVE_SETTINGS & set(BROKER_SETTINGS)


def test_every_default_can_be_written_and_read_back() -> None:
    for made in (*BROKER_SETTINGS.values(), *TOPIC_SETTINGS.values()):
        text = made.format(made.default)
        if text is not None:
            assert made.parse(text) == made.default, made.name


@pytest.mark.parametrize("text", ["", "host", "host:", "host:x", ":70000", "::1:9092"])
def test_bad_endpoints_are_refused(text: str) -> None:
    with pytest.raises(ValueError):
        Endpoint.parse(text)


def test_an_endpoint_of_version_6_keeps_its_brackets() -> None:
    assert str(Endpoint.parse("[::1]:9092")) == "[::1]:9092"


def test_properties_may_be_continued_commented_and_use_colons() -> None:
    text = "# a\n! b\n\nnum.partitions : 3\nlog.dirs=/tmp/\\\n   x\nempty="
    assert read_properties(text, "f") == {"num.partitions": "3", "log.dirs": "/tmp/x", "empty": ""}


@pytest.mark.parametrize(
    ("line", "value"),
    [
        (r'a=required user_x="a\\"b";', 'required user_x="a\\"b";'),
        (r"a=C:\\logs", r"C:\logs"),
        (r"a=one\ntwo\tthree\q", "one\ntwo\tthreeq"),
        (r"a=w\u00f6rd \ud83d\ude00", "w\u00f6rd \U0001f600"),
        ("a=ends\\\\\nb=2", "ends\\"),
    ],
)
def test_properties_escape_as_in_java(line: str, value: str) -> None:
    """java.util.Properties.load: "a backslash character before a non-valid escape character" is dropped."""
    assert read_properties(line, "f")["a"] == value


def test_properties_refuse_an_unfinished_escape() -> None:
    with pytest.raises(BadConfig, match="four hexadecimal digits"):
        read_properties(r"a=\u12", "f")


def test_properties_report_every_bad_line() -> None:
    with pytest.raises(BadConfig) as caught:
        read_properties("a=1\nnonsense\na=2\n=3", "f")
    assert [line.partition(" ")[0] for line in str(caught.value).splitlines()] == ["f:2:", "f:3:", "f:4:"]


def test_every_setting_is_in_the_documentation() -> None:
    text = (Path(__file__).parents[3] / "docs/config.md").read_text()
    for name in (*BROKER_SETTINGS, *TOPIC_SETTINGS, *INEFFECTIVE_SETTINGS, *REFUSED_SETTINGS):
        assert f"`{name}`" in text, f"{name}: run tools/config_docs.py"
