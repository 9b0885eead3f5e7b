"""Apache's Java clients and tools and librdkafka on our broker, over every login, with ACLs.

One login of each kind is a test case: a mechanism that the broker learns is one more name in MECHANISMS.
"""

import re
import uuid
from collections.abc import Iterator
from typing import Any

import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException, Producer
from confluent_kafka.admin import AdminClient, NewTopic
from tests.support.broker_with_logins import LOGINS, USERS, BrokerWithLogins, run_broker_with_logins

from tallystick.testing import eventually

pytestmark = [pytest.mark.gate(0), pytest.mark.server]

ALLOWED_BY_JAVA = "org.apache.kafka.sasl.oauthbearer.allowed"
every_login = pytest.mark.parametrize("login", LOGINS)


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerWithLogins]:
    with run_broker_with_logins(tmp_path_factory.mktemp("secured")) as running:
        yield running


@pytest.fixture
def driver(java: Any, secured: BrokerWithLogins) -> Any:
    """Apache's Java, which reads tokens from files that it was told of."""
    urls = [secured.token_url(user) for user in USERS]
    java("property", name=f"{ALLOWED_BY_JAVA}.urls", value=",".join(urls))
    java("property", name=f"{ALLOWED_BY_JAVA}.files", value=",".join(url[7:] for url in urls))
    return java


def fresh(stem: str) -> str:
    return f"{stem}-{uuid.uuid4().hex[:8]}"


class Tools:
    """Kafka's command-line tools, run with the login of a user."""

    def __init__(self, driver: Any, secured: BrokerWithLogins, login: str, user: str = "admin") -> None:
        self._driver = driver
        self._at = ("--bootstrap-server", secured.address(login))
        self._config = ("--command-config", secured.write_command_config(login, user))

    def run(self, name: str, *words: str, stdin: str = "") -> str:
        return str(self._driver.tool(name, *self._at, *self._config, *words, stdin=stdin))

    def fail(self, name: str, *words: str) -> str:
        return str(self._driver.failing_tool(name, *self._at, *self._config, *words))

    def acls(self, *words: str) -> str:
        return self.run("kafka-acls", *words)


@every_login
def test_tools_of_an_administrator(driver: Any, secured: BrokerWithLogins, login: str) -> None:
    tools, topic = Tools(driver, secured, login), fresh("tools")
    assert f"Created topic {topic}." in tools.run("kafka-topics", "--create", "--topic", topic)
    assert topic in tools.run("kafka-topics", "--list").split()
    of_topic = ("--entity-type", "topics", "--entity-name", topic)
    tools.run("kafka-configs", *of_topic, "--alter", "--add-config", "retention.ms=123456")
    assert "retention.ms=123456" in tools.run("kafka-configs", *of_topic, "--describe")
    alice = ("--allow-principal", "User:alice", "--operation", "Read", "--topic", topic)
    tools.acls("--add", *alice)
    assert "principal=User:alice" in tools.acls("--list", "--topic", topic)
    tools.run("kafka-console-producer", "--topic", topic, stdin="one\ntwo\n")
    reading = ("--topic", topic, "--from-beginning", "--max-messages", "2")
    assert tools.run("kafka-console-consumer", *reading).split() == ["one", "two"]


