"""kill -9 at every step of a payment with an idempotency key; its caller calls again, and it is paid once.

The second call is made by a process of another transactional id, which knows nothing of the first one but
the key: while the first transaction is in doubt in Kafka, and once more after it was recovered.
"""

import itertools
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from tests.support.dual_write_lives import Life, Lives, Strike
from tests.support.dual_write_stores import Place, create, leave, rows
from tests.support.effort import LONG
from tests.support.raw_producer import committed_values, make_topic
from tests.support.servers import quick_place

from tallystick.testing import EmbeddedBroker, eventually

pytestmark = [
    pytest.mark.slow,
    pytest.mark.server,
    pytest.mark.timeout(1200 if LONG else 300),
    pytest.mark.broker(flush_policy="os"),
]

KINDS = ["sqlite", "postgresql+psycopg", "mysql+pymysql", "postgresql+asyncpg", "django"]
DECISIVE = ("claim key", "store result", "record", "commit database", "commit")
_serial = itertools.count()


@pytest.fixture(scope="module")
def lives() -> Iterator[Lives]:
    with Lives() as lives:
        yield lives


@pytest.fixture
def place(kind: str, request: pytest.FixtureRequest) -> Iterator[Place]:
    with tempfile.TemporaryDirectory(dir=quick_place()) as folder:
        if kind == "sqlite":
            made = Place(kind, f"sqlite:///{Path(folder) / 'rows.db'}")
        else:
            server = request.getfixturevalue("mariadb" if kind.startswith("mysql") else "postgresql")
            made = Place(kind, server.url(server.new_database()))
        create(made)
        yield made
        leave(made)


class Callers:
    """Two processes that pay into one table and one topic."""

    def __init__(self, broker: EmbeddedBroker, lives: Lives, place: Place) -> None:
        self.broker, self.lives, self.place = broker, lives, place
        self.topic = f"keyed-{next(_serial)}"
        make_topic(broker, self.topic)

    def call(self, name: str, number: int, strike: Strike | None = None) -> Life:
        config = {
            "bootstrap.servers": self.broker.bootstrap_servers,
            "transactional.id": f"{self.topic}-{name}",
            "topic": self.topic,
            "linger.ms": 0,
        }
        return self.lives.live(self.place, config, pay=number, keyed=True, strike=strike)

    def check(self, expected: list[int]) -> None:
        assert rows(self.place) == expected

        def read() -> list[int]:
            return sorted(map(int, committed_values(self.broker, self.topic, 0)))

        eventually(lambda: read() == expected)


@pytest.mark.gate(0)
@pytest.mark.parametrize("kind", KINDS if LONG else KINDS[:2])
def test_killed_at_every_step_a_payment_is_made_once(
    broker: EmbeddedBroker, lives: Lives, place: Place, kind: str
) -> None:
    """[DW-7] [DW-16] The work runs again exactly if the database has not committed it."""
    callers = Callers(broker, lives, place)
    callers.call("a", 1)
    steps = callers.call("a", 2).steps
    steps = steps[steps.index("begin database") : steps.index("commit") + 1]  # the recovery has its own test
    assert set(DECISIVE) < set(steps)
    paid = [1, 2]
    for number, (name, after) in enumerate(itertools.product(steps, (False, True)), 3):
        if not (LONG or kind == "sqlite" or (name in DECISIVE and after)):
            continue
        first = callers.call("a", number, Strike(name, after))
        assert first.killed
        again = callers.call("b", number)
        assert ("write rows" in again.steps) is ("commit database" not in first.done), (name, after)
        paid.append(number)
        last = callers.call("a", number)
        assert "write rows" not in last.steps
        callers.check(paid)


@pytest.mark.gate(0)
@pytest.mark.parametrize("kind", KINDS[:3] if LONG else KINDS[1:2])
def test_two_processes_with_the_same_keys(broker: EmbeddedBroker, place: Place, kind: str) -> None:
    """[DW-16] Both call at the same time; some calls wait for the other's, and some come later."""
    with Lives() as one, Lives() as other, ThreadPoolExecutor(2) as threads:
        callers = [Callers(broker, each, place) for each in (one, other)]
        callers[1].topic = callers[0].topic
        numbers = list(range(1, 13))
        for number in numbers:
            list(threads.map(Callers.call, callers, "ab", [number] * 2))
        callers[0].check(numbers)
