"""A standalone Spark cluster: executors and hosts are killed while transactions are open, attempts race.

Local mode has neither: its tasks share the driver's Java, and it starts no speculative copy of a task.
"""

from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.support.effort import TORTURE_SEEDS, long_form
from tests.support.spark_cluster import Cluster
from tests.support.spark_torture import Fault
from tests.support.spark_torture_lives import PRODUCER_POINTS, ClusterTorture, Told

SEEDS = range((TORTURE_SEEDS + 1) // 2)
STATELESS = 0

pytestmark = [pytest.mark.slow, pytest.mark.server, pytest.mark.timeout(600)]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with Cluster(tmp_path_factory.mktemp("cluster")) as running:
        yield running


@pytest.fixture
def torture(tmp_path: Path, cluster: Cluster) -> Iterator[ClusterTorture]:
    made = ClusterTorture(STATELESS, tmp_path, cluster, starts=1, rows_a_start=300)
    made.mode = "2pc"  # where nothing times out: whatever stays open is found
    with made.broker:
        made.create_topics()
        made.produce()
        yield made


def one_life(torture: ClusterTorture, faults: list[Fault]) -> Counter[str]:
    """What struck; the driver does all there is in one run, whatever is done to its tasks."""
    torture.drive(torture.prepare(faults, runs=1))
    assert torture.finished, torture.told
    torture.check()
    assert torture.told.clean, torture.told
    return torture.told.struck


def test_an_executor_and_then_a_host_are_lost(torture: ClusterTorture) -> None:
    """[SPK-20] [SPK-21] [SPK-26] One when its task has prepared and not voted, one in the middle of rows."""
    wanted = [Fault("prepare.after", 1, "kill-executor"), Fault("send.after", 6, "kill-host")]
    struck = one_life(torture, wanted)
    assert struck == {"kill-executor at prepare.after": 1, "kill-host at send.after": 1}


def test_attempts_that_lost_a_race_outlive_their_batch(torture: ClusterTorture) -> None:
    """[SPK-20] [SPK-26] At each step: they go on while a later batch is completed, and commit nothing.

    Spark kills the Python of a task that it gave up after two seconds; here it does not.
    """
    torture.produce()
    torture.settings = {**torture.cluster.settings, "spark.python.task.killTimeout": "600s"}
    zombies = [Fault(point, 1 + 3 * at, "zombie") for at, point in enumerate(PRODUCER_POINTS)]
    struck = one_life(torture, [*zombies, Fault("mark_done.before", 6, "release")])
    assert struck["zombie ended"] == len(zombies), struck


@pytest.fixture(scope="module")
def total() -> Iterator[Told]:
    told = Told()
    yield told
    print(f"\non a cluster: {told.shown()}")


@long_form
@pytest.mark.timeout(2400)
@pytest.mark.parametrize("seed", SEEDS)
def test_every_row_is_there_once_on_a_cluster(
    seed: int, tmp_path: Path, cluster: Cluster, total: Told
) -> None:
    """[SPK-20] [SPK-21] [SPK-22] [SPK-23]"""
    told = ClusterTorture(seed, tmp_path, cluster, starts=5, rows_a_start=1_500).run()
    total.add(told)
    assert told.clean, told
    assert told.struck
