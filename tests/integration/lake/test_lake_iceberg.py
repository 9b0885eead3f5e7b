"""What only Iceberg has: what a catalog is asked for, the two halves of an entry, upserts, tables refused.

What Iceberg shares with Delta is in test_lake_contract.py.
"""

import pickle
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from tests.support.lake_tables import PREFIX, SCHEMA, IcebergPlace, make_rows, read_ids, write_files

from tallystick.kernel.ids import ProducerEpoch, ProducerId, ProducerIdAndEpoch
from tallystick.kernel.settings import BadConfig
from tallystick.lake import data_files
from tallystick.lake.entries import CommitOutcome, LakeEntry
from tallystick.lake.errors import EntryLost, UnusableTable
from tallystick.lake.names import digest_key, digest_owner, parse_table_url
from tallystick.lake.schema import TableDefinition
from tallystick.lake.sweeping import look_for_orphans, remove_orphans
from tallystick.spark.decisions.lake_row import LakeRow

pytest.importorskip("pyiceberg", reason="needs the extra iceberg")

from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.exceptions import CommitFailedException
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.table.refs import SnapshotRefType
from pyiceberg.transforms import BucketTransform, IdentityTransform, UnknownTransform
from pyiceberg.types import IntegerType, ListType, LongType, NestedField, StringType, StructType
from pyiceberg.utils.config import Config

from tallystick.lake.iceberg import IcebergLakeTable
from tallystick.lake.iceberg_storage import select_file_options

OLD = ProducerIdAndEpoch(ProducerId(7), ProducerEpoch(1))
NEW = ProducerIdAndEpoch(ProducerId(7), ProducerEpoch(2))
TAG = f"tallystick:{PREFIX}"


@pytest.fixture
def place(tmp_path: Path) -> IcebergPlace:
    return IcebergPlace(tmp_path)


def entry_of(owner: ProducerIdAndEpoch, commit: str, payload: str | None = None) -> LakeEntry:
    return LakeEntry(key=PREFIX, owner=str(owner), commit=commit, payload=payload)


def commit(
    place: IcebergPlace, entry: LakeEntry, ids: Sequence[int] = (), keys: Sequence[str] = ()
) -> CommitOutcome:
    """Commit as a driver does that has just read the table."""
    if not place.table.snapshots():
        place.append_nothing()
    table = place.open()
    files = write_files(place, OLD, ids, attempt=entry.commit) if ids else ()
    return table.commit(table.read(PREFIX).version, entry, files, keys)


class Held:
    """A request to the catalog that is held back, as if it were still under way."""

    def __init__(self, place: IcebergPlace, monkeypatch: pytest.MonkeyPatch, entry: LakeEntry) -> None:
        def hold(_: SqlCatalog, table: Any, requirements: Any, updates: Any) -> Any:
            self.table, self.requirements, self.updates = table, requirements, updates
            raise TimeoutError("no answer")

        with monkeypatch.context() as patched:
            patched.setattr(SqlCatalog, "commit_table", hold)
            self.outcome = commit(place, entry, [1])
        self._catalog = place.catalog

    def arrive(self) -> None:
        self._catalog.commit_table(self.table, self.requirements, self.updates)


# ---------------------------------------------------------------------------- what is asked of the catalog


def test_pyiceberg_alone_would_commit_behind_another_writer(place: IcebergPlace) -> None:
    """Why the adapter sends the request itself: an append is rebased, whoever was faster."""
    place.append_nothing()
    behind = place.table
    place.append([100])
    behind.append(pa.table(make_rows([1], "behind")))
    assert read_ids(place) == [1, 100]


def test_a_request_that_arrives_behind_a_claim_is_refused(
    place: IcebergPlace, monkeypatch: pytest.MonkeyPatch
) -> None:
    """[LAK-1] The driver has gone, its request has not."""
    commit(place, entry_of(OLD, "aa"))
    held = Held(place, monkeypatch, entry_of(OLD, "ab", "decided"))
    assert held.outcome is CommitOutcome.UNKNOWN
    assert commit(place, entry_of(NEW, "ac")) is CommitOutcome.COMMITTED
    with pytest.raises(CommitFailedException):
        held.arrive()
    assert read_ids(place) == []


