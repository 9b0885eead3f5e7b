"""Topics and a lake table in one decision, under real Spark: our broker, and a table on the local disk."""

import json
import os
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark import cloudpickle
from pyspark.errors import PySparkException, StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming import DataStreamWriter
from tests.support.lake_tables import DeltaS3Place, IcebergS3Place, create_bucketed
from tests.support.reading import committed_records
from tests.support.spark_together_child import lines

from tallystick import Admin, Producer
from tallystick.admin.topics import NewTopic
from tallystick.cli.app import run_command
from tallystick.client.transactions.modes import TxnDecision
from tallystick.kernel.errors import InDoubt
from tallystick.kernel.settings import BadConfig
from tallystick.kernel.value import replace
from tallystick.lake.errors import UnusableTable
from tallystick.pipeline import Definition, Pipeline
from tallystick.pipeline.definition import (
    OutputDefinition,
    SourceDefinition,
    TableSink,
    TopicSink,
    Transform,
)
from tallystick.spark import foreach_batch, resolve, resolve_rows, to_table, to_topic
from tallystick.spark.decisions.store_log import DatabaseParticipants
from tallystick.spark.protocol.ports import DecisionLogPort, ParticipantsPort
from tallystick.spark.sink.driver.lake_context import LakeSinkContext
from tallystick.testing import EmbeddedBroker

deltalake = pytest.importorskip("deltalake", reason="needs the extra delta")

pytest.importorskip("pyiceberg", reason="needs the extra iceberg")

pytestmark = [pytest.mark.slow, pytest.mark.server, pytest.mark.broker(in_process=False)]

cloudpickle.register_pickle_by_value(sys.modules[__name__])

ROWS = 40
BEGAN_S = 1_700_000_000


class Place:
    """A topic, a Delta table, a prefix and a folder of one test, and a stream of one file a batch."""

    def __init__(self, spark: SparkSession, broker: EmbeddedBroker, folder: Path, name: str) -> None:
        self.spark, self.folder, self.topic = spark, folder, name
        self.client = {"bootstrap.servers": broker.bootstrap_servers}
        self.options = {
            "kafka.bootstrap.servers": broker.bootstrap_servers,
            "transactional.id.prefix": f"test/{name}",
        }
        self.table = folder / "table"
        self.storage_options: dict[str, str] = {}
        self.url = self.create_table()
        self.table_sink = to_table(self.url, columns=["id", "batch"], storage_options=self.storage_options)
        self.sinks = to_topic(name, key="id", value="id"), self.table_sink
        (folder / "in").mkdir()
        with Admin(self.client) as admin:
            admin.create_topics([NewTopic(name=name, partitions=2)]).all()

    def create_table(self) -> str:
        """Create the table, partitioned by its batch; return its URL."""
        fields = [("id", pa.string()), ("batch", pa.int32())]
        deltalake.DeltaTable.create(self.table, schema=pa.schema(fields), partition_by=["batch"])
        return f"delta:{self.table}"

    def add(self, batch: int, rows: int = ROWS) -> None:
        path = self.folder / "in" / f"{batch}.txt"
        path.write_text("".join(f"{batch}-{row}\n" for row in range(rows)))
        os.utime(path, (path.stat().st_mtime, BEGAN_S + batch))  # Spark takes the older one first

    def stream(self) -> DataFrame:
        return lines(self.spark, self.folder)

    def run(self, frame: DataFrame | None = None, sinks: tuple[object, ...] = (), **more: str) -> None:
        write = foreach_batch({**self.options, **more}, *(sinks or self.sinks))
        self._finish((self.stream() if frame is None else frame).writeStream.foreachBatch(write))

    def run_source(self, row: str = "struct(id, batch)") -> None:
        """Write with `format("tallystick")`."""
        frame = self.stream().selectExpr("id AS key", "id AS value", f"{row} AS row")
        self.write(frame, topic=self.topic)

    def write(self, frame: DataFrame, **more: str) -> None:
        storage = {f"table.storage.{name}": text for name, text in self.storage_options.items()}
        writer = frame.writeStream.format("tallystick").options(**self.options, table=self.url)
        self._finish(writer.options(**storage, **more))

    def _finish(self, writer: DataStreamWriter) -> None:
        """Write all that is there."""
        checkpointed = writer.option("checkpointLocation", str(self.folder / "checkpoint"))
        checkpointed.trigger(availableNow=True).start().awaitTermination()

    def lose_commit(self, batch: int) -> None:
        """As after an ordinary stop() while the sink commits."""
        for name in (str(batch), f".{batch}.crc"):
            (self.folder / "checkpoint" / "commits" / name).unlink(missing_ok=True)

    def written(self) -> Counter[str]:
        records = committed_records(self.client, self.topic, 2)
        return Counter(record.value.decode() for record in records if record.value is not None)

    def read_table(self) -> pa.Table:
        return pa.table(deltalake.DeltaTable(self.table).scan().read_all())

    def rows(self) -> list[dict[str, object]]:
        found: list[dict[str, object]] = self.read_table().to_pylist()
        return found

    def open_transactions(self) -> list[str]:
        with Admin(self.client) as admin:
            listed = admin.list_transactions(states=("Ongoing",)).all()
        return [each.transactional_id for found in listed.values() for each in found]

    def check(self, *batches: int) -> None:
        """Topic and table have exactly the rows of these batches."""
        wanted = Counter(f"{batch}-{row}" for batch in batches for row in range(ROWS))
        assert self.written() == wanted
        assert Counter(str(row["id"]) for row in self.rows()) == wanted
        assert all(str(row["id"]).startswith(f"{row['batch']}-") for row in self.rows())
        assert self.open_transactions() == []


