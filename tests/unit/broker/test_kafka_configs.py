"""Our settings against those of a released Kafka, as its own classes print them."""

from pathlib import Path
from typing import NamedTuple

import pytest

from tallystick.broker.config.broker_config import (
    BROKER_SETTINGS,
    RENAMED_SETTINGS,
    TOPIC_SETTINGS,
    BrokerConfig,
    list_ineffective,
)
from tallystick.broker.config.dynamic_config import (
    INEFFECTIVE_DYNAMIC,
    find_bad_values,
    find_change_problems,
)
from tallystick.broker.config.kafka_names import (
    INEFFECTIVE_SETTINGS,
    REFUSED_SETTINGS,
    is_refused,
)
from tallystick.broker.config.topic_config import DEFAULT_ONLY_SETTINGS
from tallystick.broker.handlers.cluster.alter_configs import AlterConfigOp, ConfigChange, apply_changes
from tallystick.kernel.foreign_settings import read_foreign_settings
from tallystick.kernel.settings import BadConfig, Setting, list_settings
from tallystick.security.tls.settings import TlsSettings

FACTS = Path(__file__).parents[2] / "vectors/config/kafka-4.3.1-configs.txt"

TLS_SETTINGS = list_settings(TlsSettings)

NOT_KAFKAS = {
    # StandardAuthorizer reads these two itself; KafkaConfig, which printed the facts, does not declare them.
    "allow.everyone.if.no.acl.found",
    "super.users",
    "allow.insecure.listeners",
    "delete.open.transactions",
    "event.loop",
    "flush.policy",
    "log.reserve.bytes",
    "logging.format",
    "logging.level",
    "max.partitions",
    "metrics.auth.password.file",
    "metrics.auth.token.file",
    "metrics.auth.user",
    "metrics.listener",
    "queued.max.response.bytes",
    "https.ca.location",
    "sasl.handshake.timeout.ms",
    "sasl.logins.max",
    "sasl.oauthbearer.allowed.files",
    "ssl.certificate.location",
    "ssl.handshake.timeout.ms",
    "ssl.handshakes.max",
    "ssl.key.location",
    "ssl.reload.interval.ms",
}

DEFAULT_DIFFERS = {
    "node.id": "Kafka has none; one broker needs no choice",
    "listeners": "Kafka listens everywhere; without authentication the loopback is the safe default",
    "socket.listen.backlog.size": "50 refuses a burst of clients",
    "queued.max.request.bytes": "no limit lets clients take all memory",
    "sasl.enabled.mechanisms": "GSSAPI is not supported: the mechanisms are to be named",
}

KIND_DIFFERS = {
    "log.dirs": "one directory, not a list",
    "listeners": "its parts have a form of their own",
    "advertised.listeners": "its parts have a form of their own",
}

SYNONYMS_DIFFER = {"flush.ms": "log.flush.scheduler.interval.ms has no effect here, as flush.ms has not"}


class Fact(NamedTuple):
    kind: str
    default: str
    last: str  # of a broker's setting how it changes, of a topic's what it falls back to


def facts_of(what: str) -> dict[str, Fact]:
    rows = [line.split("\t") for line in FACTS.read_text().splitlines()]
    return {name: Fact(*rest) for kind, name, *rest in rows if kind == what}


BROKER, TOPIC = facts_of("broker"), facts_of("topic")

FIXED_WHILE_RUNNING = {
    "listeners": "the socket is bound at the start",
    "log.flush.interval.ms": "the timer is set at the start",
    "sasl.enabled.mechanisms": "logins are read at the start",
    "listener.security.protocol.map": "the sockets are bound at the start",
    **{
        name: "a changed file of keys is noticed, and read again"
        for name in TLS_SETTINGS
        if name in BROKER and BROKER[name].last == "per-broker"
    },
}


def default_of(made: Setting) -> set[str]:
    """How the default may stand in the facts; no value there is `null` or an empty text."""
    text = made.format(made.default)
    return {f"`{text}`"} if text else {"null", "``"}


@pytest.mark.parametrize(
    ("settings", "facts"), [(BROKER_SETTINGS, BROKER), (TOPIC_SETTINGS, TOPIC)], ids=["broker", "topic"]
)
def test_names_types_and_defaults_are_kafkas(settings: dict[str, Setting], facts: dict[str, Fact]) -> None:
    assert set(settings) - set(facts) <= NOT_KAFKAS
    for name, made in settings.items():
        if name in NOT_KAFKAS:
            continue
        fact = facts[name]
        assert (fact.default not in default_of(made)) == (name in DEFAULT_DIFFERS), (name, fact.default)
        assert (fact.kind != made.kind.name.lower()) == (name in KIND_DIFFERS), (name, fact.kind)


def test_what_may_be_changed_while_running_is_what_kafka_lets_change() -> None:
    for name, made in BROKER_SETTINGS.items():
        if name not in NOT_KAFKAS:
            kafkas = BROKER[name].last in ("cluster-wide", "per-broker")
            assert made.dynamic == (kafkas and name not in FIXED_WHILE_RUNNING), (name, BROKER[name].last)


def test_topics_fall_back_to_what_kafkas_fall_back_to() -> None:
    for name, made in TOPIC_SETTINGS.items():
        same = (",".join(synonym.name for synonym in made.synonyms) or "-") == TOPIC[name].last
        assert same == (name not in SYNONYMS_DIFFER), (name, TOPIC[name].last)


