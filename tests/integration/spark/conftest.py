"""The query that a test of the coordinator writes with."""

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

from tallystick.testing import EmbeddedBroker

if TYPE_CHECKING:
    from tests.support.spark_queries import Query


@pytest.fixture
def query(broker: EmbeddedBroker) -> Iterator["Query"]:
    from tests.support.spark_queries import Query  # needs the extra spark

    made = Query(broker.bootstrap_servers)
    made.make_topic()
    yield made
    made.close()