class IcebergPlace(Place):
    """The same with an Iceberg table, in two buckets of ids."""

    def create_table(self) -> str:
        self.catalog = create_bucketed(self.folder)
        self.storage_options = self.catalog.properties
        self.table = self.catalog.find_file("")
        return self.catalog.url

    def read_table(self) -> pa.Table:
        return self.catalog.read()


class FarPlace(Place):
    """The same with a Delta table in an object store."""

    def create_table(self) -> str:
        fields = [("id", pa.string()), ("batch", pa.int32())]
        self.far = DeltaS3Place(self.folder, pa.schema(fields))
        self.storage_options = self.far.options
        return self.far.url

    def read_table(self) -> pa.Table:
        return self.far.read()


class FarIcebergPlace(IcebergPlace):
    """The same with an Iceberg table whose files are in an object store."""

    def create_table(self) -> str:
        self.catalog = self.far = create_bucketed(self.folder, IcebergS3Place)
        self.storage_options = self.catalog.properties
        return self.catalog.url


@pytest.fixture
def iceberg_place(
    spark: SparkSession, broker: EmbeddedBroker, tmp_path: Path, request: pytest.FixtureRequest
) -> IcebergPlace:
    name = request.node.originalname.removeprefix("test_")[:60]
    return IcebergPlace(spark, broker, tmp_path, name)


@pytest.fixture
def place(
    spark: SparkSession, broker: EmbeddedBroker, tmp_path: Path, request: pytest.FixtureRequest
) -> Place:
    return Place(spark, broker, tmp_path, request.node.originalname.removeprefix("test_")[:60])


@pytest.mark.gate(0)
def test_topic_and_table_together_and_a_repeated_batch_is_skipped(place: Place) -> None:
    """[SPK-22] [LAK-1]"""
    for batch in range(3):
        place.add(batch)
    place.run()
    place.check(0, 1, 2)
    place.lose_commit(2)
    place.run()
    place.check(0, 1, 2)
    place.add(3)
    place.run()
    place.check(0, 1, 2, 3)


