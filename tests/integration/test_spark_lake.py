"""Topics and a Delta table in one decision, under real Spark: our broker, and a table on the local disk."""

import os
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark import cloudpickle
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from tests.support.reading import committed_records
from tests.support.spark_together_child import lines

from tallystick import Admin
from tallystick.admin.topics import NewTopic
from tallystick.kernel.settings import BadConfig
from tallystick.spark import foreach_batch, to_table, to_topic
from tallystick.testing import EmbeddedBroker

deltalake = pytest.importorskip("deltalake", reason="needs the extra delta")

pytestmark = [pytest.mark.slow, pytest.mark.server]

cloudpickle.register_pickle_by_value(sys.modules[__name__])

ROWS = 40
BEGAN_S = 1_700_000_000


@pytest.fixture(scope="module")
def broker() -> Iterator[EmbeddedBroker]:
    with EmbeddedBroker() as running:
        yield running


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
        deltalake.DeltaTable.create(
            self.table,
            schema=pa.schema([("id", pa.string()), ("batch", pa.int32())]),
            partition_by=["batch"],
        )
        self.url = f"delta:{self.table}"
        self.sinks = to_topic(name, key="id", value="id"), to_table(self.url, columns=["id", "batch"])
        (folder / "in").mkdir()
        with Admin(self.client) as admin:
            admin.create_topics([NewTopic(name=name, partitions=2)]).all()

    def add(self, batch: int, rows: int = ROWS) -> None:
        path = self.folder / "in" / f"{batch}.txt"
        path.write_text("".join(f"{batch}-{row}\n" for row in range(rows)))
        os.utime(path, (path.stat().st_mtime, BEGAN_S + batch))  # Spark takes the older one first

    def stream(self) -> DataFrame:
        return lines(self.spark, self.folder)

    def run(self, frame: DataFrame | None = None, sinks: tuple[object, ...] = (), **more: str) -> None:
        write = foreach_batch({**self.options, **more}, *(sinks or self.sinks))
        writer = (self.stream() if frame is None else frame).writeStream.foreachBatch(write)
        checkpointed = writer.option("checkpointLocation", str(self.folder / "checkpoint"))
        checkpointed.trigger(availableNow=True).start().awaitTermination()

    def lose_commit(self, batch: int) -> None:
        """As after an ordinary stop() while the sink commits."""
        for name in (str(batch), f".{batch}.crc"):
            (self.folder / "checkpoint" / "commits" / name).unlink(missing_ok=True)

    def written(self) -> Counter[str]:
        records = committed_records(self.client, self.topic, 2)
        return Counter(record.value.decode() for record in records if record.value is not None)

    def rows(self) -> list[dict[str, object]]:
        found: list[dict[str, object]] = pa.table(
            deltalake.DeltaTable(self.table).scan().read_all()
        ).to_pylist()
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


@pytest.fixture
def place(
    spark: SparkSession, broker: EmbeddedBroker, tmp_path: Path, request: pytest.FixtureRequest
) -> Place:
    return Place(spark, broker, tmp_path, request.node.originalname.removeprefix("test_")[:60])


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


def test_a_replayed_batch_with_other_rows_stops_the_query(place: Place) -> None:
    """[SPK-22]"""
    place.add(0)
    place.run()
    place.lose_commit(0)
    with pytest.raises(StreamingQueryException, match="checkpoint and decisions differ: batch 0"):
        place.run(place.stream().where("id <> '0-3'"))
    place.check(0)


def test_columns_that_do_not_fit_are_refused_before_anything_is_written(place: Place) -> None:
    place.add(0)
    sinks = (
        to_topic(place.topic, value="id"),
        to_table(place.url, columns={"id": "id", "batch": "cast(batch as double)", "more": "row_number"}),
    )
    with pytest.raises(StreamingQueryException) as raised:
        place.run(sinks=sinks)
    told = str(raised.value)
    assert "column batch is double in the batch and int in the table" in told
    assert "has no column more; it has id, batch. merge_schema=True adds the column" in told
    assert place.rows() == []
    assert place.written() == Counter()
    place.run()
    place.check(0)


def test_columns_are_added_if_asked(place: Place) -> None:
    place.add(0)
    place.run()
    place.add(1)
    wider = to_table(place.url, columns=["id", "batch", "row_number"], merge_schema=True)
    place.run(sinks=(to_topic(place.topic, key="id", value="id"), wider))
    place.check(0, 1)
    numbers = {(row["batch"], row["row_number"]) for row in place.rows()}
    assert numbers == {(0, None), *((1, row) for row in range(ROWS))}


def test_a_table_alone_and_a_batch_without_rows(place: Place) -> None:
    place.add(0)
    place.add(1, rows=0)
    place.add(2)
    place.run(sinks=(to_table(place.url, columns=["id", "batch"]),))
    assert Counter(row["batch"] for row in place.rows()) == {0: ROWS, 2: ROWS}


def test_definitions_that_no_batch_can_be_decided_by(place: Place) -> None:
    with pytest.raises(BadConfig) as raised:
        foreach_batch(
            place.options,
            to_table(place.url, write="upsert", keys=["id"]),
            to_table("delta:/elsewhere"),
            database="sqlite:///x.db",
        )
    told = str(raised.value)
    assert "one place decides" in told
    assert "two tables have no commit in common" in told
    assert "can only be appended to yet" in told
