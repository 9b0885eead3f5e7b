"""Definition of a pipeline: the values that a `PIPELINE.toml` is parsed into. Pure.

    name = "delays"
    checkpoint = "state/checkpoint"
    trigger = "5 seconds"

    [sources.flights]
    topics = ["flights"]
    format = "json"
    schema = "flight STRING, carrier STRING, dep_delay DOUBLE"

    [[transforms]]
    name = "late"
    sql = "SELECT flight, carrier, dep_delay FROM flights WHERE dep_delay > 15"

    [outputs.late]
    from = "late"

    [[outputs.late.sinks]]
    topic = "late.flights"
    key = "flight"

    [[outputs.late.sinks]]
    table = "late_flights"
    database = "postgresql+psycopg://localhost/flights"

or, instead of tables in a database, `table = "delta:/lake/late_flights"`.

Sources and lookups are SQL views, and every transform is a view for the transforms after it. An output is one
Spark query; its sinks share one decision for each batch: all of them get the batch, or none. Without
`[kafka]` the pipeline runs its own broker, with files in `[broker] data-dir`.

docs/pipeline.md describes every key. The annotations are what `definition_toml.py` reads a file by: an
underscore is a hyphen there.
"""

from collections.abc import Callable, Iterator, Mapping
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Final

from msgspec import Meta, field

from tallystick.kernel.ids import is_table_url
from tallystick.kernel.value import Value, replace
from tallystick.lake.names import has_scheme, parse_table_url
from tallystick.pipeline.toml_reader import Settings, Texts
from tallystick.schemas.model import ColumnFormat

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    ViewFunction = Callable[[Mapping[str, DataFrame]], DataFrame]
else:
    ViewFunction = Callable  # pyspark is an extra, and a struct's annotations are evaluated


class ValueFormat(StrEnum):
    """The format of a source's values."""

    JSON = "json"  # one object per record; its fields are the columns of the schema
    STRING = "string"  # UTF-8 text, in column `value`
    BYTES = "bytes"  # unchanged, in column `value`
    AVRO = "avro"  # Avro with a schema registry's prefix; the fields are the columns
    JSON_SCHEMA = "json-schema"  # JSON with a registered JSON Schema, likewise
    PROTOBUF = "protobuf"  # Protobuf, likewise

    @property
    def column_format(self) -> ColumnFormat | None:
        """Format of the source's column `value`; None if no registry has the schema."""
        return _REGISTERED_FORMATS.get(self.value)


class TopicFormat(StrEnum):
    """The format of a topic's keys or values."""

    PLAIN = "plain"  # strings or bytes, as the expression has them
    AVRO = "avro"  # Avro with a schema registry's prefix
    JSON_SCHEMA = "json-schema"  # JSON with a registered JSON Schema, likewise
    PROTOBUF = "protobuf"  # Protobuf, likewise

    @property
    def column_format(self) -> ColumnFormat | None:
        """Format of the sink's encoded column; None if no registry has the schema."""
        return _REGISTERED_FORMATS.get(self.value)


# "json" is JSON without a registry in these files, and with one in the options of Spark's source and sink.
_REGISTERED_FORMATS: Final[Mapping[str, ColumnFormat]] = {
    "avro": ColumnFormat.AVRO,
    "json-schema": ColumnFormat.JSON,
    "protobuf": ColumnFormat.PROTOBUF,
}
REGISTERED: Final = '"avro", "json-schema" or "protobuf"'


class OnMalformed(StrEnum):
    """The handling of a value that does not fit the schema, or is none."""

    FAIL = "fail"  # the query stops and names the record
    DEAD_LETTER = "dead-letter"  # the value goes to a topic, in the same decision as its batch


class TableWrite(StrEnum):
    """The write mode of a table."""

    APPEND = "append"
    UPSERT = "upsert"  # a row with the same keys is replaced


class OutputMode(StrEnum):
    """Spark's output modes that the sink supports, with one decision for each batch; not `update`."""

    APPEND = "append"
    COMPLETE = "complete"


