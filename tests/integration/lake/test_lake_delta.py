"""Delta alone: the behaviour of delta-rs that docs/design/lake-tables.md relies on, its log, refused tables.

What Delta shares with Iceberg is in test_lake_contract.py.
"""

import json
import shutil
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql.types import LongType, StringType, StructField, StructType
from tests.support.lake_tables import PREFIX, DeltaPlace, read_ids, write_files

from tallystick.kernel.ids import ProducerEpoch, ProducerId, ProducerIdAndEpoch
from tallystick.kernel.settings import BadConfig
from tallystick.lake.entries import CommitOutcome, LakeEntry
from tallystick.lake.errors import SchemaDiffers, UnusableTable
from tallystick.lake.names import parse_table_url
from tallystick.lake.opening import LakeLocation
from tallystick.lake.sweeping import look_for_orphans
from tallystick.spark.decisions.lake_row import LakeRow
from tallystick.spark.options.sinks import to_table
from tallystick.spark.sink.driver.lake import prepare_target

pytest.importorskip("deltalake", reason="needs the extra delta")

from deltalake import CommitProperties, DeltaTable, Transaction, write_deltalake
from deltalake.exceptions import CommitFailedError, DeltaError

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


# --------------------------------------------------------------------------- another log at the same place

OTHER_SCHEMA = pa.schema([("id", pa.int64()), ("name", pa.string()), ("note", pa.string())])


def create_again(place: Path, commits: int, schema: pa.Schema = OTHER_SCHEMA) -> None:
    """Delete the table and create another one at its place."""
    shutil.rmtree(place)
    DeltaTable.create(place, schema=schema)
    append_others(place, commits)


def append_others(place: Path, commits: int) -> None:
    rows = pa.table({"id": [100], "name": ["other"]}, schema=SCHEMA)
    for _ in range(commits):
        write_deltalake(place, rows, mode="append", schema_mode="merge")


def commit_next(table: DeltaLakeTable, name: str, version: int) -> CommitOutcome:
    return table.commit(version, LakeEntry(key=PREFIX, owner=str(OLD), commit=name, payload="p"), ())


@pytest.mark.parametrize("commits", [0, 1, 2, 3, 6])
def test_a_table_that_was_created_again_is_another_one(place: Path, commits: int) -> None:
    """[LAK-1, SPK-29] Shorter than the old log, as long, or longer: its id and columns, and no old entry."""
    table = DeltaLakeTable(parse_table_url(f"delta:{place}"), {})
    old = table.read(PREFIX).definition
    assert commit_next(table, "a", 0) is CommitOutcome.COMMITTED
    append_others(place, 1)
    state = table.read(PREFIX)
    assert state.entry is not None
    assert state.version == 2
    create_again(place, commits)
    state = table.read(PREFIX)
    fresh = DeltaLakeTable(parse_table_url(f"delta:{place}"), {}).read(PREFIX)
    assert state == fresh
    assert state.definition.identity != old.identity
    assert state.definition.schema.names == OTHER_SCHEMA.names
    assert state.entry is None


def test_a_decision_for_a_table_that_was_created_again_is_told_as_that(place: Path) -> None:
    """[LAK-1] Nobody else has claimed the prefix."""
    row = open_row(place)
    row.claim(OLD, lambda: True)
    create_again(place, 0)
    with pytest.raises(UnusableTable, match="does not know 'p/database' any more"):
        row.forget(OLD)


def test_an_upsert_into_an_append_only_table_is_refused_before_it_begins(place: Path) -> None:
    """delta-rs refuses at the commit, which looks like one that has not arrived yet."""
    DeltaTable(place).alter.set_table_properties({"delta.appendOnly": "true"})
    location = LakeLocation(url=parse_table_url(f"delta:{place}"))
    rows = StructType([StructField("id", LongType()), StructField("name", StringType())])
    with pytest.raises(SchemaDiffers, match=r"has delta\.appendOnly=true.*Nothing was written"):
        prepare_target(location, to_table(str(location.url), write="upsert", keys=["id"]), rows)
    assert prepare_target(location, to_table(str(location.url)), rows).keys == ()


def test_a_shorter_log_is_read_behind_an_old_checkpoint(place: Path) -> None:
    """The new log has neither the checkpoint that the old table rested on, nor its versions."""
    shutil.rmtree(place)
    DeltaTable.create(place, schema=SCHEMA, configuration={"delta.checkpointInterval": "10"})
    append_others(place, 12)
    table = DeltaLakeTable(parse_table_url(f"delta:{place}"), {})
    assert table.read(PREFIX).version == 12
    create_again(place, 1)
    assert table.read(PREFIX).version == 1
    assert table.read_definition().schema.names == OTHER_SCHEMA.names


def test_a_copy_that_was_restored_goes_on_at_its_own_end(place: Path, tmp_path: Path) -> None:
    """[LAK-1] A commit behind the end of its log would leave a gap in it."""
    table = DeltaLakeTable(parse_table_url(f"delta:{place}"), {})
    assert commit_next(table, "a", table.read(PREFIX).version) is CommitOutcome.COMMITTED
    shutil.copytree(place, tmp_path / "copy")
    append_others(place, 2)
    assert table.read(PREFIX).version == 3
    shutil.rmtree(place)
    shutil.copytree(tmp_path / "copy", place)
    state = table.read(PREFIX)
    assert state.version == 1
    assert commit_next(table, "b", state.version) is CommitOutcome.COMMITTED
    assert DeltaTable(place).version() == 2


def test_a_log_that_was_cleaned_up_is_the_same_one(place: Path) -> None:
    """The entry of the version that was read last is gone by rights: a checkpoint has what it said."""
    table = DeltaLakeTable(parse_table_url(f"delta:{place}"), {})
    before = table.read(PREFIX).definition
    append_others(place, 2)
    DeltaTable(place).create_checkpoint()
    for version in (0, 1):
        (place / "_delta_log" / f"{version:020d}.json").unlink()
    state = table.read(PREFIX)
    assert (state.version, state.definition) == (2, before)
    assert commit_next(table, "a", state.version) is CommitOutcome.COMMITTED


def test_what_delta_rs_does_not_find_is_looked_for_in_the_newest_log(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It keeps names of checkpoint files, and reads them when it is asked for an application transaction."""
    table = DeltaLakeTable(parse_table_url(f"delta:{place}"), {})
    assert commit_next(table, "a", table.read(PREFIX).version) is CommitOutcome.COMMITTED
    held = table._table
    transaction_version = DeltaTable.transaction_version

    def read(self: DeltaTable, application: str) -> int | None:
        if self is held:
            raise DeltaError("Object at location 00000000000000000010.checkpoint.parquet not found")
        return transaction_version(self, application)

    monkeypatch.setattr(DeltaTable, "transaction_version", read)
    state = table.read(PREFIX)
    assert state.entry is not None
    assert state.entry.commit == "a"


def test_one_look_at_the_log_tells_that_it_is_the_same(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What a refresh of a table costs that nobody else writes: in an object store it is a request."""
    table = DeltaLakeTable(parse_table_url(f"delta:{place}"), {})
    reads: list[str] = []
    read = table.storage.read

    def note(path: str) -> bytes | None:
        reads.append(path)
        return read(path)

    monkeypatch.setattr(table.storage, "read", note)
    for n in range(3):
        assert commit_next(table, f"c{n}", table.read(PREFIX).version) is CommitOutcome.COMMITTED
    reads.clear()
    for _ in range(3):
        table.read(PREFIX)
    assert [path.rpartition("/")[2] for path in reads] == [f"{n:020d}.json" for n in (2, 3, 3)]


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
