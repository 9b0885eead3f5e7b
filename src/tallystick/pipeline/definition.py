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

from collections.abc import Callable, Iterator, Mapping
from dataclasses import field
from enum import StrEnum
from typing import TYPE_CHECKING

from tallystick.kernel.value import frozen, replace

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


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
    """A view made of the views before it: by one SELECT, or from Python by a function of them by name."""

    name: str
    sql: str | None = None
    function: "Callable[[Mapping[str, DataFrame]], DataFrame] | None" = None


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

    @property
    def database(self) -> str | None:
        """Of its tables; None where it has none. One output has one: its decision is a row there."""
        return next((sink.database for sink in self.sinks if isinstance(sink, TableSink)), None)


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

    def views(self, transforms: int | None = None) -> list[str]:
        """The names of all views, or of those before a transform of this number."""
        made = self.transforms if transforms is None else self.transforms[:transforms]
        return [
            *(source.name for source in self.sources),
            *(lookup.name for lookup in self.lookups),
            *(transform.name for transform in made),
        ]

    def topics_read(self) -> Iterator[tuple[str, str]]:
        """Each topic that is read by its name, and the path of its key."""
        for source in self.sources:
            yield from ((topic, f"sources.{source.name}.topics") for topic in source.topics)

    def topics_written(self) -> Iterator[tuple[str, str]]:
        """Each topic that is written, and the path of its key."""
        for output in self.outputs:
            for i, sink in enumerate(output.sinks):
                if isinstance(sink, TopicSink):
                    yield sink.topic, f"outputs.{output.name}.sinks[{i}].topic"
        for source in self.sources:
            if source.dead_letter is not None:
                yield source.dead_letter, f"sources.{source.name}.dead-letter"

    def within(self, folder: str) -> "Definition":
        """With paths that are relative to `folder` instead of to the current directory."""

        def placed(path: str) -> str:
            return path if "://" in path or path.startswith("/") else f"{folder}/{path}"

        return replace(
            self,
            checkpoint=placed(self.checkpoint),
            broker=self.broker and replace(self.broker, data_dir=placed(self.broker.data_dir)),
            lookups=tuple(replace(each, path=each.path and placed(each.path)) for each in self.lookups),
        )


def checkpoint_of(definition: Definition, output: Output) -> str:
    """`checkpointLocation` of one output's query."""
    return f"{definition.checkpoint.rstrip('/')}/{output.name}"
