"""Topics and tables in one decision, under real Spark: SQLite and PostgreSQL, our broker."""

import os
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark import cloudpickle
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from sqlalchemy import Engine, create_engine, make_url, text
from sqlalchemy.pool import NullPool
from tests.support.effort import LONG
from tests.support.reading import committed_records
from tests.support.servers import PostgreSQL
from tests.support.spark_together_child import lines
from tests.support.spark_together_child import sinks as sinks_of

from tallystick import Admin
from tallystick.admin.topics import NewTopic
from tallystick.kernel.settings import BadConfig
from tallystick.spark import foreach_batch, resolve, resolve_rows, to_table, to_topic
from tallystick.spark.sink.driver.projection import project_sinks
from tallystick.spark.sink.task.combined_attempt import HASH_COLUMN
from tallystick.testing import EmbeddedBroker

pytestmark = [pytest.mark.slow, pytest.mark.server, pytest.mark.broker(in_process=False)]

cloudpickle.register_pickle_by_value(sys.modules[__name__])

ROOT = Path(__file__).parents[3]
ROWS = 40
BEGAN_S = 1_700_000_000


class Place:
    """A topic, two tables, a prefix and a folder of one test, and a stream of one file a batch."""

    def __init__(
        self, spark: SparkSession, broker: EmbeddedBroker, folder: Path, name: str, url: str
    ) -> None:
        self.spark, self.folder, self.topic, self.url = spark, folder, name, url
        self.client = {"bootstrap.servers": broker.bootstrap_servers}
        self.options = {
            "kafka.bootstrap.servers": broker.bootstrap_servers,
            "transactional.id.prefix": f"test/{name}",
        }
        self.engine: Engine = create_engine(make_url(url), poolclass=NullPool)
        with self.engine.begin() as connection:
            connection.execute(
                text("CREATE TABLE every_row (id VARCHAR(40) PRIMARY KEY, batch INTEGER NOT NULL)")
            )
            connection.execute(text("CREATE TABLE latest (row_number INTEGER PRIMARY KEY, batch INTEGER)"))
        (folder / "in").mkdir()
        with Admin(self.client) as admin:
            admin.create_topics([NewTopic(name=name, partitions=2)]).all()

    def add(self, batch: int, rows: int = ROWS) -> None:
        lines = "".join(f"{batch}-{row}\n" for row in range(rows))
        path = self.folder / "in" / f"{batch}.txt"
        path.write_text(lines)
        os.utime(path, (path.stat().st_mtime, BEGAN_S + batch))  # Spark takes the older one first

    def stream(self) -> DataFrame:
        return lines(self.spark, self.folder)

    def run(self, frame: DataFrame | None = None, sinks: tuple[object, ...] = (), **more: str) -> None:
        write = foreach_batch({**self.options, **more}, *(sinks or sinks_of(self.topic)), database=self.url)
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

    def select(self, statement: str) -> list[tuple[object, ...]]:
        with self.engine.connect() as connection:
            return [tuple(row) for row in connection.execute(text(statement))]

    def open_transactions(self) -> list[str]:
        with Admin(self.client) as admin:
            listed = admin.list_transactions(states=("Ongoing",)).all()
        return [each.transactional_id for found in listed.values() for each in found]

    def check(self, *batches: int) -> None:
        """Topic and tables have exactly the rows of these batches."""
        wanted = Counter(f"{batch}-{row}" for batch in batches for row in range(ROWS))
        assert self.written() == wanted
        assert Counter(str(row[0]) for row in self.select("SELECT id FROM every_row")) == wanted
        assert self.select("SELECT DISTINCT batch FROM latest") == [(max(batches),)]
        assert self.select("SELECT count(*) FROM latest") == [(ROWS,)]
        assert self.open_transactions() == []


@pytest.fixture(params=["sqlite", "postgresql"])
def place(
    spark: SparkSession, broker: EmbeddedBroker, tmp_path: Path, request: pytest.FixtureRequest
) -> Place:
    if request.param == "sqlite":
        url = f"sqlite:///{tmp_path / 'rows.db'}"
    else:
        server: PostgreSQL = request.getfixturevalue("postgresql")
        url = str(server.url(server.new_database())).replace("postgresql://", "postgresql+psycopg://")
    name = f"{request.param}.{request.node.originalname.removeprefix('test_')}"[:60]
    return Place(spark, broker, tmp_path, name, url)


@pytest.mark.gate(0)
def test_topic_and_tables_together_and_a_repeated_batch_is_skipped(place: Place) -> None:
    """[SPK-22] [SPK-40]"""
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