def test_a_request_that_arrives_before_the_claim_is_found_by_it(
    place: IcebergPlace, monkeypatch: pytest.MonkeyPatch
) -> None:
    """[LAK-1] [LAK-2]"""
    commit(place, entry_of(OLD, "aa"))
    held = Held(place, monkeypatch, entry_of(OLD, "ab", "decided"))
    held.arrive()
    state = place.open().read(PREFIX)
    assert state.entry == entry_of(OLD, "ab", "decided")
    assert read_ids(place) == [1]


def test_a_branch_that_is_set_back_brings_no_owner_back(
    place: IcebergPlace, monkeypatch: pytest.MonkeyPatch
) -> None:
    """[LAK-1] [LAK-5] `main` is where the request wants it again; the tag of the prefix is not."""
    commit(place, entry_of(OLD, "aa"))
    before = place.table.current_snapshot().snapshot_id
    held = Held(place, monkeypatch, entry_of(OLD, "ab", "decided"))
    commit(place, entry_of(NEW, "ac"))
    place.table.manage_snapshots().set_current_snapshot(before).commit()
    assert place.table.current_snapshot().snapshot_id == before
    # The requirements alone refuse it: a catalog need not look at sequence numbers.
    refused = []
    for requirement in held.requirements:
        try:
            requirement.validate(place.table.metadata)
        except CommitFailedException as exc:
            refused.append(str(exc))
    (why,) = refused
    assert f"tag {TAG} has changed" in why
    entry = place.open().read(PREFIX).entry
    assert entry is not None
    assert entry.owner == str(NEW)


def test_a_snapshot_of_another_branch_in_between_only_costs_an_attempt(
    place: IcebergPlace, monkeypatch: pytest.MonkeyPatch
) -> None:
    """[LAK-1] It takes the sequence number; `main` and the tag are where they were."""
    commit(place, entry_of(OLD, "aa"))
    place.table.manage_snapshots().create_branch(
        place.table.current_snapshot().snapshot_id, "experiment"
    ).commit()
    table = place.open()
    state = table.read(PREFIX)
    place.table.append(pa.table(make_rows([7])), branch="experiment")
    files = write_files(place, OLD, [1])
    assert table.commit(state.version, entry_of(OLD, "ab"), files) is CommitOutcome.BEATEN
    assert table.commit(table.read(PREFIX).version, entry_of(OLD, "ab"), files) is CommitOutcome.COMMITTED
    assert read_ids(place) == [1]


def test_columns_that_change_between_reading_and_committing_are_noticed(place: IcebergPlace) -> None:
    """[LAK-4] No snapshot is made, so neither the branch nor the sequence number tells."""
    commit(place, entry_of(OLD, "aa"))
    table = place.open()
    state = table.read(PREFIX)
    place.add_column()
    files = write_files(place, OLD, [1])
    assert table.commit(state.version, entry_of(OLD, "ab"), files) is CommitOutcome.BEATEN
    assert table.read(PREFIX).version == state.version


def test_partitions_that_change_between_reading_and_committing_are_noticed(place: IcebergPlace) -> None:
    commit(place, entry_of(OLD, "aa"))
    table = place.open()
    state = table.read(PREFIX)
    with place.table.update_spec() as update:
        update.add_identity("name")
    files = write_files(place, OLD, [1])
    assert table.commit(state.version, entry_of(OLD, "ab"), files) is CommitOutcome.BEATEN


def test_a_refusal_that_is_wrong_is_looked_up(place: IcebergPlace, monkeypatch: pytest.MonkeyPatch) -> None:
    """[LAK-1] A proxy has sent the request twice: the second answer is a refusal, and the first was lost."""
    commit(place, entry_of(OLD, "aa"))
    real = SqlCatalog.commit_table

    def sent_twice(self: SqlCatalog, *args: Any) -> Any:
        real(self, *args)
        return real(self, *args)

    with monkeypatch.context() as patched:
        patched.setattr(SqlCatalog, "commit_table", sent_twice)
        assert commit(place, entry_of(OLD, "ab", "decided"), [1]) is CommitOutcome.COMMITTED
    assert read_ids(place) == [1], "and its manifests are there"