def test_the_data_source_writes_topic_and_table(place: Place, capsys: pytest.CaptureFixture[str]) -> None:
    """[SPK-22] [LAK-1] `format("tallystick")` with the option `table` is decided by the table's commit."""
    for batch in range(2):
        place.add(batch)
    place.run_source()
    place.check(0, 1)
    place.lose_commit(1)
    place.run_source()
    place.check(0, 1)
    place.lose_commit(1)
    # A file source counts its files, which is no proof that they are the same.
    with pytest.raises(StreamingQueryException, match="onChangedRows=skip"):
        place.run_source(row="struct(id, 7 AS batch)")
    place.check(0, 1)
    place.run_source()
    place.check(0, 1)  # what was decided stands
    place.add(2)
    with pytest.raises(StreamingQueryException, match="column batch is double in the batch and int in"):
        place.run_source(row="struct(id, 1D AS batch)")
    place.check(0, 1)
    place.run_source()
    place.check(0, 1, 2)
    words = ["transactions", "--bootstrap-server", place.client["bootstrap.servers"], "resolve", "--yes"]
    prefix = place.options["transactional.id.prefix"]
    assert run_command([*words, "--prefix", prefix, "--store", place.url]) == 0
    assert "batch 2 of query" in capsys.readouterr().out


@pytest.mark.gate(0)
def test_the_data_source_writes_a_table_alone_and_no_row_where_it_is_null(place: Place) -> None:
    place.add(0)
    row = "IF(id LIKE '%-3', NULL, named_struct('id', id, 'batch', batch)) AS row"
    place.write(place.stream().selectExpr(row))
    wanted = Counter(f"0-{number}" for number in range(ROWS) if number != 3)
    assert Counter(str(each["id"]) for each in place.rows()) == wanted
    assert place.written() == Counter()


@pytest.mark.gate(0)
def test_the_data_source_replaces_rows_by_key_and_adds_columns(place: Place) -> None:
    place.add(0)
    row = "struct(split_part(id, '-', 2) AS id, batch, 'new' AS more) AS row"
    frame = place.stream().selectExpr(row)
    upsert = {"table.write": "upsert", "table.keys": "id", "table.mergeSchema": "true"}
    place.write(frame, **upsert)
    place.add(1, rows=3)
    place.write(frame, **upsert)
    rows = {str(each["id"]): (each["batch"], each["more"]) for each in place.rows()}
    assert len(place.rows()) == len(rows) == ROWS
    assert rows == {str(n): (int(n < 3), "new") for n in range(ROWS)}


@pytest.mark.gate(0)
def test_a_batch_write_of_no_rows_is_decided(place: Place) -> None:
    """Spark runs no task for a frame without partitions, so the driver votes."""
    rows = place.spark.createDataFrame([], "value string, row struct<id: string, batch: int>")
    options = {**place.options, "topic": place.topic}
    for more in ({}, {"table": place.url}):
        rows.write.format("tallystick").mode("append").options(**options, **more).save()
    assert place.rows() == []
    assert place.written() == Counter()


@pytest.mark.gate(0)
def test_a_batch_write_into_topic_and_table_is_repeated_by_its_name(place: Place) -> None:
    """[SPK-22] The same rows under the same `write.id` write nothing, others are refused."""

    def save(count: int) -> None:
        rows = place.spark.range(count).selectExpr("concat('5-', id) AS id", "5 AS batch")
        frame = rows.selectExpr("id AS value", "struct(id, batch) AS row")
        writer = frame.write.format("tallystick").mode("append").options(**place.options)
        writer.options(**{"topic": place.topic, "table": place.url, "write.id": "w"}).save()

    save(ROWS)
    save(ROWS)
    place.check(5)
    with pytest.raises(PySparkException, match="came again with"):
        save(ROWS - 1)
    place.check(5)


