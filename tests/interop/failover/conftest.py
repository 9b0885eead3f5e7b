"""Three brokers of Apache Kafka for the tests in here, started once."""

from collections.abc import Iterator

import pytest
from tests.support.three_brokers import ThreeBrokers
from tools.servers import apache_kafka


@pytest.fixture(scope="session")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ThreeBrokers]:
    if (lack := apache_kafka.find_missing()) is not None:
        pytest.skip(lack)
    brokers = ThreeBrokers.start(tmp_path_factory.mktemp("three-brokers"))
    yield brokers
    brokers.end()


@pytest.fixture
def three(running: ThreeBrokers) -> ThreeBrokers:
    """All three there, and every copy in sync."""
    running.bring_back()
    return running