def test_a_catalog_that_cannot_be_asked_leaves_the_outcome_open(
    place: IcebergPlace, monkeypatch: pytest.MonkeyPatch
) -> None:
    """[LAK-1]"""
    commit(place, entry_of(OLD, "aa"))
    table = place.open()
    state = table.read(PREFIX)

    def gone(*_: Any) -> Any:
        raise ConnectionError("no route to the catalog")

    with monkeypatch.context() as patched:
        patched.setattr(SqlCatalog, "commit_table", gone)
        patched.setattr(SqlCatalog, "load_table", gone)
        assert table.commit(state.version, entry_of(OLD, "ab"), ()) is CommitOutcome.UNKNOWN


def test_a_table_without_a_snapshot_gets_one_first(place: IcebergPlace) -> None:
    """[LAK-1] Nothing can be required of a tag before."""
    table = place.open()
    state = table.read(PREFIX)
    assert table.commit(state.version, entry_of(OLD, "aa"), ()) is CommitOutcome.BEATEN
    assert [each.summary.additional_properties.get("tallystick.key") for each in place.table.snapshots()] == [
        None
    ]
    assert commit(place, entry_of(OLD, "aa")) is CommitOutcome.COMMITTED


# ------------------------------------------------------------------------------- the two halves of an entry


def remove_tag(place: IcebergPlace) -> None:
    place.table.manage_snapshots().remove_tag(TAG).commit()


def move_tag(place: IcebergPlace) -> None:
    place.table.manage_snapshots().create_tag(place.table.snapshots()[0].snapshot_id, TAG).commit()


def remove_property(place: IcebergPlace) -> None:
    with place.table.transaction() as transaction:
        transaction.remove_properties(TAG)


def put_property_back(place: IcebergPlace) -> None:
    text = place.table.properties[TAG].replace('"commit":"ab"', '"commit":"aa"')
    with place.table.transaction() as transaction:
        transaction.set_properties({TAG: text})


@pytest.mark.gate(1)
@pytest.mark.parametrize("lose", [remove_tag, move_tag, remove_property, put_property_back])
def test_half_an_entry_is_none(lose: Callable[[IcebergPlace], None], place: IcebergPlace) -> None:
    """[LAK-2] [LAK-6] Whichever is gone or of another commit: reading is an error, and says what to do."""
    commit(place, entry_of(OLD, "aa"))
    commit(place, entry_of(OLD, "ab", "decided"), [1])
    lose(place)
    with pytest.raises(EntryLost, match=r"--retire"):
        place.open().read(PREFIX)
    assert place.open().read(PREFIX, accepts_loss=True).entry is None
    assert commit_over_loss(place) is CommitOutcome.COMMITTED
    assert place.open().read(PREFIX).entry == entry_of(NEW, "ac")


def commit_over_loss(place: IcebergPlace) -> CommitOutcome:
    table = place.open()
    return table.commit(table.read(PREFIX, accepts_loss=True).version, entry_of(NEW, "ac"), ())


def test_the_tag_outlives_what_the_table_says_of_the_age_of_tags(place: IcebergPlace) -> None:
    """[LAK-2]"""
    with place.table.transaction() as transaction:
        transaction.set_properties({"history.expire.max-ref-age-ms": "1"})
    commit(place, entry_of(OLD, "aa"))
    tag = place.table.metadata.refs[TAG]
    assert tag.snapshot_ref_type is SnapshotRefType.TAG
    assert tag.max_ref_age_ms == 2**63 - 1


def test_summaries_do_not_have_the_decision(place: IcebergPlace) -> None:
    """Every metadata file has the summaries of all snapshots; the decision of a batch is large."""
    for commit_name in ("aa", "ab", "ac"):
        commit(place, entry_of(OLD, commit_name, "decided " * 1000), [1])
    text = Path(place.table.metadata_location.removeprefix("file://")).read_text()
    assert text.count("decided " * 1000) == 1
    assert place.table.current_snapshot().summary["tallystick.commit"] == "ac"


