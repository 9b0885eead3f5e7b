"""Topic and lake table in one decision: drivers and tasks killed at every step, with other writers between.

Without Java the sink is asked for the same as by Spark (`spark_torture_bare`); the long form does it under
Spark itself. Afterwards librdkafka reads the topic, and the format's own library the table: each row is in
both, once, and no file is left over. Seeds of random faults are in test_spark_torture.py, executors in
test_spark_cluster.py.
"""

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.support import spark_torture_lake as lake
from tests.support.effort import LONG, long_form
from tests.support.spark_torture import Fault
from tests.support.spark_torture_lives import PRODUCER_POINTS, Told
from tests.support.spark_torture_tables import FORMATS

pytest.importorskip("deltalake", reason="needs the extra delta")
pytest.importorskip("pyiceberg", reason="needs the extra iceberg")

from tests.support.spark_torture_lake_lives import BareInLake, InLake

KILLED = {
    "lake-claim.before": "the table is read, and not claimed",
    "lake-claim.after": "the table is claimed, and the driver is not told",
    "file-write.before": "before a data file",
    "file-write.after": "while a data file is written",
    "file-finish.after": "the files are there, and the task has not voted",
    "append.before": "all have voted",
    "lake-decide.before": "the deciding commit is not sent",
    "lake-decide.after": "the deciding commit is done, and its answer lost",
    "end.among": "one transaction is committed, others are not",
    "mark_done.before": "all is done, and not noted",
}
DECISIVE = ("lake-decide.after",)

pytestmark = [pytest.mark.slow, pytest.mark.server, pytest.mark.timeout(300)]


@pytest.fixture(scope="module", params=FORMATS)
def bare(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[BareInLake]:
    folder = tmp_path_factory.mktemp("bare")
    torture = BareInLake(0, folder, starts=1, rows_a_start=200, table=request.param)
    torture.mode = "2pc"
    with torture.broker:
        torture.create_topics()
        yield torture


def drive_to_the_end(torture: BareInLake, faults: list[Fault], what: str) -> None:
    torture.produce()
    torture.drive(torture.prepare(faults, runs=3))
    if not torture.finished:
        torture.drive(torture.prepare([], runs=1))
    assert torture.finished, torture.told
    torture.check()
    assert torture.told.clean, torture.told
    assert torture.told.struck[what] >= 1


@pytest.mark.gate(0)
@pytest.mark.parametrize("step", KILLED if LONG else DECISIVE)
def test_killed_at_a_step(step: str, bare: BareInLake) -> None:
    """[LAK-1] [LAK-4] [SPK-21] The driver and what it started: SIGKILL; the next one completes or repeats."""
    drive_to_the_end(bare, [Fault(step, 1, "kill-driver")], f"kill-driver at {step}")


@pytest.mark.gate(0)
def test_answers_that_are_lost_and_writers_that_are_faster(bare: BareInLake) -> None:
    """[LAK-1] [LAK-2] At both commits of a batch: the query goes on by itself."""
    steps = ("lake-claim", "lake-decide")
    faults = [Fault(f"{step}.after", 1, "lose-answer") for step in steps]
    faults += [
        Fault(f"{step}.before", nth, kind) for step in steps for nth, kind in ((2, "rival"), (3, "optimize"))
    ]
    bare.produce()
    drive_to_the_end(bare, faults, "lose-answer at lake-decide.after")
    assert len(bare.told.outcomes) == 1, bare.told.outcomes


@pytest.mark.gate(0)
@pytest.mark.parametrize("bare", FORMATS if LONG else ["delta"], indirect=True)
def test_checkpoint_and_optimize_between_crash_and_recovery(bare: BareInLake) -> None:
    """[LAK-2] The decision is made and not told; the table is compacted before the next driver reads it."""
    bare.produce()
    bare.drive(bare.prepare([Fault("lake-decide.after", 1, "kill-driver")], runs=1))
    lake.append_as_rival(bare.url)
    lake.optimize(bare.url)
    bare.sweep()
    drive_to_the_end(bare, [Fault("lake-decide.before", 1, "optimize")], "optimize at lake-decide.before")


@pytest.fixture
def under_spark(tmp_path: Path, table: str) -> Iterator[InLake]:
    torture = InLake(0, tmp_path, starts=1, rows_a_start=1_000, table=table)
    torture.mode = "2pc"  # where nothing times out: whatever stays open is found
    with torture.broker:
        torture.create_topics()
        yield torture


@long_form
@pytest.mark.timeout(150 * len(KILLED))
@pytest.mark.parametrize("table", FORMATS)
def test_a_driver_is_killed_at_every_step_under_spark(under_spark: InLake, told: Told) -> None:
    """[LAK-1] [LAK-2] [SPK-21] Each finds what its predecessor left, compacted and with others' commits."""
    torture = under_spark
    for at, step in enumerate(KILLED):
        torture.produce()
        torture.drive(torture.prepare([Fault(step, 1, "kill-driver")], runs=1))
        assert torture.last_outcome == "killed", torture.told
        lake.append_as_rival(torture.url)
        if at % 2 == 0:
            lake.optimize(torture.url)
        torture.sweep()
    end(torture, told)
    assert torture.told.struck.total() >= len(KILLED)


@long_form
@pytest.mark.timeout(900)
@pytest.mark.parametrize("table", FORMATS)
def test_a_task_is_killed_at_every_step_under_spark(under_spark: InLake, told: Told) -> None:
    """[LAK-3] [LAK-4] [SPK-20] Spark runs it again; what it left is in no version."""
    torture, points = under_spark, (*lake.FILE_POINTS, *PRODUCER_POINTS)
    for _ in points:
        torture.produce()
    faults = [Fault(point, 1 + 2 * at, "kill-worker") for at, point in enumerate(points)]
    torture.drive(torture.prepare(faults, runs=6))
    end(torture, told)
    assert {f"kill-worker at {point}" for point in points} <= set(torture.told.struck)


def end(torture: InLake, told: Told) -> None:
    """Let a last driver do what is left, and compare topic, table and input."""
    torture.drive(torture.prepare([], runs=1))
    assert torture.finished, torture.told
    torture.check()
    torture.check_files()
    told.add(torture.told)
    assert torture.told.clean, torture.told


@pytest.fixture(scope="module")
def told() -> Iterator[Told]:
    everything = Told()
    yield everything
    if LONG:
        print(f"\nSpark, killed at every step: {everything.shown()}", file=sys.__stdout__)