@pytest.mark.gate(0)
@pytest.mark.parametrize("kind", [FarPlace, FarIcebergPlace])
def test_topic_and_table_in_an_object_store(
    spark: SparkSession,
    broker: EmbeddedBroker,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    kind: type[FarPlace | FarIcebergPlace],
) -> None:
    """[SPK-22] [LAK-1] Tasks upload files, the driver commits them; another process completes and sweeps."""
    place = kind(spark, broker, tmp_path, kind.__name__)
    place.add(0)
    place.run_source()
    place.check(0)
    place.add(1)
    place.run()
    place.lose_commit(1)
    place.run()
    place.check(0, 1)
    place.add(2)
    write: Any = replace(
        foreach_batch(place.options, *place.sinks),  # type: ignore[type-var]
        create_lake_context=GoneAfterTheDecision,
    )
    writer = place.stream().writeStream.foreachBatch(write)
    with pytest.raises(StreamingQueryException, match="the driver has gone"):
        writer.option("checkpointLocation", str(place.folder / "checkpoint")).start().awaitTermination()
    assert len(place.rows()) == 3 * ROWS
    prefix = place.options["transactional.id.prefix"]
    words = ["transactions", "--bootstrap-server", place.client["bootstrap.servers"], "resolve"]
    words += ["--prefix", prefix, "--store", place.url, "--yes"]
    options = [f"--storage-option={name}={text}" for name, text in place.storage_options.items()]
    assert run_command([*words, *options]) == 0
    assert "batch 2 of query" in capsys.readouterr().out
    place.check(0, 1, 2)
    storage = place.far.storage
    committed = min(path for path in storage.list("") if path.startswith("tallystick-"))
    orphan = committed.replace("-0.parquet", "-7.parquet")
    sink = storage.create(orphan)
    sink.write(b"left over")
    storage.finish(orphan, sink)
    assert run_command(["lake", "vacuum-orphans", place.url, "--older-than", "0", *options, "--dry-run"]) == 3
    assert orphan in capsys.readouterr().out
    assert run_command(["lake", "vacuum-orphans", place.url, "--older-than", "0", *options, "--yes"]) == 0
    assert orphan not in storage.list("")
    place.check(0, 1, 2)


def test_topic_and_iceberg_table_together(
    iceberg_place: IcebergPlace, capsys: pytest.CaptureFixture[str]
) -> None:
    """[SPK-22] [LAK-1] A repeated batch is skipped; a decided one is completed; orphans are found."""
    place = iceberg_place
    prefix = place.options["transactional.id.prefix"]
    for batch in range(2):
        place.add(batch)
    place.run()
    place.check(0, 1)
    place.lose_commit(1)
    place.run()
    place.check(0, 1)
    double = to_table(place.url, columns={"batch": "1D"}, storage_options=place.storage_options)
    place.add(2)
    with pytest.raises(StreamingQueryException, match="column batch is double in the batch and int in"):
        place.run(sinks=(place.sinks[0], double))
    write: Any = replace(
        foreach_batch(place.options, *place.sinks),  # type: ignore[type-var]
        create_lake_context=GoneAfterTheDecision,
    )
    writer = place.stream().writeStream.foreachBatch(write)
    with pytest.raises(StreamingQueryException, match="the driver has gone"):
        writer.option("checkpointLocation", str(place.folder / "checkpoint")).start().awaitTermination()
    assert len(place.rows()) == 3 * ROWS
    words = ["transactions", "--bootstrap-server", place.client["bootstrap.servers"], "resolve"]
    words += ["--prefix", prefix, "--store", place.url, "--yes"]
    options = [f"--storage-option={name}={text}" for name, text in place.storage_options.items()]
    assert run_command([*words, *options]) == 0
    assert "batch 2 of query" in capsys.readouterr().out
    place.check(0, 1, 2)
    committed = min(place.table.glob("tallystick-*.parquet"))
    orphan = committed.with_name(committed.name.replace("-0.parquet", "-7.parquet"))
    orphan.write_bytes(b"left over")
    assert run_command(["lake", "vacuum-orphans", place.url, "--older-than", "0", *options, "--dry-run"]) == 3
    assert orphan.name in capsys.readouterr().out
    assert run_command(["lake", "vacuum-orphans", place.url, "--older-than", "0", *options, "--yes"]) == 0
    place.check(0, 1, 2)