# ------------------------------------------------------------------------------------------------- upserts


LATEST = Schema(
    NestedField(1, "id", LongType()),
    NestedField(2, "part", IntegerType()),
    NestedField(3, "name", StringType()),
    NestedField(4, "tags", ListType(5, StringType(), element_required=False)),
)


def upsert(place: IcebergPlace, rows: list[dict[str, Any]], name: str, keys: Sequence[str]) -> CommitOutcome:
    writer = place.open_writer(OLD, name)
    writer.write(pa.RecordBatch.from_pylist(rows, schema=place.table.schema().as_arrow()))
    files = writer.finish()
    table = place.open()
    assert table.find_key_problem(files, keys) is None
    return table.commit(table.read(PREFIX).version, entry_of(OLD, name), files, keys)


@pytest.mark.gate(1)
@pytest.mark.parametrize(
    "spec",
    [PartitionSpec(), PartitionSpec(PartitionField(1, 1000, BucketTransform(3), "id_bucket"))],
    ids=["one file", "buckets"],
)
def test_an_upsert_is_one_snapshot(spec: PartitionSpec, tmp_path: Path) -> None:
    """[LAK-1] [LAK-4] Rows with the same keys go, all others stay, in files of their partition."""
    place = IcebergPlace(tmp_path, LATEST, partition_spec=spec)
    place.append_nothing()
    first = [{"id": n, "part": n % 2, "name": f"old {n}", "tags": ["a"] * (n % 3)} for n in range(9)]
    second = [{"id": n, "part": n % 2, "name": f"new {n}", "tags": []} for n in (2, 5, 20)]
    assert upsert(place, first, "aa", ["id"]) is CommitOutcome.COMMITTED
    before = len(place.table.snapshots())
    assert upsert(place, second, "ab", ["id"]) is CommitOutcome.COMMITTED
    assert len(place.table.snapshots()) == before + 1
    expected = [row for row in first if row["id"] not in (2, 5)] + second
    rows = sorted(place.read().to_pylist(), key=lambda row: row["id"])
    assert rows == sorted(expected, key=lambda row: row["id"])
    assert place.table.scan(row_filter="id == 8").to_arrow()["name"].to_pylist() == ["old 8"]
    summary = place.table.current_snapshot().summary
    assert summary["total-records"] == "10"
    assert place.open().read(PREFIX).entry == entry_of(OLD, "ab")


def test_an_upsert_by_two_keys(tmp_path: Path) -> None:
    place = IcebergPlace(tmp_path, LATEST)
    place.append_nothing()
    first = [{"id": n, "part": part, "name": "old", "tags": None} for n in range(3) for part in range(3)]
    assert upsert(place, first, "aa", ["id", "part"]) is CommitOutcome.COMMITTED
    second = [
        {"id": 1, "part": 2, "name": "new", "tags": None},
        {"id": 2, "part": 1, "name": "new", "tags": None},
    ]
    assert upsert(place, second, "ab", ["id", "part"]) is CommitOutcome.COMMITTED
    names = {(row["id"], row["part"]): row["name"] for row in place.read().to_pylist()}
    assert len(names) == place.read().num_rows == 9
    assert {key for key, name in names.items() if name == "new"} == {(1, 2), (2, 1)}


def test_files_that_a_beaten_upsert_wrote_anew_are_orphans(
    place: IcebergPlace, monkeypatch: pytest.MonkeyPatch
) -> None:
    """[LAK-3]"""
    commit(place, entry_of(OLD, "aa"), [1, 2, 3])

    def refuses(*_: Any) -> Any:
        raise CommitFailedException("another writer was faster")

    with monkeypatch.context() as patched:
        patched.setattr(SqlCatalog, "commit_table", refuses)
        assert commit(place, entry_of(OLD, "ab"), [2], ["id"]) is CommitOutcome.BEATEN
    assert commit(place, entry_of(OLD, "ac"), [3], ["id"]) is CommitOutcome.COMMITTED
    commit(place, entry_of(NEW, "ad"))
    report = look_for_orphans(place.open())
    assert len(report.orphans) == 2, "the batch's own file, and the one that was written anew"
    assert read_ids(place) == [1, 2, 3]


