"""Two-phase commit on a secured Apache Kafka: TWO_PHASE_COMMIT denied, then granted."""

import json
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from tests.support.secure_kafka import PASSWORD, SecureKafka
from tools.servers import apache_kafka

from tallystick.admin import Acl, Admin, NewTopic
from tallystick.broker.config.broker_config import STANDARD_AUTHORIZER
from tallystick.cli.main import main
from tallystick.client.blocking.producer import Producer
from tallystick.client.errors import NotAuthorized
from tallystick.client.transactions.modes import Mode
from tallystick.protocol.acls import AclOperation, AclResource
from tallystick.testing import eventually

pytestmark = [pytest.mark.gate(0), pytest.mark.kafka, pytest.mark.server]

SETTINGS = {
    "authorizer.class.name": STANDARD_AUTHORIZER,
    # The node, and the test, use the listener without logins.
    "super.users": "User:ANONYMOUS",
    "unstable.api.versions.enable": "true",
    "transaction.two.phase.commit.enable": "true",
    "offsets.topic.num.partitions": "1",
    "transaction.state.log.num.partitions": "1",
}
NAME = "shop-1"


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SecureKafka]:
    if (lack := apache_kafka.find_missing()) is not None:
        pytest.skip(lack)
    folder = tmp_path_factory.mktemp("guarded-kafka")
    made = SecureKafka(apache_kafka.ApacheKafka(directory=folder, settings=SETTINGS), folder)
    made.configure()
    with made.node:
        yield made


def grant(kafka: SecureKafka, resource: AclResource, operation: AclOperation, name: str = NAME) -> None:
    rule = Acl(resource=resource, name=name, principal="User:alice", operation=operation)
    with Admin({"bootstrap.servers": kafka.node.bootstrap}) as admin:
        admin.create_acls([rule]).all()


def test_the_right_is_denied_and_then_granted(
    guarded: SecureKafka, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """KIP-939: "TWO_PHASE_COMMIT ... is required for InitProducerId with enable2Pc=true"."""
    settings = {
        "bootstrap.servers": guarded.address("CLEAR"),
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": "PLAIN",
        "sasl.username": "alice",
        "sasl.password": PASSWORD,
    }
    config = tmp_path / "client.properties"
    both = {**settings, "tallystick.modes": "2pc,resume"}
    config.write_text("".join(f"{key}={value}\n" for key, value in both.items()))

    def write(modes: str) -> Mode | None:
        with Producer({**settings, "transactional.id": NAME, "tallystick.modes": modes}) as producer:
            producer.init_transactions()
            producer.begin_transaction()
            producer.send(NAME, modes.encode())
            producer.prepare_transaction()
            producer.commit_transaction()
            return producer.mode

    def try_writing(modes: str) -> Mode | None:
        with suppress(NotAuthorized):
            return write(modes)
        return None

    def diagnose() -> dict[str, str]:
        words = ("--transactional-id", NAME, "--topic", NAME, "--output", "json")
        main(["doctor", "--command-config", str(config), *words])
        return {row["check"]: row["detail"] for row in json.loads(capsys.readouterr().out)}

    with Admin({"bootstrap.servers": guarded.node.bootstrap}) as admin:
        admin.create_topics([NewTopic(name=NAME, partitions=1)]).all()
    grant(guarded, AclResource.CLUSTER, AclOperation.DESCRIBE_CONFIGS, "kafka-cluster")
    grant(guarded, AclResource.TOPIC, AclOperation.WRITE)
    grant(guarded, AclResource.TRANSACTIONAL_ID, AclOperation.WRITE)

    assert eventually(lambda: try_writing("resume"), 60), "a grant takes a moment"
    with pytest.raises(NotAuthorized, match="TWO_PHASE_COMMIT"):
        write("2pc")
    assert write("2pc,resume") is Mode.RESUME
    detail = diagnose()["mode"]
    assert detail.startswith("resume: ")
    assert f"2pc+resume needs the right TwoPhaseCommit on transactional id {NAME}" in detail

    grant(guarded, AclResource.TRANSACTIONAL_ID, AclOperation.TWO_PHASE_COMMIT)
    assert eventually(lambda: try_writing("2pc,resume") is Mode.TWO_PHASE_RESUME, 60)
    details = diagnose()
    assert details["mode"].startswith("2pc+resume: 2pc needs a broker that carries out KeepPreparedTxn")
    assert details["outage"] == "of any length: a prepared transaction of 2pc+resume never expires"