def test_kafka_acls(driver: Any, secured: BrokerWithLogins) -> None:
    """Added, prefixed, denied, filtered and removed, and each in force at once."""
    tools, topic = Tools(driver, secured, "PLAIN"), fresh("acls")
    tools.run("kafka-topics", "--create", "--topic", topic)
    alice, prefix = Tools(driver, secured, "PLAIN", "alice"), topic[:-2]
    assert topic not in alice.run("kafka-topics", "--list")
    by_prefix = ("--topic", prefix, "--resource-pattern-type", "prefixed")
    added = tools.acls("--add", "--allow-principal", "User:alice", "--operation", "Describe", *by_prefix)
    assert f"name={prefix}, patternType=PREFIXED" in added
    assert topic in alice.run("kafka-topics", "--list").split()
    denied = ("--deny-principal", "User:alice", "--deny-host", "127.0.0.1", "--operation", "All")
    tools.acls("--add", *denied, "--topic", topic)
    assert topic not in alice.run("kafka-topics", "--list")
    matching = ("--topic", topic, "--resource-pattern-type", "match")
    listed = tools.acls("--list", *matching)
    assert re.search(r"host=127\.0\.0\.1, operation=ALL, permissionType=DENY", listed)
    assert re.search(r"host=\*, operation=DESCRIBE, permissionType=ALLOW", listed)
    tools.acls("--remove", *denied, "--topic", topic, "--force")
    assert "DENY" not in tools.acls("--list", *matching)
    assert topic in alice.run("kafka-topics", "--list").split()
    tools.acls("--remove", *matching, "--force")
    assert "principal=" not in tools.acls("--list", *matching)
    assert topic not in alice.run("kafka-topics", "--list")
    writer = ("--add", "--allow-principal", "User:alice", "--producer", "--transactional-id", "t")
    assert "operation=WRITE" in tools.acls(*writer, "--topic", topic)
    two_phase = ("--add", "--allow-principal", "User:alice", "--operation", "TwoPhaseCommit")
    assert "TWO_PHASE_COMMIT" in tools.acls(*two_phase, "--transactional-id", "t")
    tools.acls("--remove", "--transactional-id", "t", "--force")
    tools.acls("--remove", "--topic", topic, "--force")
    assert "ClusterAuthorizationException" in alice.fail("kafka-acls", "--list")


@pytest.mark.parametrize("mechanism", ["SCRAM-SHA-256", "SCRAM-SHA-512"])
def test_kafka_configs_gives_a_user_a_password(
    driver: Any, secured: BrokerWithLogins, mechanism: str
) -> None:
    tools, user = Tools(driver, secured, "PLAIN"), fresh("user")
    of_user = ("--entity-type", "users", "--entity-name", user)
    tools.run("kafka-configs", *of_user, "--alter", "--add-config", f"{mechanism}=[password=secret]")
    config = secured.librdkafka_config(mechanism, user)
    assert AdminClient({**config, "sasl.password": "secret"}).list_topics(timeout=30).brokers
    shown = f"SCRAM credential configs for user-principal '{user}' are {mechanism}=iterations="
    assert shown in tools.run("kafka-configs", "--describe", *of_user)
    everyone = tools.run("kafka-configs", "--describe", "--entity-type", "users")
    assert shown in everyone
    assert "Quota configs" not in everyone
    tools.run("kafka-configs", *of_user, "--alter", "--delete-config", mechanism)
    with pytest.raises(KafkaException):
        AdminClient({**config, "sasl.password": "secret"}).list_topics(timeout=2)


def test_kafka_configs_sets_no_quota(driver: Any, secured: BrokerWithLogins) -> None:
    tools = Tools(driver, secured, "PLAIN")
    for kind in ("users", "clients", "ips"):
        assert tools.run("kafka-configs", "--describe", "--entity-type", kind) is not None
    of_alice = ("--entity-type", "users", "--entity-name", "alice")
    failure = tools.fail("kafka-configs", *of_alice, "--alter", "--add-config", "producer_byte_rate=1024")
    assert "UnsupportedVersionException: this broker has no quotas: nothing was set" in failure
    alice = Tools(driver, secured, "PLAIN", "alice")
    assert "ClusterAuthorizationException" in alice.fail("kafka-configs", "--describe", *of_alice)


def record(topic: str, value: str) -> dict[str, Any]:
    return {"topic": topic, "partition": 0, "key": None, "value": value}


@every_login
def test_java_writes_transactions_and_reads_them(driver: Any, secured: BrokerWithLogins, login: str) -> None:
    topic, config = fresh("java"), secured.java_config(login, "admin")
    name = fresh("handle")

    def call(what: str, **more: Any) -> None:
        answer = driver("txn", name=name, call=what, **more)
        assert "error" not in answer, answer

    call("open", config={**config, "transactional.id": topic})
    for value, end in (("b25l", "commit"), ("dHdv", "abort"), ("dHJp", "commit")):
        call("begin")
        call("send", records=[record(topic, value)])
        call(end)
    call("close")
    reading = {**config, "isolation.level": "read_committed"}
    answer = driver("consume", config=reading, topic=topic, partitions=[0], count=2)
    assert [each["value"] for each in answer.get("records", answer)] == ["b25l", "dHJp"]