def test_an_upsert_into_a_table_of_others_files(place: IcebergPlace) -> None:
    place.append([1, 2])
    assert commit(place, entry_of(OLD, "aa"), [2, 3], ["id"]) is CommitOutcome.COMMITTED
    names = dict(zip(*(place.read()[name].to_pylist() for name in ("id", "name")), strict=True))
    assert names == {1: "other 1", 2: "row 2", 3: "row 3"}


@pytest.mark.parametrize("is_named", [True, False])
def test_files_of_a_renamed_table_are_no_orphans_of_the_next_one(place: IcebergPlace, is_named: bool) -> None:
    """[LAK-3] Both have the folder that the first name gave, and one query has written both.

    Names of version 1 do not tell the table.
    """

    def name_file(_: str, *parts: Any) -> str:
        key, owner, attempt, number = parts
        return f"tallystick-{digest_key(key)}-{digest_owner(owner)}-{attempt}-{number}.parquet"

    with pytest.MonkeyPatch.context() as patched:
        if not is_named:
            patched.setattr(data_files, "format_data_file_name", name_file)
        commit(place, entry_of(OLD, "aa"), [1, 2, 3])
        place.catalog.rename_table("flights.rows", "flights.rows_2025")
        place.catalog.create_table("flights.rows", schema=SCHEMA)
        commit(place, entry_of(NEW, "ab"))
        table = place.open()
        files = write_files(place, NEW, [100], attempt="ab")
        table.commit(table.read(PREFIX).version, entry_of(NEW, "ac"), files, ())
    report = look_for_orphans(place.open())
    assert len(report.foreign if is_named else report.unplaced) == 1
    assert not report.orphans
    remove_orphans(place.open(), report)
    assert place.catalog.load_table("flights.rows_2025").scan().to_arrow().num_rows == 3


# --------------------------------------------------------------------------------------- tables refused


def find_problems(place: IcebergPlace) -> str:
    with pytest.raises(UnusableTable) as raised:
        LakeRow(place.open(), PREFIX).create_table()
    return str(raised.value)


def test_a_table_of_the_first_format_is_refused(tmp_path: Path) -> None:
    place = IcebergPlace(tmp_path, properties={"format-version": "1"})
    assert "is of format version 1, and this writer has 2" in find_problems(place)


def test_tasks_get_what_reaches_files_and_nothing_of_the_catalogs_login() -> None:
    """A REST catalog has a live object among its properties, and its own secrets; no task gets these."""
    properties = {
        "s3.endpoint": "http://localhost:9000",
        "s3.secret-access-key": "theirs",
        "client.region": "eu-central-1",
        "py-io-impl": "pyiceberg.io.pyarrow.PyArrowFileIO",
        "auth.manager": threading.Lock(),
        "s3.signer": None,
        "token": "secret",
        "credential": "id:secret",
        "uri": "postgresql://me:secret@db/catalog",
        "tallystick:p/database": "{}",
    }
    options = select_file_options(properties)
    assert sorted(dict(options)) == ["client.region", "py-io-impl", "s3.endpoint", "s3.secret-access-key"]
    assert "theirs" not in repr(pickle.loads(pickle.dumps(options)))


def test_a_table_in_an_object_store_without_pyarrow_is_refused(tmp_path: Path) -> None:
    place = IcebergPlace(tmp_path, properties={"write.data.path": "s3://bucket/data"})
    place.properties["py-io-impl"] = "pyiceberg.io.fsspec.FsspecFileIO"
    assert "has its files at s3://bucket/data, which pyiceberg reaches through FsspecFileIO" in find_problems(
        place
    )
    with pytest.raises(UnusableTable, match=r"Set py-io-impl to pyiceberg\.io\.pyarrow\.PyArrowFileIO"):
        look_for_orphans(place.open())


