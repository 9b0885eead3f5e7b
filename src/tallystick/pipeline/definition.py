"""What a pipeline is: the values a `PIPELINE.toml` is read into. Pure.

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

Sources and lookups are views in SQL, and every transform is a view for those after it. An output is one
Spark query; its sinks share one decision a batch: all of them have the batch, or none. Without `[kafka]` the
pipeline runs on a broker of its own, whose files are in `[broker] data-dir`.

docs/pipeline.md describes every key; `definition_toml.py` reads them.
"""

from collections.abc import Mapping
from dataclasses import field
from enum import StrEnum

from tallystick.kernel.value import frozen


class ValueFormat(StrEnum):
    """How the values of a source become columns."""

    JSON = "json"  # an object a record; its fields are the columns of the schema
    STRING = "string"  # UTF-8 text, in column `value`
    BYTES = "bytes"  # as it is, in column `value`


class OnMalformed(StrEnum):
    """What becomes of a JSON value that does not fit the schema."""

    FAIL = "fail"  # the query stops and names the record
    DEAD_LETTER = "dead-letter"  # it goes to a topic, in the same decision as its batch


class TableWrite(StrEnum):
    """How rows arrive in a table."""

    APPEND = "append"
    UPSERT = "upsert"  # a row with the same keys is replaced


class OutputMode(StrEnum):
    """Spark's output modes that a decision a batch can carry; update is not one of them."""

    APPEND = "append"
    COMPLETE = "complete"


@frozen(kw_only=True)
class Watermark:
    """How late a row may come, by one of its columns: `delay` is an interval of Spark's, "10 minutes"."""

    column: str
    delay: str


@frozen(kw_only=True)
class Source:
    """Topics that are read as one view.

    topics       their names, or empty when `pattern` chooses them
    starting     "earliest", "latest" or the source's JSON of offsets; where a new checkpoint begins
    schema       Spark's DDL of the value's fields; JSON alone has one
    dead_letter  topic for malformed values
    options      further options of the `tallystick` source, `maxOffsetsPerTrigger` among them
    """

    name: str
    topics: tuple[str, ...] = ()
    pattern: str | None = None
    starting: str = "earliest"
    format: ValueFormat = ValueFormat.JSON
    schema: str | None = None
    malformed: OnMalformed = OnMalformed.FAIL
    dead_letter: str | None = None
    watermark: Watermark | None = None
    options: Mapping[str, str] = field(default_factory=dict)


@frozen(kw_only=True)
class Lookup:
    """A table that is read when the pipeline starts, in any format Spark reads."""

    name: str
    format: str
    path: str | None = None
    schema: str | None = None
    options: Mapping[str, str] = field(default_factory=dict)


@frozen(kw_only=True)
class Transform:
    """A view made by one SELECT over the views before it."""

    name: str
    sql: str


@frozen(kw_only=True)
class TopicSink:
    """Rows become records of one topic.

    key    an SQL expression for the record's key; None for no key
    value  an SQL expression for its value; None for the whole row as JSON
    """

    topic: str
    key: str | None = None
    value: str | None = None


@frozen(kw_only=True)
class TableSink:
    """Rows become rows of one table; columns go by name.

    database  SQLAlchemy URL
    keys      of an upsert
    """

    table: str
    database: str
    write: TableWrite = TableWrite.APPEND
    keys: tuple[str, ...] = ()


Sink = TopicSink | TableSink


@frozen(kw_only=True)
class Output:
    """One query: the view `view` into all of `sinks`, with one decision a batch."""

    name: str
    view: str
    sinks: tuple[Sink, ...]
    mode: OutputMode = OutputMode.APPEND


@frozen(kw_only=True)
class Broker:
    """The pipeline's own broker. `listen` is host:port; None takes a free port of the loopback."""

    data_dir: str
    listen: str | None = None
    settings: Mapping[str, str] = field(default_factory=dict)


@frozen(kw_only=True)
class Definition:
    """A whole pipeline, as it was written; nothing is connected yet.

    name        names the queries and is the prefix of their transactional ids
    checkpoint  directory, or a URL of a filesystem Spark knows; a sub-directory for each output
    trigger     an interval of Spark's, or None: as fast as batches go
    modes       `tallystick.modes`, strongest first
    kafka       settings of the clients; None: run on `broker`
    spark       Spark's settings, `spark.master` among them
    """

    name: str
    checkpoint: str
    sources: tuple[Source, ...]
    outputs: tuple[Output, ...]
    lookups: tuple[Lookup, ...] = ()
    transforms: tuple[Transform, ...] = ()
    trigger: str | None = None
    modes: tuple[str, ...] = ("2pc",)
    kafka: Mapping[str, str] | None = None
    broker: Broker | None = None
    spark: Mapping[str, str] = field(default_factory=dict)

    def prefix(self, output: Output) -> str:
        """`transactional.id.prefix` of one output's query."""
        return f"{self.name}.{output.name}"
