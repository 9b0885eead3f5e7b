"""Topics and tables in one decision, under real Spark: SQLite and PostgreSQL, our broker."""

import os
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark import cloudpickle
from pyspark.sql import DataFrame, SparkSession
from servers import PostgreSQL
from sqlalchemy import Engine, create_engine, make_url, text
from sqlalchemy.pool import NullPool

from tallystick import Admin, Consumer, TopicPartition
from tallystick.admin.topics import NewTopic
from tallystick.spark import foreach_batch, to_table, to_topic
from tallystick.testing import EmbeddedBroker

pytestmark = [pytest.mark.slow, pytest.mark.server]

cloudpickle.register_pickle_by_value(sys.modules[__name__])

ROWS = 40
BEGAN_S = 1_700_000_000


@pytest.fixture(scope="module")
def broker() -> Iterator[EmbeddedBroker]:
    with EmbeddedBroker() as running:
        yield running


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
        lines = self.spark.readStream.option("maxFilesPerTrigger", 1).text(str(self.folder / "in"))
        return lines.repartition(2).selectExpr(
            "value as id",
            "cast(split_part(value, '-', 1) as int) as batch",
            "cast(split_part(value, '-', 2) as int) as row_number",
        )

    @property
    def sinks(self) -> tuple[object, ...]:
        return (
            to_topic(self.topic, key="id", value="id"),
            to_table("every_row", columns=["id", "batch"]),
            to_table("latest", columns=["row_number", "batch"], write="upsert", keys=["row_number"]),
        )

    def run(self, frame: DataFrame | None = None, sinks: tuple[object, ...] = (), **more: str) -> None:
        write = foreach_batch({**self.options, **more}, *(sinks or self.sinks), database=self.url)
        writer = (self.stream() if frame is None else frame).writeStream.foreachBatch(write)
        checkpointed = writer.option("checkpointLocation", str(self.folder / "checkpoint"))
        checkpointed.trigger(availableNow=True).start().awaitTermination()

    def lose_commit(self, batch: int) -> None:
        """As after an ordinary stop() while the sink commits."""
        for name in (str(batch), f".{batch}.crc"):
            (self.folder / "checkpoint" / "commits" / name).unlink(missing_ok=True)

    def written(self) -> Counter[str]:
        found: Counter[str] = Counter()
        both = [TopicPartition(self.topic, 0), TopicPartition(self.topic, 1)]
        with Admin(self.client) as admin:
            ends = admin.list_offsets(dict.fromkeys(both, -1), read_committed=True).all()
        with Consumer({**self.client, "isolation.level": "read_committed"}) as consumer:
            consumer.assign(both)
            for at in both:
                consumer.seek(at, 0)
            while any(consumer.position(at) < end.offset for at, end in ends.items() if end is not None):
                found.update(
                    record.value.decode() for record in consumer.poll(5.0) if record.value is not None
                )
        return found

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
    name = "".join(each if each.isalnum() else "." for each in request.node.name.removeprefix("test_"))[:60]
    return Place(spark, broker, tmp_path, name.strip("."), url)


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
