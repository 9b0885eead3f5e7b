"""`tallystick doctor` on Apache Kafka over TLS and SASL."""

import json
from pathlib import Path

import pytest
from tests.support.secure_kafka import PASSWORD, SecureKafka

from tallystick.admin import Admin, NewTopic
from tallystick.cli.main import main
from tallystick.client.blocking.producer import Producer

pytestmark = [pytest.mark.gate(0), pytest.mark.kafka, pytest.mark.server]


def test_apache_kafka_is_diagnosed_and_an_open_transaction_goes_on(
    secure_kafka: SecureKafka, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    settings = {
        **secure_kafka.tls,
        "bootstrap.servers": secure_kafka.address("SHORT"),
        "security.protocol": "SASL_SSL",
        "sasl.mechanism": "SCRAM-SHA-512",
        "sasl.username": "alice",
        "sasl.password": PASSWORD,
    }
    name = secure_kafka.fresh_name()
    with Admin(settings) as admin:
        admin.create_topics([NewTopic(name=name, partitions=1)])
    given = {**settings, "tallystick.modes": "2pc,resume", "transaction.timeout.ms": "600000"}
    config = tmp_path / "client.properties"
    config.write_text("".join(f"{key}={value}\n" for key, value in given.items()))
    subjects = ("--transactional-id", name, "--topic", name, "--group", name)
    with Producer({**settings, "transactional.id": name}) as producer:
        producer.init_transactions()
        producer.begin_transaction()
        producer.send(name, b"1").result(30)
        code = main(["doctor", "--command-config", str(config), *subjects, "--output", "json"])
        rows = {row["check"]: row for row in json.loads(capsys.readouterr().out)}
        producer.commit_transaction()
    assert code == 0, rows
    assert rows["mode"]["detail"].startswith("resume: 2pc needs InitProducerId version 6")
    assert rows["outage"]["detail"].startswith("10 min at most")
    assert rows["login"]["detail"] == "SCRAM-SHA-512 as User:alice, for 2 s"
    assert rows["TLS"]["detail"].startswith("TLSv1.3, ")
