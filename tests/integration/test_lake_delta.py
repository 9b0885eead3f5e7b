"""What only Delta has: what the proof in docs/adr/0064 relies on delta-rs for, its log, and tables refused.

What Delta shares with Iceberg is in test_lake_contract.py.
"""

import json
from pathlib import Path

import pyarrow as pa
import pytest
from tests.support.lake_tables import PREFIX, DeltaPlace, read_ids, write_files

from tallystick.kernel.ids import ProducerEpoch, ProducerId, ProducerIdAndEpoch
from tallystick.kernel.settings import BadConfig
from tallystick.lake.entries import CommitOutcome, LakeEntry
from tallystick.lake.errors import UnusableTable
from tallystick.lake.names import parse_table_url
from tallystick.lake.sweeping import look_for_orphans
from tallystick.spark.decisions.lake_row import LakeRow

pytest.importorskip("deltalake", reason="needs the extra delta")

from deltalake import CommitProperties, DeltaTable, Transaction, write_deltalake
from deltalake.exceptions import CommitFailedError

from tallystick.lake.delta import DeltaLakeTable

OLD = ProducerIdAndEpoch(ProducerId(7), ProducerEpoch(1))
SCHEMA = pa.schema([("id", pa.int64()), ("name", pa.string())])


@pytest.fixture
def place(tmp_path: Path) -> Path:
    return DeltaPlace(tmp_path).folder


def open_row(place: Path) -> LakeRow:
    return LakeRow(DeltaLakeTable(parse_table_url(f"delta:{place}"), {}), PREFIX)


# ------------------------------------------------------------------------ what is built on in delta-rs


def commit_directly(table: DeltaTable, application: str, version: int, retries: int) -> None:
    table.create_write_transaction(
        [],
        "append",
        table.schema(),
        commit_properties=CommitProperties(
            max_commit_retries=retries, app_transactions=[Transaction(application, version)]
        ),
    )


def test_without_retries_delta_rs_commits_the_next_version_or_nothing(place: Path) -> None:
    """[LAK-1] Even where an append could be rebased over another one: it is not."""
    behind = DeltaTable(place)
    write_deltalake(place, pa.table({"id": [1], "name": ["x"]}, schema=SCHEMA), mode="append")
    with pytest.raises(CommitFailedError):
        commit_directly(behind, "a", 1, retries=0)
    assert DeltaTable(place).version() == 1
    assert DeltaTable(place).transaction_version("a") is None


def test_with_retries_delta_rs_rebases_over_others_and_not_over_the_same_application(place: Path) -> None:
    """The second line of defence, and why it is not the first: it compares the application id alone."""
    behind, behind_too = DeltaTable(place), DeltaTable(place)
    commit_directly(DeltaTable(place), "a", 1, retries=0)
    with pytest.raises(CommitFailedError, match="Concurrent transaction failed"):
        commit_directly(behind, "a", 2, retries=5)
    commit_directly(behind_too, "b", 1, retries=5)  # rebased: its version is not the one that it was made for
    assert DeltaTable(place).version() == 2


# ------------------------------------------------------------------------------------------- its log


def test_a_decision_is_one_entry_of_the_log(tmp_path: Path) -> None:
    """[LAK-1] Files, metadata and application transaction."""
    table = DeltaPlace(tmp_path)
    adapter = table.open()
    state = adapter.read(PREFIX)
    entry = LakeEntry(key=PREFIX, owner=str(OLD), commit="c", payload="p")
    assert adapter.commit(state.version, entry, write_files(table, OLD, [1, 2])) is CommitOutcome.COMMITTED
    assert read_ids(table) == [1, 2]
    text = (table.folder / "_delta_log" / f"{1:020d}.json").read_text()
    assert [next(iter(json.loads(line))) for line in text.splitlines()] == ["commitInfo", "add", "txn"]


def test_entries_that_a_process_keeps_are_few(place: Path) -> None:
    """A query commits every few seconds for months; what is not kept is read again."""
    table = DeltaLakeTable(parse_table_url(f"delta:{place}"), {})
    for version in range(20):
        assert table.read(PREFIX).version == version
        entry = LakeEntry(key=PREFIX, owner=str(OLD), commit=str(version))
        assert table.commit(version, entry, ()) is CommitOutcome.COMMITTED
    assert len(table._entries) <= 8


# --------------------------------------------------------------------------------------- tables refused


@pytest.fixture
def constrained(place: Path) -> Path:
    DeltaTable(place).alter.add_constraint({"positive": "id > 0"})
    return place


def test_a_table_with_constraints_is_refused(constrained: Path) -> None:
    with pytest.raises(UnusableTable, match="constraint positive"):
        open_row(constrained).create_table()


def test_a_table_that_forgets_application_transactions_is_refused(place: Path) -> None:
    DeltaTable(place).alter.set_table_properties({"delta.setTransactionRetentionDuration": "interval 1 days"})
    with pytest.raises(UnusableTable, match="forget what was decided"):
        open_row(place).create_table()


def test_storage_that_does_not_fence_is_refused(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """[LAK-1] The fence is "create if absent"."""
    url = parse_table_url(f"delta:{place}")
    with pytest.raises(BadConfig, match="two drivers may both decide"):
        DeltaLakeTable(url, {"AWS_S3_ALLOW_UNSAFE_RENAME": "true"})
    monkeypatch.setenv("AWS_S3_ALLOW_UNSAFE_RENAME", "true")
    with pytest.raises(BadConfig):
        DeltaLakeTable(url, {})


# ---------------------------------------------------------------------------------------------- orphans


def test_where_no_log_is_nothing_is_looked_for(tmp_path: Path) -> None:
    with pytest.raises(UnusableTable, match="does not exist"):
        look_for_orphans(DeltaLakeTable(parse_table_url(f"delta:{tmp_path}"), {}))
