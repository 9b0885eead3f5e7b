"""One client asks each API for very much; answers are bounded and another client is served [SRV-3].

Counted and not timed: what a request may cost in time is measured by `make hostile`.
"""

from collections.abc import Iterator

import pytest
from tools import hostile

from tallystick.broker.handlers import HANDLERS
from tallystick.protocol.apis import ApiSpec
from tallystick.testing import EmbeddedBroker

pytestmark = pytest.mark.server

ENTRIES = 200
# An answer is bounded by what was asked and what there is.
ANSWER_PER_BYTE = 20
WHAT_THERE_IS = 100_000
SETTINGS = {**hostile.SETTINGS, "max.partitions": "120", "offsets.topic.num.partitions": "2"}


@pytest.fixture(scope="module")
def broker() -> Iterator[EmbeddedBroker]:
    settings = {**SETTINGS, "transaction.state.log.num.partitions": "2", "auto.create.topics.enable": "true"}
    with EmbeddedBroker(config=settings) as running:
        hostile.prepare(running)
        yield running


ATTACKS = list(hostile.list_attacks())


def test_every_api_is_attacked_but_those_without_a_list() -> None:
    attacked = {spec.name for spec, _ in ATTACKS}
    without = {entry.spec.name for entry in HANDLERS.values()} - attacked
    assert {"Produce", "Fetch", "Metadata", "OffsetFetch", "CreateTopics", "WriteTxnMarkers"} <= attacked
    assert {"Heartbeat", "EndTxn", "InitProducerId", "DescribeCluster"} <= without


def served(broker: EmbeddedBroker) -> None:
    """The other client's requests are answered."""
    with hostile.connect(broker.bootstrap_servers) as connection:
        for data in (hostile.make_produce(), hostile.make_commit()):
            assert hostile.send_and_receive(connection, data) > 0


@pytest.mark.gate(7)
@pytest.mark.parametrize(("spec", "shape"), ATTACKS, ids=lambda part: getattr(part, "name", str(part)))
def test_another_client_is_served_beside_the_request_and_after_it(
    spec: ApiSpec, shape: hostile.Shape, broker: EmbeddedBroker
) -> None:
    attack = hostile.make_attack(spec, shape, ENTRIES)
    with hostile.connect(broker.bootstrap_servers) as connection:
        connection.sendall(hostile.make_frame(attack.spec, attack.version, attack.body, 7))
        served(broker)
        try:
            answer = hostile.receive(connection)
        except (EOFError, ConnectionError):
            answer = 0
    served(broker)
    assert broker.running
    assert answer <= ANSWER_PER_BYTE * len(attack.body) + WHAT_THERE_IS