@every_login
def test_a_missing_right_is_an_exception_of_java(driver: Any, secured: BrokerWithLogins, login: str) -> None:
    topic = fresh("denied")
    admin, alice = (secured.java_config(login, user) for user in ("admin", "alice"))
    assert "error" not in driver("produce", config=admin, records=[record(topic, "b25l")])
    waiting = {**alice, "max.block.ms": "20000", "default.api.timeout.ms": "20000"}
    plain = {**waiting, "enable.idempotence": "false"}
    denied = driver("produce", config=plain, records=[record(topic, "b25l")])
    assert denied.get("error") == "TopicAuthorizationException", denied
    denied = driver("consume", config=waiting, topic=topic, partitions=[0], count=1)
    assert denied.get("error") == "TopicAuthorizationException", denied
    opening = {**waiting, "transactional.id": topic}
    denied = driver("txn", name=fresh("handle"), call="open", config=opening)
    assert denied.get("error") == "TransactionalIdAuthorizationException", denied
    member = fresh("member")
    driver("member-start", name=member, config={**waiting, "group.id": topic}, topics=[topic])
    eventually(lambda: driver("member-log", name=member)["failure"] is not None, 60)
    failure = driver("member-stop", name=member, how="close")["failure"]
    # Whichever is asked for first: the topic's metadata or the group's coordinator.
    assert re.search(r"\.(Topic|Group)AuthorizationException", failure), failure


def create(config: dict[str, Any], topic: str) -> None:
    """Create a topic with librdkafka."""
    admin = AdminClient(config)
    admin.create_topics([NewTopic(topic, 1, 1)])[topic].result(30)


@every_login
def test_librdkafka_writes_transactions_and_reads_them(secured: BrokerWithLogins, login: str) -> None:
    topic, config = fresh("librdkafka"), secured.librdkafka_config(login, "admin")
    create(config, topic)
    producer = Producer({**config, "transactional.id": topic})
    producer.init_transactions(30)
    for value, end in ((b"one", producer.commit_transaction), (b"two", producer.abort_transaction)):
        producer.begin_transaction()
        producer.produce(topic, value)
        producer.flush(30)
        end(30)
    consumer = Consumer({**config, "group.id": topic, "auto.offset.reset": "earliest"})
    consumer.subscribe([topic])
    try:
        message = consumer.poll(30)
        assert message is not None
        assert (message.error(), message.value()) == (None, b"one")
        assert consumer.poll(1) is None
        consumer.commit(asynchronous=False)
    finally:
        consumer.close()


@every_login
def test_a_missing_right_is_a_code_of_librdkafka(secured: BrokerWithLogins, login: str) -> None:
    topic = fresh("denied")
    admin, alice = (secured.librdkafka_config(login, user) for user in ("admin", "alice"))
    create(admin, topic)
    reports: list[KafkaError | None] = []
    producer = Producer(alice)
    producer.produce(topic, b"one", on_delivery=lambda error, _: reports.append(error))
    producer.flush(30)
    assert [report and report.code() for report in reports] == [KafkaError.TOPIC_AUTHORIZATION_FAILED]
    with pytest.raises(KafkaException) as caught:
        Producer({**alice, "transactional.id": topic}).init_transactions(30)
    assert caught.value.args[0].code() == KafkaError.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
    consumer = Consumer({**alice, "group.id": topic, "auto.offset.reset": "earliest"})
    consumer.subscribe([topic])
    try:
        message = consumer.poll(30)
    finally:
        consumer.close()
    assert message is not None
    assert (error := message.error()) is not None
    assert error.code() in (KafkaError.TOPIC_AUTHORIZATION_FAILED, KafkaError.GROUP_AUTHORIZATION_FAILED)
    with pytest.raises(KafkaException) as caught:
        create(alice, fresh("denied"))
    assert caught.value.args[0].code() == KafkaError.TOPIC_AUTHORIZATION_FAILED