@pytest.mark.gate(0)
def test_a_task_that_fails_is_tried_again_and_its_files_are_removed(place: Place) -> None:
    """[LAK-4] Its first attempt has written half of its rows when it raises."""
    place.add(0)
    flag = place.folder / "raised"

    def raises_once(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            half = batch.num_rows // 2
            yield batch.slice(0, half)
            if not flag.exists():
                flag.touch()
                raise ValueError("once")
            yield batch.slice(half)

    frame = place.stream()
    place.run(frame.mapInArrow(raises_once, frame.schema))
    assert flag.exists()
    place.check(0)


@pytest.mark.gate(0)
def test_a_replayed_batch_with_other_rows_stops_the_query(place: Place) -> None:
    """[SPK-22]"""
    place.add(0)
    place.run()
    place.lose_commit(0)
    with pytest.raises(StreamingQueryException, match="checkpoint and decisions differ: batch 0"):
        place.run(place.stream().where("id <> '0-3'"))
    place.check(0)


@pytest.mark.gate(0)
def test_columns_that_do_not_fit_are_refused_before_anything_is_written(place: Place) -> None:
    place.add(0)
    sinks = (
        to_topic(place.topic, value="id"),
        to_table(
            place.url,
            columns={"id": "id", "batch": "cast(batch as double)", "more": "row_number", "at": "now()"},
        ),
    )
    with pytest.raises(StreamingQueryException) as raised:
        place.run(sinks=sinks)
    told = str(raised.value)
    assert "column batch is double in the batch and int in the table" in told
    assert "has no column more; it has id, batch. merge_schema adds the column" in told
    assert place.rows() == []
    assert place.written() == Counter()
    place.run()
    place.check(0)


@pytest.mark.gate(0)
def test_a_name_that_is_no_delta_table_is_refused(place: Place) -> None:
    """With a Delta table: test_spark_versions.py, beside the library of Delta that makes it."""
    place.add(0)
    place.spark.sql(f"CREATE TABLE IF NOT EXISTS files (id STRING) USING csv LOCATION '{place.folder}/files'")
    names = {"nothing": "Spark does not find it there", "files": "is no Delta table in Spark's catalog"}
    for name, problem in names.items():
        with pytest.raises(StreamingQueryException, match=f"table delta:default.{name}: .*{problem}"):
            place.run(sinks=(to_topic(place.topic, value="id"), to_table(f"delta:default.{name}")))
    place.spark.sql("DROP TABLE files")
    assert place.written() == Counter()


@pytest.mark.gate(0)
def test_columns_are_added_if_asked(place: Place) -> None:
    place.add(0)
    place.run()
    place.add(1)
    wider = to_table(place.url, columns=["id", "batch", "row_number"], merge_schema=True)
    place.run(sinks=(to_topic(place.topic, key="id", value="id"), wider))
    place.check(0, 1)
    numbers = {(row["batch"], row["row_number"]) for row in place.rows()}
    assert numbers == {(0, None), *((1, row) for row in range(ROWS))}


@pytest.mark.gate(0)
def test_a_table_alone_and_a_batch_without_rows(place: Place) -> None:
    place.add(0)
    place.add(1, rows=0)
    place.add(2)
    place.run(sinks=(to_table(place.url, columns=["id", "batch"]),))
    assert Counter(row["batch"] for row in place.rows()) == {0: ROWS, 2: ROWS}


@pytest.mark.gate(0)
def test_a_column_of_maps(place: Place) -> None:
    """[SPK-22] Spark hashes no map; a batch that was decided is known again by the entries."""
    kind = pa.map_(pa.string(), pa.int32())
    deltalake.DeltaTable.create(place.folder / "maps", schema=pa.schema([("id", pa.string()), ("m", kind)]))
    table = to_table(f"delta:{place.folder / 'maps'}", columns={"id": "id", "m": "map('row', row_number)"})
    place.add(0)
    place.run(sinks=(table,))
    place.lose_commit(0)
    place.run(sinks=(table,))
    rows = pa.table(deltalake.DeltaTable(place.folder / "maps").scan().read_all()).to_pylist()
    assert {row["id"]: dict(row["m"]) for row in rows} == {f"0-{n}": {"row": n} for n in range(ROWS)}
    assert len(rows) == ROWS


@pytest.mark.gate(0)
def test_rows_with_the_same_keys_are_replaced(place: Place) -> None:
    """[LAK-1] [LAK-4] In the commit that decides; two rows of a batch with one key are refused before it."""
    url = f"delta:{place.folder / 'latest'}"
    fields = [("row_number", pa.int32()), ("batch", pa.int32())]
    deltalake.DeltaTable.create(place.folder / "latest", schema=pa.schema(fields), partition_by=["batch"])
    upsert = to_table(url, columns=["row_number", "batch"], write="upsert", keys=["row_number"])
    sinks = (to_topic(place.topic, key="id", value="id"), upsert)
    for batch in range(2):
        place.add(batch)
    place.run(sinks=sinks)
    place.lose_commit(1)
    place.run(sinks=sinks)
    table = deltalake.DeltaTable(place.folder / "latest")
    rows = pa.table(table.scan().read_all()).to_pylist()
    assert Counter((row["row_number"], row["batch"]) for row in rows) == Counter((n, 1) for n in range(ROWS))
    assert place.written().total() == 2 * ROWS
    assert not list((place.folder / "latest").glob("tallystick-*")), "the rows are in the table's own files"
    place.add(2)
    same = place.stream().selectExpr("id", "batch", "row_number % 7 as row_number")
    with pytest.raises(StreamingQueryException, match="several rows of this batch have row_number"):
        place.run(same, sinks=sinks)
    assert place.written().total() == 2 * ROWS
    assert place.open_transactions() == []


def test_definitions_that_no_batch_can_be_decided_by(place: Place) -> None:
    with pytest.raises(BadConfig) as raised:
        foreach_batch(
            place.options,
            to_table(place.url, write="upsert", keys=["id"]),
            to_table("delta:hdfs://elsewhere"),
            database="sqlite:///x.db",
        )
    for sinks in ((), (place.sinks[0],)):
        with pytest.raises(BadConfig, match="table: write to"):
            foreach_batch({**place.options, "table": place.url}, *sinks)
    told = str(raised.value)
    assert "one place decides" in told
    assert "two tables have no commit in common" in told
    assert "or in an object store" in told


# ----------------------------------------------------------------- a driver that ends after the decision


class Unreachable(DatabaseParticipants):
    """The cluster after the decision: no transaction can be committed, and the driver gives up."""

    async def end(self, participants: object, version: int, wish: TxnDecision) -> dict[str, Any]:
        raise InDoubt("the driver has gone")

    async def reclaim(self, owner: object) -> None:
        return None


class GoneAfterTheDecision(LakeSinkContext):
    def create_ports(self, cluster: Any) -> tuple[ParticipantsPort, DecisionLogPort]:
        participants, log = super().create_ports(cluster)
        return Unreachable(participants, self.lake_row), log


def test_decided_and_not_completed_the_next_start_or_resolve_completes_it(
    place: Place, capsys: pytest.CaptureFixture[str]
) -> None:
    """[LAK-1] [SPK-21] The table has the batch, readers of the topic do not; then they do."""
    place.add(0)
    prefix = place.options["transactional.id.prefix"]
    write: Any = foreach_batch(place.options, *place.sinks)
    write = replace(write, create_lake_context=GoneAfterTheDecision)
    writer = place.stream().writeStream.foreachBatch(write)
    with pytest.raises(StreamingQueryException, match="the driver has gone"):
        writer.option("checkpointLocation", str(place.folder / "checkpoint")).start().awaitTermination()
    assert len(place.rows()) == ROWS
    assert place.written() == Counter()
    assert len(place.open_transactions()) == 2
    assert resolve(prefix, place.client, dry_run=True).undecided_ids == (), "no orphans for other readers"
    look = resolve_rows(prefix, place.client, place.url, dry_run=True)
    assert [outcome.name for outcome in look.outcomes.values()] == ["OPEN", "OPEN"]
    words = ["transactions", "--bootstrap-server", place.client["bootstrap.servers"], "resolve"]
    assert run_command([*words, "--prefix", prefix, "--store", place.url, "--yes"]) == 0
    assert "batch 0 of query" in capsys.readouterr().out
    place.check(0)
    place.run()
    place.check(0)
    place.add(1)
    place.run()
    place.check(0, 1)
    assert resolve_rows(prefix, place.client, place.url, retire=True).outcomes == {}
    assert resolve_rows(prefix, place.client, place.url).decision is None


@pytest.mark.gate(0)
def test_orphans_are_shown_and_then_removed(place: Place, capsys: pytest.CaptureFixture[str]) -> None:
    """[LAK-3] A failed batch whose files could not be removed, by name: another claim has followed it."""
    place.add(0)
    place.run()
    committed = min(place.table.glob("tallystick-*.parquet"))
    orphan = place.table / committed.name.replace("-0.parquet", "-7.parquet")
    orphan.write_bytes(b"left over")
    words = ["lake", "vacuum-orphans", place.url, "--older-than", "0"]
    assert run_command([*words, "--dry-run"]) == 0
    assert "may still be decided" in capsys.readouterr().out, "its owner has the prefix until the next claim"
    place.add(1)
    place.run()
    assert run_command([*words, "--dry-run"]) == 3
    assert orphan.name in capsys.readouterr().out
    assert orphan.exists()
    assert run_command([*words, "--prefix", "another", "--yes"]) == 0
    assert orphan.exists()
    assert run_command([*words, "--yes"]) == 0
    assert not orphan.exists()
    place.check(0, 1)


@pytest.mark.gate(0)
def test_a_pipeline_with_a_lake_table(place: Place) -> None:
    """[PIP-1] As a TOML file defines it: once, and again with what came since."""
    servers = place.client["bootstrap.servers"]
    made = Definition(
        name="lake",
        checkpoint=str(place.folder / "state"),
        kafka=place.client,
        sources=(SourceDefinition(name="rows", topics=("lake.in",), schema="id STRING, batch INT"),),
        transforms=(Transform(name="columns", sql="SELECT id, batch FROM rows"),),
        outputs=(
            OutputDefinition(
                name="all",
                view="columns",
                sinks=(TopicSink(topic=place.topic, value="id"), TableSink(table=place.url)),
            ),
        ),
    )
    with Admin(place.client) as admin:
        admin.create_topics([NewTopic(name="lake.in", partitions=1)]).all()
    (output,) = made.outputs
    unknown = replace(output, sinks=(TableSink(table="delta:default.nothing"),))
    with pytest.raises(UnusableTable, match=r"delta:default\.nothing: .*Spark does not find it there"):
        Pipeline(replace(made, outputs=(unknown,))).start(once=True, spark=place.spark)
    for batch in range(2):
        with Producer({"bootstrap.servers": servers}) as producer:
            for row in range(ROWS):
                producer.send("lake.in", json.dumps({"id": f"{batch}-{row}", "batch": batch}).encode())
        with Pipeline(made).start(once=True, spark=place.spark) as running:
            assert running.wait(timeout_s=120)
    place.check(0, 1)
