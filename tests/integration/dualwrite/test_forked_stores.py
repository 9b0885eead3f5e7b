"""A fork beside a store that the parent has open: the child works on its own connection, or is refused."""

import subprocess
import sys
from itertools import count, product
from pathlib import Path

import pytest
from tests.support import dual_write_stores
from tests.support.dual_write_stores import KINDS, LAKE, Place
from tests.support.raw_producer import committed_values, make_topic

from tallystick.testing import EmbeddedBroker

pytestmark = [
    pytest.mark.server,
    pytest.mark.broker(
        in_process=False, num_partitions=1, config={"transaction.two.phase.commit.enable": "true"}
    ),
]

ROOT = Path(__file__).parents[3]
_names = count()

STATES = ("constructed", "created", "used")
WHO = ("children", "both")
NEVER_IN_A_CHILD = ("rocksdb", "zookeeper")


def make_place(kind: str, request: pytest.FixtureRequest, tmp_path: Path) -> Place:
    tmp_path.mkdir()
    if kind.startswith("sqlite"):
        return Place(kind, f"{kind}:///{tmp_path}/rows.db")
    if kind.startswith(("postgresql", "django")):
        server = request.getfixturevalue("postgresql")
        return Place(kind, server.url(server.new_database()))
    if kind.startswith("mysql"):
        server = request.getfixturevalue("mariadb")
        return Place(kind, server.url(server.new_database()))
    if kind == "zookeeper":
        server = request.getfixturevalue("zookeeper")
        return Place(kind, server.hosts + server.new_root())
    return Place(kind, str(tmp_path / "table"))


def may_work(kind: str, state: str, who: str) -> bool:
    """Return whether the children of this case can have connections of their own."""
    if kind.startswith("sqlite"):
        return state == "constructed"
    if kind in LAKE:  # its library must not have been used in the process at all: the first case is that
        return (state, who) == (STATES[0], WHO[0])
    return kind not in NEVER_IN_A_CHILD


@pytest.mark.gate(1)
@pytest.mark.parametrize("kind", KINDS)
def test_a_child_works_on_its_own_connection_or_is_refused(
    broker: EmbeddedBroker, kind: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    """[DW-11] Rows and records agree, in parent and children."""
    cases = {}
    for number, (state, who) in enumerate(product(STATES, WHO)):
        place, topic = make_place(kind, request, tmp_path / str(number)), f"{kind.split()[0]}-{next(_names)}"
        topic = topic.replace("+", "-")
        cases[topic] = state, who, place
        dual_write_stores.create(place)
        make_topic(broker, topic)
    given = [
        each for topic, (state, who, place) in cases.items() for each in (state, who, place.where, topic)
    ]
    done = subprocess.run(
        [sys.executable, "-m", "tests.support.forking_stores", kind, broker.bootstrap_servers, *given],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
        timeout=240,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    told: dict[str, dict[str, str]] = {topic: {} for topic in cases}
    for topic, name, how in map(str.split, done.stdout.splitlines()):
        told[topic][name] = how
    for topic, (state, who, place) in cases.items():
        works = may_work(kind, state, who)
        how = "worked" if works else "refused"
        children = ["child0"] if who == "both" else ["child0", "child1"]
        assert told[topic] == {**dict.fromkeys(children, how), "parent": "worked"}, (state, who)
        rows = dual_write_stores.rows(place)
        assert sorted(rows) == sorted(int(value) for value in committed_values(broker, topic, 0))
        assert len(rows) == (state == "used") + 2 * len(children) * works + 2
