"""Decisions in a lake table, read by the console: nothing is changed, and what is lost hides no other."""

import asyncio
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest

from tallystick.console.collect.config import CollectorConfig
from tallystick.console.collect.store_reader import NotRead, StoreAddress, StoreReader
from tallystick.console.model.snapshot import StoreFacts, StoreKind
from tallystick.kernel.clock import SystemClock
from tallystick.kernel.ids import ProducerEpoch, ProducerId, ProducerIdAndEpoch
from tallystick.kernel.settings import BadConfig
from tallystick.lake.names import parse_table_url
from tallystick.lake.opening import LakeLocation, open_table
from tallystick.spark.decisions.lake_row import LakeRow
from tallystick.spark.options.sinks import StagedMoves
from tallystick.spark.protocol.committable import Decision

deltalake = pytest.importorskip("deltalake", reason="needs the extra delta")

OWNER = ProducerIdAndEpoch(ProducerId(7), ProducerEpoch(1))


def make_table(folder: Path) -> str:
    deltalake.DeltaTable.create(folder, schema=pa.schema([("id", pa.string())]))
    return f"delta:{folder}"


def decide(url: str, prefix: str, nonce: str) -> None:
    row = LakeRow(open_table(LakeLocation(url=parse_table_url(url))), prefix)
    assert row.claim(OWNER, lambda: True)
    decision = Decision(nonce=nonce, participants=(), transaction_version=2, decided_ms=0)
    row.decide(decision, OWNER, StagedMoves(attempts=(), rows=(0,)))


def read(url: str, between: Callable[[], object] = lambda: None) -> tuple[StoreFacts, StoreFacts]:
    """Read a store, do something, and read it once more."""

    async def run() -> tuple[StoreFacts, StoreFacts]:
        reader = StoreReader(StoreAddress(url), 10_000, SystemClock())
        try:
            first = await reader.read()
            between()
            return first, await reader.read()
        finally:
            await reader.close()

    return asyncio.run(run())


def test_every_prefix_of_a_table_is_read_and_a_new_one_is_found(tmp_path: Path) -> None:
    url = make_table(tmp_path / "table")
    decide(url, "a/database", "one")
    first, again = read(url, lambda: (decide(url, "a/database", "two"), decide(url, "b/database", "three")))
    assert (first.kind, first.name, first.rows) == (StoreKind.LAKE, url, {})
    assert [(each.prefix, each.source) for each in first.prefixes] == [("a/database", url)]
    nonces = [each.decision and each.decision.nonce for each in again.prefixes]
    assert nonces == ["two", "three"]
    assert first.volume is not None
    assert first.volume.path == str(tmp_path / "table")


def test_reading_commits_nothing(tmp_path: Path) -> None:
    url = make_table(tmp_path / "table")
    decide(url, "a/database", "one")
    before = sorted(path.name for path in tmp_path.rglob("*"))
    read(url)
    assert sorted(path.name for path in tmp_path.rglob("*")) == before


def test_a_prefix_whose_decision_is_lost_is_said_and_hides_no_other(tmp_path: Path) -> None:
    """[LAK-2] The table knows that something was decided, and its log no longer has what."""
    url = make_table(tmp_path / "table")
    decide(url, "a/database", "one")
    lost = max((tmp_path / "table" / "_delta_log").glob("*.json"))
    decide(url, "b/database", "two")

    def clean_up() -> None:
        deltalake.DeltaTable(tmp_path / "table").create_checkpoint()
        lost.unlink()

    first, again = read(url)
    assert [each.prefix for each in first.prefixes] == ["a/database", "b/database"]
    assert again.status.failures == ()
    clean_up()
    (tmp_path / "moved").mkdir()
    (tmp_path / "table").rename(tmp_path / "moved" / "table")  # so that nothing of it is remembered
    facts, _ = read(f"delta:{tmp_path / 'moved' / 'table'}")
    assert [each.prefix for each in facts.prefixes] == ["b/database"]
    (failure,) = facts.status.failures
    assert failure.startswith("a/database: ")
    assert "no longer has that commit" in failure


def test_a_table_that_is_not_there_is_said(tmp_path: Path) -> None:
    with pytest.raises(NotRead, match="does not exist"):
        read(f"delta:{tmp_path / 'none'}")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("url", "problem"),
    [("delta:", "is not the URL of a lake table"), ("delta:hdfs://name/table", "or in an object store")],
)
def test_what_is_no_place_of_a_table_is_refused_at_once(url: str, problem: str) -> None:
    with pytest.raises(BadConfig, match=problem):
        CollectorConfig.check({"bootstrap.servers": "localhost:9092"}, [url])