class Watermark(Value, kw_only=True):
    """A Spark watermark on an event-time column; `delay` is a Spark interval, such as "10 minutes"."""

    column: Annotated[str, Meta(description="the column with the time of the event")]
    delay: Annotated[str, Meta(description="how late a row may come, like '10 minutes'")]


class SourceDefinition(Value, kw_only=True, rename="kebab"):
    """Topics that are read as one view.

    topics       topic names; empty if `pattern` selects them
    starting     start of a new checkpoint: "earliest", "latest" or the source's JSON of offsets
    schema       Spark DDL of the value's fields, for JSON; the reader's schema, for formats with a registry
    message      the Protobuf message that the values are; None for the schema's first one
    dead_letter  topic for malformed values
    options      further options of the `tallystick` source, such as `maxOffsetsPerTrigger`
    """

    name: str
    topics: Texts = ()
    pattern: str | None = None
    starting: str = "earliest"
    format: ValueFormat = ValueFormat.JSON
    schema: str | None = None
    message: str | None = None
    malformed: OnMalformed = OnMalformed.FAIL
    dead_letter: str | None = None
    watermark: Watermark | None = None
    options: Settings = field(default_factory=dict)


class Lookup(Value, kw_only=True):
    """A static table, read when the pipeline starts, in any format that Spark reads."""

    name: str
    format: Annotated[str, Meta(description="one of Spark's: csv, json, parquet, jdbc, ...")]
    path: str | None = None
    schema: str | None = None
    options: Settings = field(default_factory=dict)


class Transform(Value, kw_only=True):
    """A view derived from earlier views, by one SELECT or by a Python function of the views by name."""

    name: Annotated[str, Meta(description="the view's name for what comes after it")]
    sql: str | None = None
    function: ViewFunction | None = None


class TopicSink(Value, kw_only=True, rename="kebab"):
    """A sink that writes rows as records of one topic.

    key         SQL expression for the record's key; None for no key
    value       SQL expression for the record's value; None for the whole row, as JSON if `format` is plain
    schema      schema of the values, which must be registered; None for the subject's latest version
    message     the Protobuf message that the values are; None for the schema's first one
    key_schema, key_message  the same of the keys
    """

    topic: str
    key: str | None = None
    value: str | None = None
    format: TopicFormat = TopicFormat.PLAIN
    schema: str | None = None
    message: str | None = None
    key_format: TopicFormat = TopicFormat.PLAIN
    key_schema: str | None = None
    key_message: str | None = None

    @property
    def has_schemas(self) -> bool:
        """Whether a registry's schema encodes its keys or values."""
        return any(each is not TopicFormat.PLAIN for each in (self.format, self.key_format))


class TableSink(Value, kw_only=True, rename="kebab"):
    """A sink that writes rows into one table, matching columns by name.

    table            its name in the database; or the URL of a lake table: delta:/lake/delays,
                     iceberg:lake.flights.delays
    database         SQLAlchemy URL; None for a lake table
    keys             key columns of an upsert
    merge_schema     columns that a lake table lacks are added to it
    storage_options  of a lake table
    """

    table: str
    database: str | None = None
    write: TableWrite = TableWrite.APPEND
    keys: Texts = ()
    merge_schema: bool = False
    storage_options: Settings = field(default_factory=dict)

    @property
    def is_lake_table(self) -> bool:
        return is_table_url(self.table)

    @property
    def store(self) -> str:
        """The URL of the place where a batch is decided that has this table."""
        return self.table if self.is_lake_table else self.database or ""


SinkDefinition = TopicSink | TableSink


class OutputDefinition(Value, kw_only=True):
    """One query that writes `view` into all of `sinks`, with one decision for each batch."""

    name: str
    view: Annotated[str, Meta(description="the source or transform whose rows are written")] = field(
        name="from"
    )
    sinks: tuple[SinkDefinition, ...]
    mode: OutputMode = OutputMode.APPEND

    @property
    def database(self) -> str | None:
        """The database of its tables, or its lake table: the place of its decisions; None without tables."""
        return next((sink.store for sink in self.sinks if isinstance(sink, TableSink)), None)


