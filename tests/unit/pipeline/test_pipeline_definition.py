"""A pipeline's file: what it is read into, and everything that is said about a wrong one at once."""

import pytest

from tallystick.kernel.settings import BadConfig
from tallystick.pipeline.definition import (
    Definition,
    Lookup,
    OnMalformed,
    OutputDefinition,
    OutputMode,
    OwnBrokerDefinition,
    SourceDefinition,
    TableSink,
    TableWrite,
    TopicSink,
    Transform,
    ValueFormat,
    Watermark,
)
from tallystick.pipeline.definition_toml import parse_definition

SMALLEST = """
name = "copy"
checkpoint = "state"
[sources.lines]
topics = "in"
format = "string"
[outputs.all]
from = "lines"
[[outputs.all.sinks]]
topic = "out"
"""

WHOLE = """
name = "delays"
checkpoint = "s3a://bucket/delays"
trigger = "5 seconds"
modes = ["2pc", "resume"]

[kafka]
"bootstrap.servers" = "k1:9092,k2:9092"
"fetch.max.bytes" = 1000000

[spark]
"spark.master" = "local[2]"
spark.sql.ansi.enabled = true

[sources.flights]
pattern = "flights-.*"
starting = "latest"
schema = "flight STRING, time TIMESTAMP"
malformed = "dead-letter"
dead-letter = "flights.bad"
watermark = { column = "time", delay = "10 minutes" }
options = { maxOffsetsPerTrigger = 1000 }

[lookups.airlines]
format = "csv"
path = "airlines.csv"
schema = "carrier STRING"
options = { header = true }

[[transforms]]
name = "late"
sql = "SELECT * FROM flights"

[outputs.late]
from = "late"
mode = "complete"

[[outputs.late.sinks]]
topic = "late.flights"
key = "flight"
value = "to_json(struct(*))"

[[outputs.late.sinks]]
table = "late"
database = "postgresql+psycopg://me:${PASSWORD}@db/$$x"
write = "upsert"
keys = ["flight"]
"""


def test_the_smallest_pipeline_runs_on_a_broker_of_its_own() -> None:
    assert parse_definition(SMALLEST, "copy.toml") == Definition(
        name="copy",
        checkpoint="state",
        sources=(SourceDefinition(name="lines", topics=("in",), format=ValueFormat.STRING),),
        outputs=(OutputDefinition(name="all", view="lines", sinks=(TopicSink(topic="out"),)),),
        broker=OwnBrokerDefinition(data_dir="data"),
        spark={},
    )


def test_every_key_has_its_place() -> None:
    assert parse_definition(WHOLE, "delays.toml", {"PASSWORD": "s3"}) == Definition(
        name="delays",
        checkpoint="s3a://bucket/delays",
        trigger="5 seconds",
        modes=("2pc", "resume"),
        kafka={"bootstrap.servers": "k1:9092,k2:9092", "fetch.max.bytes": "1000000"},
        spark={"spark.master": "local[2]", "spark.sql.ansi.enabled": "true"},
        sources=(
            SourceDefinition(
                name="flights",
                pattern="flights-.*",
                starting="latest",
                schema="flight STRING, time TIMESTAMP",
                malformed=OnMalformed.DEAD_LETTER,
                dead_letter="flights.bad",
                watermark=Watermark(column="time", delay="10 minutes"),
                options={"maxOffsetsPerTrigger": "1000"},
            ),
        ),
        lookups=(
            Lookup(
                name="airlines",
                format="csv",
                path="airlines.csv",
                schema="carrier STRING",
                options={"header": "true"},
            ),
        ),
        transforms=(Transform(name="late", sql="SELECT * FROM flights"),),
        outputs=(
            OutputDefinition(
                name="late",
                view="late",
                mode=OutputMode.COMPLETE,
                sinks=(
                    TopicSink(topic="late.flights", key="flight", value="to_json(struct(*))"),
                    TableSink(
                        table="late",
                        database="postgresql+psycopg://me:s3@db/$x",
                        write=TableWrite.UPSERT,
                        keys=("flight",),
                    ),
                ),
            ),
        ),
    )