# Spark is started once more for the one that is killed: on PostgreSQL in the long form.
@pytest.mark.gate(0)
@pytest.mark.parametrize("place", ["sqlite", "postgresql"] if LONG else ["sqlite"], indirect=True)
def test_killed_between_the_decision_and_the_first_end(place: Place) -> None:
    """[SPK-40] [SPK-21] kill -9: the table has the batch, readers of the topic do not; then they do."""
    for batch in range(2):
        place.add(batch)
    prefix = place.options["transactional.id.prefix"]
    arguments = [place.options["kafka.bootstrap.servers"], prefix, place.topic, place.url, str(place.folder)]
    child = subprocess.run(
        [sys.executable, "-m", "tests.support.spark_together_child", *arguments],
        cwd=ROOT,
        capture_output=True,
        timeout=240,
        check=False,
    )
    assert child.returncode == -signal.SIGKILL, child.stderr.decode()[-3000:]
    assert place.select("SELECT DISTINCT batch FROM every_row") == [(0,)]
    assert place.written() == Counter()
    assert len(place.open_transactions()) == 2
    looked = resolve_rows(prefix, place.client, place.url, dry_run=True)
    assert [found.name for found in looked.outcomes.values()] == ["OPEN", "OPEN"]
    assert resolve(prefix, place.client, dry_run=True).undecided_ids == (), (
        "nobody else takes them for orphans"
    )
    place.run()
    place.check(0, 1)
    assert resolve_rows(prefix, place.client, place.url, retire=True).outcomes == {}
    assert resolve_rows(prefix, place.client, place.url).decision is None


@pytest.mark.gate(0)
def test_a_task_that_fails_is_tried_again_and_what_it_staged_is_not_moved(place: Place) -> None:
    """[SPK-41] Its first attempt has staged and sent half of its rows when it raises."""
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
def test_a_batch_that_fails_leaves_nothing(place: Place) -> None:
    """[SPK-40] Two rows of a batch with one key: the table refuses, and the topic gets nothing."""
    place.add(0)
    same = place.stream().selectExpr("id", "batch", "row_number % 7 as row_number")
    with pytest.raises(StreamingQueryException, match="several rows of this batch have row_number"):
        place.run(same)
    assert place.written() == Counter()
    assert place.select("SELECT * FROM every_row") == []
    assert place.open_transactions() == []
    place.run()
    place.check(0)


@pytest.mark.parametrize("place", ["sqlite"], indirect=True)
def test_a_replayed_batch_that_was_computed_anew_stands_as_it_was_decided(place: Place) -> None:
    """[SPK-22] A file source counts its files, which is no proof that they are the same: its user says so."""
    where = {"checkpointLocation": str(place.folder / "checkpoint")}
    place.add(0)
    place.run(**where)
    place.lose_commit(0)
    with pytest.raises(StreamingQueryException, match="onChangedRows=skip"):
        place.run(place.stream().where("id <> '0-3'"), **where)
    place.check(0)
    place.run(place.stream().where("id <> '0-3'"), onChangedRows="skip", **where)
    place.check(0)
    place.lose_commit(0)
    with pytest.raises(StreamingQueryException, match="floating-point numbers added in another order"):
        place.run(place.stream().where("id <> '0-3'"), onChangedRows="fail", **where)


class TwoTopics:
    """A query with two `foreach_batch` functions, each of one topic."""

    def __init__(self, place: Place, *prefixes: str) -> None:
        self.place = place
        self.topics = [f"{place.topic}.{number}" for number in range(2)]
        with Admin(place.client) as admin:
            admin.create_topics([NewTopic(name=name, partitions=1) for name in self.topics]).all()
        where = {"checkpointLocation": str(place.folder / "checkpoint")}
        self.writes = [
            foreach_batch({**place.options, **where, "transactional.id.prefix": prefix, "topic": topic})
            for prefix, topic in zip(prefixes, self.topics, strict=True)
        ]

    def run(self) -> None:
        def write(frame: DataFrame, number: int) -> None:
            for each in self.writes:
                each(frame.selectExpr("id AS value"), number)

        writer = self.place.stream().writeStream.foreachBatch(write)
        checkpointed = writer.option("checkpointLocation", str(self.place.folder / "checkpoint"))
        checkpointed.trigger(availableNow=True).start().awaitTermination()

    def count(self) -> list[int]:
        return [len(committed_records(self.place.client, topic, 1)) for topic in self.topics]


@pytest.mark.gate(0)
@pytest.mark.parametrize("place", ["sqlite"], indirect=True)
def test_two_functions_with_prefixes_of_their_own(place: Place) -> None:
    """[SPK-29] Each has a note of its own in the checkpoint."""
    two = TwoTopics(place, "two.a", "two.b")
    place.add(0)
    two.run()
    place.lose_commit(0)
    two.run()
    place.add(1)
    two.run()
    assert two.count() == [2 * ROWS, 2 * ROWS]


@pytest.mark.gate(0)
@pytest.mark.parametrize("place", ["sqlite"], indirect=True)
def test_two_functions_under_one_prefix_are_refused(place: Place) -> None:
    """[SPK-22] What was decided for one topic was not written to the other."""
    two = TwoTopics(place, "shared", "shared")
    place.add(0)
    with pytest.raises(
        StreamingQueryException, match=f"decided batch 0 of query .* for topic {two.topics[0]}"
    ):
        two.run()
    assert two.count() == [ROWS, 0]