class OwnBrokerDefinition(Value, kw_only=True, rename="kebab"):
    """The pipeline's own broker. `listen` is host:port; None selects a free loopback port."""

    data_dir: Annotated[str, Meta(description="the directory of the broker's files")]
    listen: str | None = None
    settings: Settings = field(default_factory=dict)


class Definition(Value, kw_only=True):
    """A complete pipeline as configured, without any connection.

    name        name of the queries, and prefix of their transactional ids
    checkpoint  directory, or URL of a filesystem that Spark knows; each output has a subdirectory
    trigger     Spark interval; None starts each batch as soon as possible
    modes       `tallystick.modes`, strongest first
    kafka       client settings; None to run on `broker`
    spark       Spark settings, including `spark.master`
    schema_registry  settings of the schema registry's client, including `url`
    """

    name: Annotated[str, Meta(description="it names the query and its transactional ids")]
    checkpoint: Annotated[str, Meta(description="the directory where Spark keeps how far it has read")]
    sources: tuple[SourceDefinition, ...]
    outputs: tuple[OutputDefinition, ...]
    lookups: tuple[Lookup, ...] = ()
    transforms: tuple[Transform, ...] = ()
    trigger: str | None = None
    modes: Texts = ("2pc",)
    kafka: Settings | None = None
    broker: OwnBrokerDefinition | None = None
    spark: Settings = field(default_factory=dict)
    schema_registry: Settings = field(default_factory=dict, name="schema-registry")

    def prefix_of(self, output: OutputDefinition) -> str:
        """Return the `transactional.id.prefix` of an output's query."""
        return f"{self.name}.{output.name}"

    def view_names(self, transforms: int | None = None) -> list[str]:
        """Return the names of all views, or of those before the transform with index `transforms`."""
        selected = self.transforms if transforms is None else self.transforms[:transforms]
        return [
            *(source.name for source in self.sources),
            *(lookup.name for lookup in self.lookups),
            *(transform.name for transform in selected),
        ]

    def topics_read(self) -> Iterator[tuple[str, str]]:
        """Yield each topic that is read by name, with the path of its key."""
        for source in self.sources:
            yield from ((topic, f"sources.{source.name}.topics") for topic in source.topics)

    def topics_written(self) -> Iterator[tuple[str, str]]:
        """Yield each topic that is written, with the path of its key."""
        for output in self.outputs:
            for i, sink in enumerate(output.sinks):
                if isinstance(sink, TopicSink):
                    yield sink.topic, f"outputs.{output.name}.sinks[{i}].topic"
        for source in self.sources:
            if source.dead_letter is not None:
                yield source.dead_letter, f"sources.{source.name}.dead-letter"

    def resolve_paths(self, folder: str) -> "Definition":
        """Return a copy with relative paths resolved against `folder` instead of the current directory."""

        def placed(path: str) -> str:
            return path if has_scheme(path) or path.startswith("/") else f"{folder}/{path}"

        def placed_sink(sink: SinkDefinition) -> SinkDefinition:
            if not isinstance(sink, TableSink) or not sink.is_lake_table:
                return sink
            url = parse_table_url(sink.table)
            return replace(sink, table=str(replace(url, place=placed(url.place)))) if url.is_path else sink

        return replace(
            self,
            checkpoint=placed(self.checkpoint),
            broker=self.broker and replace(self.broker, data_dir=placed(self.broker.data_dir)),
            lookups=tuple(replace(each, path=each.path and placed(each.path)) for each in self.lookups),
            outputs=tuple(
                replace(each, sinks=tuple(placed_sink(sink) for sink in each.sinks)) for each in self.outputs
            ),
        )


def checkpoint_location(definition: Definition, output: OutputDefinition) -> str:
    """Return the `checkpointLocation` of an output's query."""
    return f"{definition.checkpoint.rstrip('/')}/{output.name}"