def test_the_prefix_of_an_output_is_its_own() -> None:
    made = parse_definition(SMALLEST, "copy.toml")
    assert made.prefix_of(made.outputs[0]) == "copy.all"


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (('name = "copy"', ""), "name: is missing"),
        (('name = "copy"', "name = 5"), "name: Expected `str`, got `int`"),
        (('name = "copy"', 'name = "a-b"'), "name: 'a-b' is not a name"),
        (('name = "copy"', 'nam = "copy"'), "nam: is unknown; did you mean name?"),
        (('checkpoint = "state"', 'checkpoint = " "'), "checkpoint: is empty"),
        (('topics = "in"', ""), "sources.lines.topics: give either topics"),
        (('topics = "in"', 'topics = ["a", "a"]'), "sources.lines.topics: 'a' is there twice"),
        (('topics = "in"', "topics = [1]"), "sources.lines.topics: Expected `str`, got `int` - at `$[0]`"),
        (('topics = "in"', 'topics = "a b"'), "sources.lines.topics: 'a b' is not a topic's name"),
        (('format = "string"', 'format = "xml"'), "sources.lines.format: 'xml' is not one of json, string"),
        (('format = "string"', 'format = "json"'), "sources.lines.schema: is missing"),
        (
            ('format = "string"', 'format = "bytes"\nschema = "x INT"'),
            'sources.lines.schema: goes with format = "json", "avro", "json-schema" or "protobuf"',
        ),
        (
            ('format = "string"', 'format = "string"\nmalformed = "dead-letter"'),
            "sources.lines.dead-letter: ",
        ),
        (
            ('format = "string"', 'format = "string"\nwatermark = 1'),
            "sources.lines.watermark: 1 is not a table",
        ),
        (
            ('format = "string"', 'format = "string"\nwatermark = {column = "t"}'),
            "sources.lines.watermark.delay: is missing",
        ),
        (
            ('format = "string"', 'format = "string"\noptions = {a = [1]}'),
            "sources.lines.options.a: [1] is not a setting's value",
        ),
        (("[sources.lines]", '[sources."a-b"]'), "sources.a-b: 'a-b' is not a name"),
        (('from = "lines"', 'from = "line"'), "outputs.all.from: there is no view 'line'; there are: lines"),
        (('topic = "out"', ""), "outputs.all.sinks[0].topic: a sink has either"),
        (('topic = "out"', 'table = "t"'), "outputs.all.sinks[0].database: is missing"),
        (
            ('topic = "out"', 'table = "delta:/t"\ndatabase = "d"'),
            "outputs.all.sinks[0].database: is not for a lake table",
        ),
        (
            ('topic = "out"', 'table = "t"\ndatabase = "d"\nmerge-schema = true'),
            "outputs.all.sinks[0].merge-schema: is for a lake table",
        ),
        (
            ('topic = "out"', 'table = "t"\ndatabase = "d"\n[[outputs.all.sinks]]\ntable = "delta:/u"'),
            "outputs.all.sinks: a lake table decides by its own commit",
        ),
        (
            ('topic = "out"', 'table = "t"\ndatabase = "d"\nwrite = "upsert"'),
            "outputs.all.sinks[0].keys: the key columns",
        ),
        (
            (
                'topic = "out"',
                'table = "t"\ndatabase = "d"\n[[outputs.all.sinks]]\ntable = "u"\ndatabase = "e"',
            ),
            "outputs.all.sinks: tables in two databases",
        ),
        (
            (
                'topic = "out"',
                'table = "t"\ndatabase = "d"\n[[outputs.all.sinks]]\ntable = "t"\ndatabase = "d"',
            ),
            "outputs.all.sinks: the table t is there twice",
        ),
        (("[outputs.all]", "[kafka]\nacks = 1\n[outputs.all]"), 'kafka."bootstrap.servers": is missing'),
        (
            ("[outputs.all]", '[kafka]\n"bootstrap.servers" = "k"\n[broker]\ndata-dir = "d"\n[outputs.all]'),
            "broker: is for a pipeline without [kafka]",
        ),
        (("[outputs.all]", "[broker]\n[outputs.all]"), "broker.data-dir: is missing"),
        (
            ("[outputs.all]", '[lookups.lines]\nformat = "csv"\n[outputs.all]'),
            "lookups: two views are named lines",
        ),
        (
            ("[outputs.all]", '[transforms]\nname = "x"\n[outputs.all]'),
            "transforms: is not an array of tables",
        ),
        (('name = "copy"', 'name = "copy"\nmodes = "3pc"'), "modes: '3pc' is not one of 2pc, keep, resume"),
        (('name = "copy"', 'name = "copy"\ntrigger = "available-now"'), "trigger: is an interval"),
        (('checkpoint = "state"', 'checkpoint = "${HERE}/x"'), "checkpoint: the variable HERE is not set"),
    ],
)
def test_what_is_wrong_is_said_with_the_path_of_its_key(change: tuple[str, str], said: str) -> None:
    wrong = SMALLEST.replace(*change)
    assert wrong != SMALLEST
    with pytest.raises(BadConfig) as caught:
        parse_definition(wrong, "copy.toml")
    assert f"copy.toml: {said}" in str(caught.value)