def test_partitions_that_cannot_be_computed_are_refused(tmp_path: Path) -> None:
    pair = StructType(NestedField(3, "a", LongType()))
    schema = Schema(NestedField(1, "id", LongType()), NestedField(2, "pair", pair))
    nested = PartitionSpec(PartitionField(3, 1000, IdentityTransform(), "inner"))
    place = IcebergPlace(tmp_path, schema, partition_spec=nested)
    assert "partition field inner is of the nested column pair.a" in find_problems(place)


def test_a_transform_that_is_not_known_is_refused(
    place: IcebergPlace, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec = PartitionSpec(PartitionField(1, 1000, UnknownTransform("zorder"), "z"))
    monkeypatch.setattr(Table, "spec", lambda _: spec)
    assert "partition field z has a transform that is not known here" in find_problems(place)


def test_a_catalog_that_is_not_configured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYICEBERG_HOME", str(tmp_path))
    table = IcebergLakeTable(parse_table_url("iceberg:nowhere.flights.rows"), {})
    with pytest.raises(BadConfig, match=r"cannot open the catalog nowhere.*PYICEBERG_CATALOG__NOWHERE__URI"):
        table.read_definition()


def test_a_catalog_that_cannot_be_reached(tmp_path: Path) -> None:
    settings = {"type": "sql", "uri": f"sqlite:///{tmp_path}/nowhere/catalog.db"}
    table = IcebergLakeTable(parse_table_url("iceberg:lake.flights.rows"), settings)
    with pytest.raises(BadConfig, match=r"(?s)unable to open database file.*\(OperationalError\)"):
        table.read_definition()


def test_a_catalog_that_the_environment_configures(
    place: IcebergPlace, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = {f"PYICEBERG_CATALOG__LAKE__{name.upper()}": text for name, text in place.properties.items()}
    for name, text in settings.items():
        monkeypatch.setenv(name, text)
    monkeypatch.setattr("pyiceberg.catalog._ENV_CONFIG", Config())  # it is read when pyiceberg is imported
    table = IcebergLakeTable(parse_table_url(place.url), {})
    assert table.read_definition().schema.names == SCHEMA.names


def test_a_folder_is_where_pyiceberg_takes_it_to_be(tmp_path: Path) -> None:
    """A percent sign in a location is a percent sign; both sides have to agree on it."""
    place = IcebergPlace(tmp_path, location=f"file://{tmp_path}/a%20b c")
    assert commit(place, entry_of(OLD, "aa"), [1, 2]) is CommitOutcome.COMMITTED
    place.append([3])
    assert read_ids(place) == [1, 2, 3]
    assert len(list((tmp_path / "a%20b c" / "data").glob("*.parquet"))) == 2


# ---------------------------------------------------------------------------------------------- columns


def test_columns_are_added_in_a_commit_of_their_own(place: IcebergPlace) -> None:
    commit(place, entry_of(OLD, "aa"), [1])
    table = place.open()
    definition = table.read_definition()
    wanted = pa.schema([("more", pa.list_(pa.string())), ("small", pa.int8())])
    table.add_columns(TableDefinition(identity=definition.identity, schema=wanted))
    after = table.read_definition()
    assert after.schema.names == ["id", "name", "more", "small"]
    assert after.schema.field("small").type == pa.int32()
    assert len(place.table.snapshots()) == 2
    assert place.read().num_rows == 1


def test_manifests_are_merged_if_the_table_wants_it(tmp_path: Path) -> None:
    properties = {"commit.manifest-merge.enabled": "true", "commit.manifest.min-count-to-merge": "2"}
    place = IcebergPlace(tmp_path, properties=properties)
    for number in range(4):
        assert commit(place, entry_of(OLD, f"a{number}"), [number]) is CommitOutcome.COMMITTED
    assert len(place.table.current_snapshot().manifests(place.table.io)) == 1
    assert read_ids(place) == [0, 1, 2, 3]