@pytest.mark.gate(0)
def test_expressions_and_state(place: Place) -> None:
    """Each sink its own rows and columns, of a stateful query; a batch without rows is a batch."""
    place.add(0)
    place.add(1, rows=0)
    place.add(2)
    counted = place.stream().groupBy("row_number").count()
    sinks = (
        to_topic(place.topic, value="concat(row_number, ':', count)", where="row_number < 3"),
        to_table(
            "latest",
            columns={"row_number": "row_number", "batch": "cast(count as int)"},
            write="upsert",
            keys=["row_number"],
        ),
    )
    write = foreach_batch(place.options, *sinks, database=place.url)
    for _ in range(2):
        writer = counted.writeStream.foreachBatch(write).outputMode("update")
        checkpointed = writer.option("checkpointLocation", str(place.folder / "checkpoint"))
        checkpointed.trigger(availableNow=True).start().awaitTermination()
        place.lose_commit(2)
    assert place.written() == Counter(f"{row}:{count}" for row in range(3) for count in (1, 2))
    assert place.select("SELECT DISTINCT batch FROM latest") == [(2,)]


@pytest.mark.gate(1)
def test_all_problems_of_expressions_at_once(place: Place) -> None:
    place.add(0)
    sinks = (
        to_topic(place.topic, key="batch", where="nothing > 1"),
        to_table("every_row", columns={"id": "id", "batch": "no_function(id)"}),
    )
    with pytest.raises(StreamingQueryException) as raised:
        place.run(sinks=sinks)
    told = str(raised.value)
    assert "topic " + place.topic + ": key: 'batch' is int, and must be string or binary" in told
    assert "where: [UNRESOLVED_COLUMN" in told
    assert "table every_row: column batch: [UNRESOLVED_ROUTINE]" in told


@pytest.mark.gate(0)
def test_headers_that_are_not_read_cost_nothing_and_change_no_hash(spark: SparkSession) -> None:
    """[SPK-22] A batch that was decided when its records had a column of null headers is still the same."""
    frame = spark.sql("SELECT string(id) AS word FROM range(5)")
    bare = project_sinks(frame, [to_topic("t", key="word", value="word")])
    nulls = "cast(null AS array<struct<key:string,value:binary>>)"
    with_nulls = project_sinks(frame, [to_topic("t", key="word", value="word", headers=nulls)])
    assert bare.select("sink_0.*").columns == ["key", "value", HASH_COLUMN]
    hashes = [
        {row[0] for row in each.select(f"sink_0.{HASH_COLUMN}").collect()} for each in (bare, with_nulls)
    ]
    assert len(hashes[0]) == 5
    assert hashes[0] == hashes[1]


def test_a_map_has_one_hash_in_any_order(spark: SparkSession) -> None:
    """[SPK-22] The entries of a map that is collected from other rows come in another order next time."""
    maps = ["map('a', 1, 'b', null)", "map('b', null, 'a', 1)", "map('a', null, 'b', 1)", "map()", "null"]
    rows = ", ".join(f"(cast({each} AS map<string, int>))" for each in maps)
    frame = spark.sql(f"SELECT * FROM VALUES {rows} AS t(m)").coalesce(1)
    result = project_sinks(frame, [to_table("t", columns=["m"])]).select("sink_0.*").collect()
    first, reordered, *others = (row[HASH_COLUMN] for row in result)
    assert first == reordered
    assert len({first, *others}) == 4
    assert [row["m"] for row in result][-1] is None


def test_a_map_inside_another_column_is_refused_by_its_name(spark: SparkSession) -> None:
    """Spark has no hash of it at any depth, and would say so for the whole struct."""
    columns = {
        "ok": "map('a', 1)",
        "deep": "struct(array(map('a', 1)))",
        "values": "map('a', map('b', 1))",
        "any": "struct(parse_json('1'))",
    }
    with pytest.raises(BadConfig) as refusal:
        project_sinks(spark.sql("SELECT 1 AS id"), [to_table("t", columns=columns)])
    text = str(refusal.value)
    for name in ("deep", "values", "any"):
        assert f"table t: column {name}: a map or variant inside" in text
    assert len(text.splitlines()) == 3


def test_the_columns_of_a_batch_are_checked_together(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Spark analyses the plan once for them, however many there are; one by one only to name all problems."""
    frame = spark.sql("SELECT 1 AS id")
    selections: list[int] = []
    select = type(frame).select

    def count_select(self: DataFrame, *columns: object) -> DataFrame:
        selections.append(len(columns))
        return select(self, *columns)

    monkeypatch.setattr(type(frame), "select", count_select)
    columns = {f"c{n}": f"id + {n}" for n in range(20)}
    project_sinks(frame, [to_table("delays", columns=columns), to_topic("t", key="string(id)")])
    assert selections == [21, 2, 2]

    broken = {**columns, "one": "nowhere", "two": "nothing + 1"}
    with pytest.raises(BadConfig) as refusal:
        project_sinks(frame, [to_table("delays", columns=broken)])
    assert len(str(refusal.value).splitlines()) == 2