def test_all_problems_come_at_once() -> None:
    with pytest.raises(BadConfig) as caught:
        parse_definition('nam = "x"\n[sources.a]\ntopics = "t"\nformat = "jsn"\n', "p.toml")
    paths = [line.split(": ")[1] for line in str(caught.value).splitlines()]
    assert paths == ["sources.a.format", "sources.a.schema", "name", "checkpoint", "nam", "outputs"]


def test_a_syntax_error_has_file_and_line() -> None:
    with pytest.raises(BadConfig, match=r"p\.toml: .*line 2, column"):
        parse_definition('name = "x"\ncheckpoint = \n', "p.toml")


def test_an_iceberg_table_is_where_its_catalog_says() -> None:
    text = SMALLEST.replace(
        'topic = "out"',
        'topic = "out"\n[[outputs.all.sinks]]\ntable = "iceberg:lake.flights.rows"\n'
        'storage-options = {uri = "sqlite:////lake/catalog.db"}',
    )
    (output,) = parse_definition(text, "copy.toml").resolve_paths("/home/a").outputs
    sink = output.sinks[1]
    assert isinstance(sink, TableSink)
    assert sink.table == output.database == "iceberg:lake.flights.rows"


def test_a_lake_table_is_beside_the_file_and_decides_for_its_output() -> None:
    """A relative place is one of the file's folder, as the checkpoint is."""
    text = SMALLEST.replace(
        'topic = "out"',
        'topic = "out"\n[[outputs.all.sinks]]\ntable = "delta:lake/rows"\nmerge-schema = true\n'
        'storage-options = {AWS_REGION = "eu"}',
    )
    (output,) = parse_definition(text, "copy.toml").resolve_paths("/home/a").outputs
    sink = output.sinks[1]
    assert isinstance(sink, TableSink)
    assert sink.table == output.database == "delta:/home/a/lake/rows"
    assert sink.merge_schema
    assert sink.storage_options == {"AWS_REGION": "eu"}


@pytest.mark.parametrize("place", ["dbfs:/mnt/c", "file:/var/c", "viewfs:/c", "s3a://bucket/c", "/var/c"])
def test_a_uri_is_no_relative_path(place: str) -> None:
    """On a pod or Databricks a folder of that name would be on a disk that goes away."""
    definition = Definition(
        name="p",
        checkpoint=place,
        sources=(),
        outputs=(),
        lookups=(Lookup(name="l", format="csv", path=place),),
    ).resolve_paths("/home/me")
    assert definition.checkpoint == place
    assert definition.lookups[0].path == place


def test_problems_of_settings_are_told_with_those_of_the_file() -> None:
    text = """
        name = "p"
        checkpoint = "c"
        trigger = "5 bananas"
        [kafka]
        "bootstrap.servers" = "localhost:9092"
        "linger.ms" = "soon"
        [sources.a]
        topics = ["x"]
        [sources.b]
        topics = ["y"]
        format = "bytes"
        options = { maxOffsetsPerTriger = "5" }
        [outputs.o]
        from = "b"
        [[outputs.o.sinks]]
        topic = "y"
    """
    with pytest.raises(BadConfig) as refused:
        parse_definition(text, "p.toml")
    told = str(refused.value)
    for part in ("trigger: '5 bananas'", "sources.a.schema", "linger.ms", "maxOffsetsPerTrigger?", "reads y"):
        assert part in told
