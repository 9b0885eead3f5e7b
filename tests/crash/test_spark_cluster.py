"""A standalone Spark cluster: executors and hosts are killed while transactions are open, attempts race.

Local mode has neither: its tasks share the driver's Java, and it starts no speculative copy of a task.
"""

import sys
from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.support.effort import LONG, TORTURE_SEEDS, long_form
from tests.support.spark_cluster import Cluster
from tests.support.spark_torture import Fault
from tests.support.spark_torture_lake import FILE_POINTS
from tests.support.spark_torture_lake_lives import ON_A_CLUSTER
from tests.support.spark_torture_lives import PRODUCER_POINTS, ClusterTorture, Told

SEEDS = range((TORTURE_SEEDS + 1) // 2)
STATELESS = 0

pytestmark = [pytest.mark.gate(0), pytest.mark.server, pytest.mark.timeout(600)]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with Cluster(tmp_path_factory.mktemp("cluster")) as running:
        yield running


@pytest.fixture(params=ON_A_CLUSTER if LONG else ["topic"])
def torture(request: pytest.FixtureRequest, tmp_path: Path, cluster: Cluster) -> Iterator[ClusterTorture]:
    made: Any = ON_A_CLUSTER[request.param](STATELESS, tmp_path, cluster, starts=1, rows_a_start=300)
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


@long_form
def test_an_executor_is_lost_at_each_step_of_a_task(torture: ClusterTorture) -> None:
    """[SPK-20] [SPK-21] [LAK-4] One after another, in one driver: new executors repeat what was lost."""
    points = PRODUCER_POINTS if torture.database_url is None else (*FILE_POINTS, *PRODUCER_POINTS)
    for _ in range(len(points)):
        torture.produce()
    faults = [Fault(point, 1 + 2 * at, "kill-executor") for at, point in enumerate(points)]
    torture.drive(torture.prepare(faults, runs=6))
    if not torture.finished:
        torture.drive(torture.prepare([], runs=1))
    torture.check()
    assert torture.told.clean, torture.told
    assert torture.told.struck == {f"kill-executor at {point}": 1 for point in points}


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
def totals() -> Iterator[dict[str, Told]]:
    told = defaultdict[str, Told](Told)
    yield told
    for where, each in told.items():
        print(f"\non a cluster, {where}: {each.shown()}", file=sys.__stdout__)


@long_form
@pytest.mark.timeout(2400)
@pytest.mark.parametrize("where", ON_A_CLUSTER)
@pytest.mark.parametrize("seed", SEEDS)
def test_every_row_is_there_once_on_a_cluster(
    seed: int, where: str, tmp_path: Path, cluster: Cluster, totals: dict[str, Told]
) -> None:
    """[SPK-20] [SPK-21] [SPK-22] [SPK-23] [LAK-1] [LAK-3] [LAK-4]"""
    told = ON_A_CLUSTER[where](seed, tmp_path, cluster, starts=5, rows_a_start=3_000).run()
    totals[where].add(told)
    assert told.clean, told
    assert told.struck