def test_every_other_setting_of_kafkas_is_accepted_or_refused_with_a_reason() -> None:
    ours = {*BROKER_SETTINGS, *RENAMED_SETTINGS, "controller.listener.names"}
    for name in BROKER:
        assert (name in ours) + (name in INEFFECTIVE_SETTINGS) + is_refused(name) == 1, name
    assert INEFFECTIVE_SETTINGS - set(BROKER) == {
        each.name
        for each in read_foreign_settings("tallystick.broker.config")
        if each.reason == "not in Kafka 4"
    }
    assert set(REFUSED_SETTINGS) <= set(BROKER)


def test_other_topic_settings_are_accepted_as_kafkas_default() -> None:
    public = {name: fact for name, fact in TOPIC.items() if fact.last != "internal"}
    assert set(public) == set(TOPIC_SETTINGS) | set(DEFAULT_ONLY_SETTINGS)
    for name, text in DEFAULT_ONLY_SETTINGS.items():
        assert public[name].default == f"`{text}`"


def test_refused_settings_pass_as_kafkas_default() -> None:
    defaults = {name: each.allowed[0] for name, each in REFUSED_SETTINGS.items()}
    for name, text in defaults.items():
        assert BROKER[name].default == f"`{text}`" or (text == "" and BROKER[name].default == "null"), name
    assert BrokerConfig.parse(defaults)


def test_a_file_with_all_of_kafkas_defaults_is_taken() -> None:
    """It asks for nothing that is not here, but for the names below."""
    defaults = {
        name: fact.default.strip("`")
        for name, fact in BROKER.items()
        if fact.default not in ("null", "required")
    }
    del defaults["listeners"]  # everywhere, which needs an address to advertise
    del defaults["broker.id"]  # -1 is "not set"
    del defaults["queued.max.request.bytes"]  # -1 is "no limit", in DEFAULT_DIFFERS
    assert BrokerConfig.parse(defaults)


def test_what_kafka_changes_while_it_runs_is_accepted_here_as_in_the_file() -> None:
    """A file may have it with a warning; what would pretend safety is in neither."""
    changeable = {
        name
        for name, fact in BROKER.items()
        if name in INEFFECTIVE_SETTINGS and fact.last in ("cluster-wide", "per-broker")
    }
    assert set(INEFFECTIVE_DYNAMIC) == changeable
    for name, made in INEFFECTIVE_DYNAMIC.items():
        fact = BROKER[name]
        assert made.default == made.parse(fact.default.strip("`").replace("null", "")), name
        assert made.kind.name == fact.kind.upper().replace("SHORT", "INT"), name
    with pytest.raises(BadConfig, match="'x' is not int"):
        raise BadConfig("\n".join(find_bad_values({"num.io.threads": "x"})))
    (problem,) = find_change_problems({"sasl.kerberos.kinit.cmd": "x"}, is_default=True)
    assert "broker id must be specified" in problem


def test_a_setting_without_effect_is_not_called_unknown_when_it_is_altered() -> None:
    for name in (
        "queued.max.requests",
        "sasl.jaas.config",
        "ssl.provider",
        "remote.log.storage.system.enable",
    ):
        with pytest.raises(BadConfig, match=f"{name}: has no effect in this broker"):
            apply_changes({}, [ConfigChange(name, AlterConfigOp.SET, "8")], BROKER_SETTINGS)
    with pytest.raises(BadConfig, match=r"unknown setting; did you mean num\.partitions"):
        apply_changes({}, [ConfigChange("num.partition", AlterConfigOp.SET, "8")], BROKER_SETTINGS)


def test_tuning_of_logins_is_accepted_and_asking_for_them_is_not() -> None:
    tuned = {"sasl.kerberos.service.name": "kafka", "sasl.login.refresh.window.factor": "0.5"}
    assert BrokerConfig.parse(tuned)
    assert list_ineffective(tuned) == sorted(tuned)
    for name, text in {"sasl.server.callback.handler.class": "X", "ssl.provider": "Conscrypt"}.items():
        with pytest.raises(BadConfig, match="TLS certificates and"):
            BrokerConfig.parse({name: text})


def test_a_secret_that_is_refused_is_not_shown() -> None:
    for name in REFUSED_SETTINGS:
        if any(word in name for word in ("secret.key", "client.secret", "jaas", "passphrase")):
            with pytest.raises(BadConfig) as caught:
                BrokerConfig.parse({name: "geheim"})
            assert name in str(caught.value)
            assert "geheim" not in str(caught.value)


def test_what_asks_for_more_than_there_is_says_why_beside_every_other_problem() -> None:
    with pytest.raises(BadConfig) as caught:
        BrokerConfig.parse(
            {
                "ssl.engine.factory.class": "X",
                "listener.name.plaintext.ssl.keystore.lokation": "/k",
                "remote.log.storage.system.enable": "true",
                "num.partition": "1",
            }
        )
    assert [line.partition(":")[0] for line in str(caught.value).splitlines()] == [
        "ssl.engine.factory.class",
        "remote.log.storage.system.enable",
        "num.partition",
        "listener.name.plaintext.ssl.keystore.lokation",
    ]
    assert "TLS certificates and" in str(caught.value)
    assert "tiered storage" in str(caught.value)
