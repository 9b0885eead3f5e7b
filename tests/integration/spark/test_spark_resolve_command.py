"""`tallystick transactions resolve --prefix`: what a Spark query left, finished by a command."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from tests.support.spark_queries import Query

from tallystick.testing import EmbeddedBroker

pytestmark = [pytest.mark.server]

# None can be loaded: the command needs no Spark, nor what tasks encode rows with.
WITHOUT_SPARK = """
import sys
for name in ("pyspark", "pyarrow", "numpy"):
    sys.modules[name] = None
from tallystick.cli.main import main
sys.exit(main(sys.argv[1:]))
"""


WITH_ARROW = WITHOUT_SPARK.replace('"pyarrow", "numpy"', "")


def run(query: Query, *given: str, program: str = WITHOUT_SPARK) -> subprocess.CompletedProcess[str]:
    words = ["transactions", "resolve", *given, "--bootstrap-server", query.bootstrap, "--output", "json"]
    return subprocess.run(
        [sys.executable, "-c", program, *words], capture_output=True, text=True, timeout=60, check=False
    )


def resolve(query: Query, *given: str) -> tuple[int, list[tuple[str, str]]]:
    """The exit code, and what was found and done, each row."""
    done = run(query, "--prefix", query.prefix, *given)
    assert "Traceback" not in done.stderr
    return done.returncode, [(row["Found"], row["Result"]) for row in json.loads(done.stdout)]


@pytest.mark.slow
def test_a_decided_batch_is_looked_at_then_finished_then_forgotten(query: Query) -> None:
    """[SPK-21] The dry run changes nothing; the run commits what was decided and ends the rest."""
    query.decide_and_die()
    code, (decision, *left) = resolve(query, "--dry-run")
    assert (code, left) == (3, [("prepared: to be committed", "")] * 2)
    assert decision[0].startswith("decided: batch 0 of query q")
    assert len(query.open_ids()) == 2

    code, (_, *left) = resolve(query, "--yes")
    assert (code, left) == (0, [("prepared: to be committed", "committed")] * 2)
    assert query.open_ids() == []
    assert query.committed() == 22  # two markers

    code, (decision,) = resolve(query, "--yes", "--retire")
    assert (code, decision[1]) == (0, "forgotten")
    assert resolve(query, "--dry-run") == (0, [("no decision", "")])


@pytest.mark.gate(0)
def test_what_is_in_no_decision_is_aborted(query: Query) -> None:
    lease = query.station().begin()
    query.write(lease, 0)
    assert resolve(query, "--dry-run") == (3, [("no decision", ""), ("in no decision", "")])
    assert resolve(query, "--yes", "--mode", "resume") == (
        0,
        [("no decision", ""), ("in no decision", "aborted")],
    )
    assert query.open_ids() == []


@pytest.mark.gate(0)
@pytest.mark.parametrize("mode", ["2pc", "keep", "resume"])
def test_without_a_mode_one_is_taken_that_the_cluster_offers_and_the_transactions_need(mode: str) -> None:
    """A query in a weaker mode is on a cluster that refuses two-phase commit."""
    settings = {"transaction.two.phase.commit.enable": "true" if mode == "2pc" else "false"}
    with EmbeddedBroker(config=settings, in_process=True) as broker:
        query = Query(broker.bootstrap_servers, modes=(mode,))
        query.make_topic()
        query.decide_and_die()
        code, (_, *left) = resolve(query, "--yes")
        assert (code, left) == (0, [("prepared: to be committed", "committed")] * 2)
        assert query.committed() == 22
        query.close()


@pytest.mark.gate(1)
@pytest.mark.parametrize(
    "given",
    [
        (),
        ("--retire", "--store", "sqlite://"),
        ("--prefix", "p", "--schema", "s"),
        ("--decisions", "t"),
        ("--decisions", "t", "--store", "sqlite://"),
        ("--store", "sqlite://", "--storage-option", "a=b"),
        ("--store", "iceberg:lake.flights.rows"),
    ],
)
def test_it_is_told_one_place_to_look(query: Query, given: tuple[str, ...]) -> None:
    done = run(query, *given)
    assert done.returncode == 2
    assert "--prefix" in done.stderr


@pytest.mark.gate(0)
def test_a_topic_of_decisions_that_does_not_exist_is_refused(query: Query) -> None:
    """[SPK-21] Under a mistyped name no decision would be found, and what is decided would be aborted."""
    query.decisions = "of.its.own"
    query.decide_and_die()
    mistyped = run(query, "--prefix", query.prefix, "--decisions", "mistyped", "--yes")
    assert (mistyped.returncode, "no topic 'mistyped'" in mistyped.stderr) == (2, True)
    both = run(query, "--prefix", query.prefix, "--decisions", "of.its.own", "--store", "sqlite://", "--yes")
    assert (both.returncode, "the store decides" in both.stderr) == (2, True)
    assert len(query.open_ids()) == 2
    code, rows = resolve(query, "--decisions", "of.its.own", "--yes")
    assert (code, [result for _, result in rows]) == (0, ["", "committed", "committed"])
    assert query.committed() == 22


@pytest.mark.gate(1)
@pytest.mark.parametrize("store", [(), ("--store", "sqlite://")])
def test_what_is_for_a_lake_table_goes_with_one(query: Query, store: tuple[str, ...]) -> None:
    done = run(query, "--prefix", "p", *store, "--storage-option", "a=b")
    assert done.returncode == 2
    assert "--storage-option: is for a lake table" in done.stderr


@pytest.mark.gate(0)
def test_a_query_that_writes_tables_is_asked_for_in_its_database(query: Query, tmp_path: Path) -> None:
    """What a database decides is never looked for in the topic of decisions, where it would be missed."""
    store = f"sqlite:///{tmp_path / 'rows.db'}"
    (tmp_path / "rows.db").touch()
    found = run(query, "--prefix", query.prefix, "--store", store, "--dry-run", program=WITH_ARROW)
    assert (found.returncode, json.loads(found.stdout)[0]["Found"]) == (0, "no decision"), found.stderr
    refused = run(query, "--prefix", query.prefix, "--store", store, "--dry-run")
    assert (refused.returncode, "[spark]'" in refused.stderr) == (2, True)
    done = run(query, "--prefix", f"{query.prefix}/database", "--dry-run")
    assert done.returncode == 2
    assert "for decisions in a database" in done.stderr
