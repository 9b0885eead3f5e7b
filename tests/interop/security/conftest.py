"""One Apache Kafka with TLS and logins for all tests here."""

from collections.abc import Iterator

import pytest
from tests.support.secure_kafka import SecureKafka
from tools.servers import apache_kafka


@pytest.fixture(scope="session")
def secure_kafka(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SecureKafka]:
    if (lack := apache_kafka.find_missing()) is not None:
        pytest.skip(lack)
    folder = tmp_path_factory.mktemp("secure-kafka")
    settings = {
        "offsets.topic.num.partitions": "1",
        "transaction.state.log.num.partitions": "1",
        "group.initial.rebalance.delay.ms": "0",
    }
    node = apache_kafka.ApacheKafka(directory=folder, settings=settings)
    made = SecureKafka(node, folder)
    made.configure()
    with node:
        made.create_users()
        yield made
