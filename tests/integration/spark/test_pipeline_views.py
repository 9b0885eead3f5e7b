"""The views of a pipeline in a real Spark: what fits is a row, what does not is never lost."""

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import Row, SparkSession

from tallystick import Producer
from tallystick.kernel.settings import BadConfig
from tallystick.pipeline.definition import (
    Definition,
    Lookup,
    OnMalformed,
    OutputDefinition,
    SourceDefinition,
    TopicSink,
    Transform,
    ValueFormat,
    Watermark,
)
from tallystick.pipeline.views import declare_views, malformed_view_name
from tallystick.testing import EmbeddedBroker

pytestmark = [pytest.mark.slow, pytest.mark.server, pytest.mark.broker(in_process=False)]

FLIGHTS = SourceDefinition(name="flights", topics=("flights",), schema="flight STRING, delay INT")


def declare(
    spark: SparkSession, broker: EmbeddedBroker, source: SourceDefinition, *more: Lookup | Transform
) -> None:
    definition = Definition(
        name="p",
        checkpoint="c",
        sources=(source,),
        lookups=tuple(part for part in more if isinstance(part, Lookup)),
        transforms=tuple(part for part in more if isinstance(part, Transform)),
        outputs=(OutputDefinition(name="o", view=source.name, sinks=(TopicSink(topic="out"),)),),
    )
    declare_views(spark, definition, {"bootstrap.servers": broker.bootstrap_servers})


def send(broker: EmbeddedBroker, topic: str, *values: bytes | None) -> None:
    with Producer({"bootstrap.servers": broker.bootstrap_servers}) as producer:
        for value in values:
            producer.send(topic, value, key=b"k", partition=0)


def rows_of(spark: SparkSession, view: str, select: str = "*") -> list[Row]:
    """What a streaming query over the view has written when everything there is has been read."""
    query = (
        spark.table(view)
        .selectExpr(select)
        .writeStream.format("memory")
        .queryName("seen")
        .trigger(availableNow=True)
    )
    query.start().awaitTermination()
    return spark.table("seen").collect()


@pytest.mark.gate(0)
def test_a_row_has_the_fields_of_its_value_and_where_it_came_from(
    spark: SparkSession, broker: EmbeddedBroker
) -> None:
    send(broker, "fields", b'{"flight": "UA1", "delay": 7, "more": []}', b"{}")
    declare(spark, broker, SourceDefinition(name="fields", topics=("fields",), schema=FLIGHTS.schema))
    first, second = sorted(rows_of(spark, "fields"), key=lambda row: row._offset)
    assert first.asDict().keys() == {
        "flight",
        "delay",
        "_key",
        "_topic",
        "_partition",
        "_offset",
        "_timestamp",
    }
    assert (first.flight, first.delay, first._topic, first._offset) == ("UA1", 7, "fields", 0)
    assert (second.flight, second.delay, bytes(second._key)) == (None, None, b"k")


# What stops a query and what is a dead letter is one condition; all of it is tried in one query below.
BAD = (
    *(b"no json", b'{"delay": "late"}', b'{"flight": "\xff"}', b'"text"', b"", None),
    *(b'{"flight": "a"} {"flight": "b"}', b'{"flight": "a"} garbage', b'{"flight": "a"}, {"flight": "b"}'),
    *(b"{'flight': 'a'}", b'{"flight": "a"}]', b'{"flight": "a"}, {}] garbage', b'{"flight": "a"}}'),
)
# What follows is white space, and NaN is what Python writes.
GOOD = (
    b'{"flight": "UA2"}',
    b' {"flight": "UA2", "more": {"a": ["]}"]}}\r\n ',
    b'{"flight": "UA2", "x": NaN}',
)


@pytest.mark.gate(0)
@pytest.mark.parametrize("bad", [BAD[1], None])
def test_a_value_that_does_not_fit_stops_the_query_and_is_named(
    spark: SparkSession, broker: EmbeddedBroker, bad: bytes | None
) -> None:
    topic = f"bad-{BAD.index(bad)}"
    send(broker, topic, b"{}", bad)
    declare(spark, broker, SourceDefinition(name="bad", topics=(topic,), schema=FLIGHTS.schema))
    with pytest.raises(
        StreamingQueryException, match=f"the value at {topic}-0 offset 1 does not fit the schema"
    ):
        rows_of(spark, "bad", "1")  # although no field of the value is asked for


