"""A drill with Spark: the driver is dead, in each phase of a batch, and the page says what mends it.

Decisions are in a topic, in a topic of the query's own, in a database, or in a lake table. No JVM: the sink's
own driver and tasks run as under Spark (`tests/support/spark_phases.py`).
"""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

import pytest
from tests.support.console_drill import Json, Watcher, run
from tests.support.spark_phases import DatabaseQuery, LakeQuery, Phase, PhasedQuery

from tallystick.spark.protocol.transactional_ids import DATABASE_SUFFIX
from tallystick.testing import EmbeddedBroker

pytestmark = [pytest.mark.server, pytest.mark.slow, pytest.mark.broker(flush_policy="os")]

RECORDS: Final = 10


@pytest.fixture(params=["topic", "database", "lake"])
def query(request: pytest.FixtureRequest, broker: EmbeddedBroker, tmp_path: Path) -> Iterator[PhasedQuery]:
    made = PhasedQuery(broker.bootstrap_servers)
    if request.param == "database":
        made = DatabaseQuery(broker.bootstrap_servers).use(tmp_path / "rows.db")
    elif request.param == "lake":
        made = LakeQuery(broker.bootstrap_servers).use(tmp_path / "table")
    made.make_topic()
    yield made
    made.close()


def watch(query: PhasedQuery) -> Watcher:
    return Watcher(query.bootstrap, [] if query.store is None else [query.store])


def find_prefix(page: Json, query: PhasedQuery) -> Json | None:
    names = (query.prefix, query.prefix + DATABASE_SUFFIX)
    return next((each for each in page["prefixes"] if each["prefix"] in names), None)


def see_prefix(watcher: Watcher, query: PhasedQuery, until: Callable[[Json], bool]) -> Json:
    """Return the prefix as the page of pipelines shows it, as soon as it is as expected."""

    def is_there(page: Json) -> bool:
        prefix = find_prefix(page, query)
        return prefix is not None and until(prefix)

    prefix = find_prefix(watcher.show("/pipelines", is_there), query)
    assert prefix is not None
    return prefix


@pytest.mark.gate(1)
@pytest.mark.parametrize(
    ("phase", "stage", "verdict", "open_count"),
    [
        (Phase.BEFORE_VOTES, "open", "abort", 2),
        (Phase.BEFORE_DECISION, "open", "abort", 2),
        (Phase.AFTER_DECISION, "decided", "commit", 2),
        (Phase.PARTLY_COMMITTED, "decided", "commit", 1),
    ],
    ids=lambda each: each.name if isinstance(each, Phase) else "",
)
def test_a_spark_driver_that_is_dead(
    query: PhasedQuery, phase: Phase, stage: str, verdict: str, open_count: int
) -> None:
    """What is decided is committed and the rest aborted, by the command of either page."""
    query.run_batch(0)
    query.run_batch(1, phase)
    open_ids = query.open_ids()
    assert len(open_ids) == open_count
    watcher = watch(query)
    rows = [watcher.find_row("recover", name) for name in open_ids]
    assert {(row["stage"], row["verdict"]) for row in rows} == {(stage, verdict)}
    assert len({row["command"] for row in rows}) == 1
    is_decided = verdict == "commit"
    prefix = see_prefix(watcher, query, lambda each: each["health"] == "recover")
    assert (prefix["batch_id"], prefix["is_complete"]) == ((1, False) if is_decided else (0, True))
    outcomes = sorted(each["outcome"] for each in prefix["participants"])
    expected = ["open"] * open_count + ["CompleteCommit"] * (2 - open_count)
    assert outcomes == (sorted(expected) if is_decided else ["committed"] * 2)
    assert len(prefix["undecided"]) == (0 if is_decided else open_count)
    assert f"{rows[0]['command']} --dry-run" == prefix["resolve_command"]

    assert run(prefix["resolve_command"]) == 3
    assert query.open_ids() == open_ids
    assert run(rows[0]["command"], "--yes") == 0
    watcher.expect_gone(query.prefix)
    prefix = see_prefix(watcher, query, lambda each: each["health"] == "ok" and each["is_complete"])
    assert (prefix["batch_id"], prefix["undecided"]) == (1 if is_decided else 0, [])
    assert prefix["resolve_command"] == ""
    assert query.open_ids() == []


def test_a_spark_driver_that_is_dead_before_it_noted_the_end(query: PhasedQuery) -> None:
    """Nothing is open: nothing has to be done, and the next start notes it."""
    query.run_batch(0, Phase.BEFORE_NOTE)
    watcher = watch(query)
    prefix = see_prefix(watcher, query, lambda each: each["batch_id"] == 0 and each["participants"] != [])
    assert (prefix["health"], prefix["is_complete"], prefix["resolve_command"]) == ("ok", False, "")
    watcher.expect_gone(query.prefix)


@pytest.mark.gate(0)
def test_a_new_query_whose_driver_is_dead_in_its_first_batch(query: PhasedQuery) -> None:
    """In a topic nothing tells it from a query that decides elsewhere; a database has its claim."""
    query.run_batch(0, Phase.BEFORE_DECISION)
    (name, _) = query.open_ids()
    watcher = watch(query)
    if isinstance(query, DatabaseQuery):
        command = watcher.find_row("recover", name)["command"]
    else:
        row = watcher.find_row("orphan", name)
        assert "Start the query again." in row["reason"]
        assert row["command"].endswith(f"--prefix {query.prefix} --decisions TOPIC")
        command = row["command"].replace("TOPIC", "__tallystick_decisions")
    assert run(command, "--yes") == 0
    watcher.expect_gone(query.prefix)


@pytest.mark.gate(0)
def test_a_topic_of_the_query_s_own_is_named_in_its_command(broker: EmbeddedBroker) -> None:
    """[SPK-21] In the default topic no decision would be found, and what is decided would be aborted."""
    query = PhasedQuery(broker.bootstrap_servers, decisions="of.its.own")
    query.make_topic()
    query.run_batch(0, Phase.AFTER_DECISION)
    (name, _) = query.open_ids()
    watcher = Watcher(query.bootstrap, decision_topics=["of.its.own"])
    row = watcher.find_row("recover", name)
    assert row["command"].endswith(f"--prefix {query.prefix} --decisions of.its.own")
    assert run(row["command"], "--yes") == 0
    watcher.expect_gone(query.prefix)
    assert query.committed() == 2 * (RECORDS + 1)  # with a marker each
    query.close()


@pytest.mark.gate(0)
@pytest.mark.parametrize("kind", [DatabaseQuery, LakeQuery])
def test_a_store_that_is_not_read_is_asked_for(
    broker: EmbeddedBroker, tmp_path: Path, kind: type[DatabaseQuery]
) -> None:
    """What is decided there must not be aborted because it is not seen."""
    query = kind(broker.bootstrap_servers).use(tmp_path / "rows")
    query.make_topic()
    query.run_batch(0, Phase.AFTER_DECISION)
    (name, _) = query.open_ids()
    watcher = Watcher(query.bootstrap)
    row = watcher.find_row("orphan", name)
    assert (row["verdict"], row["command"].rpartition("--prefix")[2]) == ("", f" {query.prefix} --store URL")
    prefix = see_prefix(watcher, query, lambda each: each["missing"] != "")
    assert "give it as --store" in prefix["missing"]
    assert prefix["resolve_command"] == ""
    assert run(row["command"].replace("URL", query.store or ""), "--yes") == 0
    watch(query).expect_gone(query.prefix)
    query.close()
