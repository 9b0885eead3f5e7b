"""Topic and table in one decision, and the database that takes it: killed at every step of it.

Without Java the sink is asked for the same as by Spark (`spark_torture_bare`); one query under Spark itself
shows that this is so. Afterwards librdkafka reads the topic and SQL the table: each row is in both, once.
"""

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.support.effort import LONG, TORTURE_SEEDS
from tests.support.servers import Unavailable
from tests.support.spark_torture import Fault
from tests.support.spark_torture_lives import BareTogether, BareTogetherInMariaDB, Together, Told

SEEDS = range(TORTURE_SEEDS) if LONG else range(1)
STARTS = 7 if LONG else 3
STEPS = {
    "claim_row.before": "before the prefix is taken",
    "commit-claim_row.after": "the prefix is taken, and the driver is not told",
    "stage.before": "before staging",
    "stage.after": "while staging: rows are sent",
    "commit-stage.after": "rows are staged, and the task is not told",
    "append.before": "all have voted",
    "decide.after": "the decision is written, no row is moved",
    "move.after": "all is there, and not committed",
    "commit-decide.before": "the deciding commit is not sent",
    "commit-decide.after": "the deciding commit is done, and its answer lost",
    "end.among": "one transaction is committed, others are not",
    "mark.before": "all is done, and not noted",
    "commit-mark.after": "noted, and the driver is not told",
}
DECISIVE = ("commit-stage.after", "move.after", "commit-decide.after")

pytestmark = [pytest.mark.gate(0), pytest.mark.server, pytest.mark.timeout(300)]


def or_skip(torture: type[Together], folder: Path, *, seed: int = 0, starts: int = 1, rows: int) -> Together:
    try:
        return torture(seed, folder, starts=starts, rows_a_start=rows)
    except Unavailable as exc:
        pytest.skip(str(exc))


@pytest.fixture(scope="module", params=[BareTogether, BareTogetherInMariaDB])
def bare(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Together]:
    made = or_skip(request.param, tmp_path_factory.mktemp("bare"), rows=200)
    with made.broker, made.with_database():
        made.create_topics()
        yield made


@pytest.mark.parametrize("step", STEPS if LONG else DECISIVE)
def test_killed_at_a_step(step: str, bare: Together) -> None:
    """[SPK-40] [SPK-41] [SPK-21] The query goes on by itself, or when it is started again."""
    bare.produce()
    bare.drive(bare.prepare([Fault(step, 1, "kill-database")], runs=3))
    assert bare.finished, bare.told
    bare.check()
    assert bare.told.clean, bare.told
    assert bare.told.struck[f"kill-database at {step}"] == 1


def test_why_a_query_stops_is_told_although_the_database_stays_away(bare: Together) -> None:
    """What went wrong is the decision; that it could not be given up either is not the news."""
    bare.produce()
    bare.drive(bare.prepare([Fault("commit-decide.before", 1, "lose-database")], runs=1))
    assert bare.last_outcome.startswith("failed: InDoubt: the decision of"), bare.last_outcome
    bare.drive(bare.prepare([], runs=1))
    bare.check()
    assert bare.told.clean, bare.told


def test_under_spark(tmp_path: Path) -> None:
    """[SPK-40] [SPK-41] [SPK-21] While staging, and with the answer of the deciding commit lost."""
    torture = or_skip(Together, tmp_path, rows=500)
    faults = [Fault(step, 2, "kill-database") for step in ("commit-stage.before", "commit-decide.after")]
    with torture.broker, torture.with_database():
        torture.create_topics()
        torture.produce()
        torture.drive(torture.prepare(faults, runs=4))
        assert torture.finished, torture.told
        torture.check()
    assert torture.told.clean, torture.told
    assert len(torture.told.struck) == len(faults), torture.told


@pytest.fixture(scope="module")
def total() -> Iterator[Told]:
    told = Told()
    yield told
    if LONG:
        print(f"\ntopic and table, without Java: {told.shown()}")


@pytest.mark.timeout(300 * STARTS)
@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("where", [BareTogether, BareTogetherInMariaDB] if LONG else [BareTogether])
def test_every_row_is_there_once_in_topic_and_table(
    where: type[Together], seed: int, tmp_path: Path, total: Told
) -> None:
    """[SPK-40] [SPK-41] [SPK-43] Faults drawn from a seed: drivers, workers, broker and database."""
    told = or_skip(where, tmp_path, seed=seed, starts=STARTS, rows=1_500).run()
    total.add(told)
    assert told.clean, told
    assert told.struck