@pytest.mark.gate(0)
def test_a_dead_letter_is_the_record_as_it_was(spark: SparkSession, broker: EmbeddedBroker) -> None:
    send(broker, "mixed", *BAD, *GOOD)
    source = SourceDefinition(
        name="mixed",
        topics=("mixed",),
        schema=FLIGHTS.schema,
        malformed=OnMalformed.DEAD_LETTER,
        dead_letter="mixed.bad",
    )
    declare(spark, broker, source)
    assert [row.flight for row in rows_of(spark, "mixed")] == ["UA2"] * len(GOOD)
    dead = sorted(rows_of(spark, malformed_view_name(source)), key=lambda row: row.offset)
    assert [None if row.value is None else bytes(row.value) for row in dead] == list(BAD)
    assert {(bytes(row.key), row.topic, row.partition) for row in dead} == {(b"k", "mixed", 0)}


@pytest.mark.gate(0)
def test_text_and_bytes_have_one_column(spark: SparkSession, broker: EmbeddedBroker) -> None:
    send(broker, "lines", "ä".encode())
    declare(spark, broker, SourceDefinition(name="lines", topics=("lines",), format=ValueFormat.STRING))
    assert [row.value for row in rows_of(spark, "lines")] == ["ä"]
    declare(spark, broker, SourceDefinition(name="raw", topics=("lines",), format=ValueFormat.BYTES))
    assert [bytes(row.value) for row in rows_of(spark, "raw")] == ["ä".encode()]


def test_transforms_build_on_sources_lookups_and_each_other(
    spark: SparkSession, broker: EmbeddedBroker, tmp_path_factory: pytest.TempPathFactory
) -> None:
    send(broker, "joined", b'{"flight": "UA1", "delay": 7}', b'{"flight": "DL1", "delay": 1}')
    path = tmp_path_factory.mktemp("lookup") / "airlines.csv"
    path.write_text("code,name\nUA,United\nDL,Delta\n")
    declare(
        spark,
        broker,
        SourceDefinition(name="joined", topics=("joined",), schema=FLIGHTS.schema, watermark=None),
        Lookup(name="airlines", format="csv", path=str(path), options={"header": "true"}),
        Transform(name="late", sql="SELECT * FROM joined WHERE delay > 5"),
        Transform(name="named", sql="SELECT name FROM late JOIN airlines ON code = left(flight, 2)"),
    )
    assert [row.name for row in rows_of(spark, "named")] == ["United"]


@pytest.mark.gate(1)
@pytest.mark.parametrize(
    ("more", "path"),
    [
        (Transform(name="t", sql="SELECT nothing FROM lines2"), r"transforms\[0\].sql: .*nothing"),
        (Transform(name="t", sql="SELEC 1"), r"transforms\[0\].sql: .*SELEC"),
        (Lookup(name="l", format="nosuch"), r"lookups\.l: .*nosuch"),
    ],
)
def test_what_spark_refuses_has_the_path_of_its_key(
    spark: SparkSession, broker: EmbeddedBroker, more: Lookup | Transform, path: str
) -> None:
    send(broker, "lines2", b"x")
    source = SourceDefinition(name="lines2", topics=("lines2",), format=ValueFormat.STRING)
    with pytest.raises(BadConfig, match=path):
        declare(spark, broker, source, more)


def test_a_schema_or_watermark_that_is_none_is_told_with_its_source(
    spark: SparkSession, broker: EmbeddedBroker
) -> None:
    send(broker, "flights", b"{}")
    with pytest.raises(BadConfig, match=r"sources\.wrong: "):
        declare(spark, broker, SourceDefinition(name="wrong", topics=("flights",), schema="flight NOTYPE"))
    late = Watermark(column="nocolumn", delay="1 minute")
    with pytest.raises(BadConfig, match=r"sources\.wrong: .*nocolumn"):
        declare(
            spark, broker, SourceDefinition(name="wrong", topics=("flights",), schema="a INT", watermark=late)
        )
