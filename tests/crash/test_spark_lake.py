"""Topic and lake table in one decision: drivers and tasks killed at every step, with other writers between.

Without Java the sink is asked for the same as by Spark (`spark_torture_bare`); one query under Spark itself
shows that this is so. Afterwards librdkafka reads the topic, and delta-rs or pyiceberg the table: each
row is in both, once, and no file is left over.
"""

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.support import spark_torture_lake as lake
from tests.support.effort import LONG, TORTURE_SEEDS, long_form
from tests.support.spark_torture import Fault
from tests.support.spark_torture_lives import Told

pytest.importorskip("deltalake", reason="needs the extra delta")
pytest.importorskip("pyiceberg", reason="needs the extra iceberg")

from tests.support.spark_torture_lake_lives import BareInIceberg, BareInLake, InIceberg, InLake

STARTS = 7
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


@pytest.fixture(scope="module", params=[BareInLake, BareInIceberg], ids=["delta", "iceberg"])
def bare(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[BareInLake]:
    torture: BareInLake = request.param(0, tmp_path_factory.mktemp("bare"), starts=1, rows_a_start=200)
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


@pytest.mark.parametrize("step", KILLED if LONG else DECISIVE)
def test_killed_at_a_step(step: str, bare: BareInLake) -> None:
    """[LAK-1] [LAK-4] [SPK-21] The driver and what it started: SIGKILL; the next one completes or repeats."""
    drive_to_the_end(bare, [Fault(step, 1, "kill-driver")], f"kill-driver at {step}")


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


def test_checkpoint_and_optimize_between_crash_and_recovery(bare: BareInLake) -> None:
    """[LAK-2] The decision is made and not told; the table is compacted before the next driver reads it."""
    bare.produce()
    bare.drive(bare.prepare([Fault("lake-decide.after", 1, "kill-driver")], runs=1))
    lake.append_as_rival(bare.database_url or "")
    lake.optimize(bare.database_url or "")
    bare.sweep()
    drive_to_the_end(bare, [Fault("lake-decide.before", 1, "optimize")], "optimize at lake-decide.before")


@long_form
@pytest.mark.parametrize("kind", [InLake, InIceberg], ids=["delta", "iceberg"])
def test_under_spark(kind: type[InLake], tmp_path: Path) -> None:
    """[LAK-1] [LAK-4] The driver is killed with its decision made, and a worker while it writes files."""
    torture = kind(0, tmp_path, starts=1, rows_a_start=500)
    faults = [Fault("file-finish.after", 2, "kill-worker"), Fault("lake-decide.after", 2, "kill-driver")]
    with torture.broker:
        torture.create_topics()
        torture.produce()
        torture.drive(torture.prepare(faults, runs=4))
        torture.drive(torture.prepare([], runs=1))
        assert torture.finished, torture.told
        torture.check()
        torture.check_files()
    assert torture.told.clean, torture.told


@pytest.fixture(scope="module")
def totals() -> Iterator[dict[str, Told]]:
    totals = {"delta": Told(), "iceberg": Told()}
    yield totals
    for name, told in totals.items():
        print(f"\ntopic and {name} table, without Java: {told.shown()}")


@long_form
@pytest.mark.timeout(300 * STARTS)
@pytest.mark.parametrize("kind", [BareInLake, BareInIceberg], ids=["delta", "iceberg"])
@pytest.mark.parametrize("seed", range(TORTURE_SEEDS))
def test_every_row_is_there_once_in_topic_and_table(
    seed: int, kind: type[BareInLake], tmp_path: Path, totals: dict[str, Told]
) -> None:
    """[LAK-1] [LAK-2] [LAK-3] [LAK-4] Faults drawn from a seed: drivers, workers, broker, other writers."""
    told = kind(seed, tmp_path, starts=STARTS, rows_a_start=1_500).run()
    totals[kind.lake_format].add(told)
    assert told.clean, told
    assert told.struck
