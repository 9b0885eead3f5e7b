"""Options of Spark's Kafka guide and our own, with their meaning; docs/spark/options.md shows the table.

Options that have no effect here or are refused are in `kafka_names.tsv`.

Source: Spark 4.3 docs/streaming/structured-streaming-kafka-integration.md.
"""

from collections.abc import Iterator
from enum import Enum
from typing import Final

from tallystick.kernel.foreign_settings import read_foreign_settings
from tallystick.kernel.value import Value

KAFKA_PREFIX: Final = "kafka."
TABLE_STORAGE_PREFIX: Final = "table.storage."
DECISIONS_TOPIC: Final = "__tallystick_decisions"


class OptionSupport(Enum):
    """Treatment of an option."""

    SUPPORTED = "supported"
    NO_EFFECT = "no effect"
    REFUSED = "refused"


class ConnectorSide(Enum):
    SOURCE = "source"
    SINK = "sink"


class QueryType(Enum):
    BATCH = "batch"
    STREAM = "streaming"


_BOTH: Final = (QueryType.STREAM, QueryType.BATCH)
_SOURCE: Final = (ConnectorSide.SOURCE,)
_SINK: Final = (ConnectorSide.SINK,)


class Option(Value, kw_only=True):
    """One option.

    values             the allowed values
    ignored_elsewhere  accepted without effect in the other kind of query, as in Spark
    """

    name: str
    doc: str
    values: str = ""
    default: str = ""
    sides: tuple[ConnectorSide, ...] = _SOURCE
    queries: tuple[QueryType, ...] = _BOTH
    support: OptionSupport = OptionSupport.SUPPORTED
    ignored_elsewhere: bool = False


def _read_other_options() -> Iterator[Option]:
    """Yield the options of `kafka_names.tsv`, whose last column has the sides."""
    for each in read_foreign_settings(__package__):
        (sides,) = each.more
        yield Option(
            name=each.name,
            doc=each.reason,
            sides=tuple(map(ConnectorSide, sides.split())),
            support=OptionSupport(each.treatment.value),
        )


def _build_format_options(field: str) -> tuple[Option, ...]:
    sides = (ConnectorSide.SOURCE, ConnectorSide.SINK)
    return (
        Option(
            name=f"{field}.format",
            values="`bytes`, `string`, `avro`, `json`, `protobuf`",
            default="`bytes`",
            sides=sides,
            doc=f"Encoding of the {field}; `avro`, `json` (JSON Schema) and `protobuf` need "
            "`schema.registry.url`.",
        ),
        Option(
            name=f"{field}.schema",
            values="Avro schema as JSON, JSON Schema, or .proto file",
            default="the subject's latest version",
            sides=sides,
            doc="The reader's schema of a source, or the writer's of a sink; the latter and .proto files "
            "must be registered.",
        ),
        Option(
            name=f"{field}.message",
            values="full name",
            default="the schema's first message",
            sides=sides,
            doc="The Protobuf message that the column holds, like `demo.Order`.",
        ),
        Option(
            name=f"{field}.subject",
            values="name",
            sides=sides,
            doc="The subject of the schema, instead of the one that the strategy gives.",
        ),
        Option(
            name=f"{field}.subject.strategy",
            values="`topic-name`, `record-name`, `topic-record-name`",
            default="`topic-name`",
            sides=sides,
            doc=f"How the subject is named: `orders-{field}`, `demo.Order`, `orders-demo.Order`.",
        ),
    )


_TIMES_EXAMPLE: Final = '`{"topicA":{"0":1000}}`, milliseconds'
_STREAM: Final = (QueryType.STREAM,)
_BATCH: Final = (QueryType.BATCH,)

OPTIONS: Final = (
    Option(
        name="kafka.bootstrap.servers",
        values="`host:port,...`",
        sides=(ConnectorSide.SOURCE, ConnectorSide.SINK),
        doc="Brokers to contact first. Required.",
    ),
    Option(
        name="subscribe",
        values="`topicA,topicB`",
        doc="Topics to read. Exactly one of `subscribe`, `subscribePattern` and `assign` is required.",
    ),
    Option(
        name="subscribePattern",
        values="regular expression",
        doc="Topics whose whole name matches, new ones included, in Python's syntax, not Java's; Kafka's "
        "internal topics and `__tallystick_...` are left out.",
    ),
    Option(name="assign", values='`{"topicA":[0,1]}`', doc="Only these partitions."),
    Option(
        name="startingOffsets",
        values='`earliest`, `latest`, `{"topicA":{"0":23,"1":-1}}`',
        default="`latest` (streaming), `earliest` (batch)",
        doc="Where a new query starts; in JSON, which must list every partition, -2 means earliest, -1 "
        "latest (streaming only).",
    ),
    Option(
        name="startingTimestamp",
        values="milliseconds",
        doc="Start at the first record from this timestamp on; overrides `startingOffsetsByTimestamp`, which "
        "overrides `startingOffsets`.",
    ),
    Option(
        name="startingOffsetsByTimestamp",
        values=_TIMES_EXAMPLE,
        doc="As `startingTimestamp`, for each partition.",
    ),
    Option(
        name="startingOffsetsByTimestampStrategy",
        values="`error`, `latest`",
        default="`error`",
        doc="What to do if a partition has no such record: fail, or start at its end.",
    ),
    Option(
        name="endingOffsets",
        values='`latest`, `{"topicA":{"0":50,"1":-1}}`',
        default="`latest`",
        queries=_BATCH,
        doc="Where a batch ends; -1 means latest, which with `read_committed` is the last stable offset.",
    ),
    Option(
        name="endingTimestamp",
        values="milliseconds",
        queries=_BATCH,
        doc="End before the first record with this timestamp or a later one, or at the latest offset if "
        "there is none.",
    ),
    Option(
        name="endingOffsetsByTimestamp",
        values=_TIMES_EXAMPLE,
        queries=_BATCH,
        doc="As `endingTimestamp`, for each partition.",
    ),
    Option(
        name="failOnDataLoss",
        values="`true`, `false`",
        default="`true`",
        doc="Fail if records that the query should read are gone; `false` logs it and continues with the "
        "rest.",
    ),
    Option(
        name="includeHeaders",
        values="`true`, `false`",
        default="`false`",
        sides=(ConnectorSide.SOURCE, ConnectorSide.SINK),
        doc="Whether rows have the column `headers`: an array, empty for a record without headers.",
    ),
    Option(
        name="maxOffsetsPerTrigger",
        values="number",
        queries=_STREAM,
        ignored_elsewhere=True,
        doc="Approximate number of offsets in a micro-batch, distributed in proportion to each partition's "
        "backlog.",
    ),
    Option(
        name="minOffsetsPerTrigger",
        values="number",
        queries=_STREAM,
        ignored_elsewhere=True,
        doc="Wait for this many offsets before a micro-batch, at most `maxTriggerDelay`.",
    ),
    Option(
        name="maxTriggerDelay",
        values="`15m`, `30s`, `100ms`",
        default="`15m`",
        queries=_STREAM,
        ignored_elsewhere=True,
        doc="The longest wait for `minOffsetsPerTrigger`.",
    ),
    Option(
        name="minPartitions",
        values="number",
        doc="Approximate minimum number of tasks: large partitions are split into several ranges.",
    ),
    Option(
        name="maxRecordsPerPartition",
        values="number",
        doc="Maximum number of offsets in one task: larger ranges are split.",
    ),
    Option(
        name="kafkaConsumer.pollTimeoutMs",
        values="milliseconds",
        default="120000",
        doc="How long a task waits for the next record of its range before it fails.",
    ),
    Option(
        name="kafka.isolation.level",
        values="`read_committed`, `read_uncommitted`",
        default="`read_committed`",
        doc="Differs from Spark's own source, which by default shows records of aborted and open "
        "transactions.",
    ),
    Option(
        name="checkpointLocation",
        values="location",
        sides=(ConnectorSide.SOURCE, ConnectorSide.SINK),
        queries=_STREAM,
        doc="The query's checkpoint, a folder or URL of Spark's file systems; Spark passes it to a sink, "
        "but not to a source or `foreach_batch`.",
    ),
    Option(
        name="resume.from.prefix",
        values="name",
        queries=_STREAM,
        doc="A new query begins where the last decision under this prefix ended, else at `startingOffsets`; "
        "requires `checkpointLocation`.",
    ),
    Option(
        name="resume.from.database",
        values="URL",
        queries=_STREAM,
        doc="The database or lake table that keeps the decisions; `table.storage.NAME` is an option of the "
        "table's storage.",
    ),
    *_build_format_options("key"),
    *_build_format_options("value"),
    Option(
        name="schema.registry.url",
        values="URL",
        sides=(ConnectorSide.SOURCE, ConnectorSide.SINK),
        doc="Schema registry; `schema.registry.NAME` is a setting of confluent-kafka's registry client, "
        "such as `schema.registry.basic.auth.user.info`.",
    ),
    Option(
        name="onMalformed",
        values="`fail`, `null`",
        default="`fail`",
        doc="Whether a key, value or timestamp that a column cannot hold stops the query, or is null with "
        "bytes and reason in `malformed`.",
    ),
    Option(
        name="auto.register.schemas",
        values="`true`, `false`",
        default="`false`",
        sides=_SINK,
        doc="Register the schema of the option, or one made from the columns if the subject has none.",
    ),
    Option(
        name="topic",
        values="name",
        sides=_SINK,
        doc="The topic of all rows. Overrides a column `topic`.",
    ),
    Option(
        name="transactional.id.prefix",
        values="name",
        sides=_SINK,
        doc="Required: prefix of this query's transactions; each running query needs its own.",
    ),
    Option(
        name="tallystick.modes",
        values="`2pc`, `keep`, `resume`; several, strongest first",
        default="`2pc`",
        sides=_SINK,
        doc="Acceptable ways to keep a prepared transaction through a crash; the strongest available is "
        "used.",
    ),
    Option(
        name="onNewCheckpoint",
        values="`refuse`, `restart`, `resume`",
        default="`refuse`",
        sides=_SINK,
        queries=_STREAM,
        doc="What a new query does if the prefix has decisions of another one: stop, write whatever it "
        "reads, or continue where that one ended.",
    ),
    Option(
        name="onNewPrefix",
        values="`refuse`, `adopt`",
        default="`refuse`",
        sides=_SINK,
        queries=_STREAM,
        doc="What a restarted query does if none of its decisions is known: stop, or write the next batch; "
        "meant for one start.",
    ),
    Option(
        name="onChangedRows",
        values="`fail`, `compare-offsets`, `skip`",
        default="`compare-offsets`",
        sides=_SINK,
        doc="What happens if a decided batch comes again with other rows: stop, continue if the sources' "
        "offsets are those of the decision, or continue also if they cannot be compared.",
    ),
    Option(
        name="write.id",
        values="name",
        sides=_SINK,
        queries=_BATCH,
        doc="Name of this write: repeating it with the same rows writes nothing, with other rows it fails.",
    ),
    Option(
        name="table",
        values="`delta:/lake/delays`, `iceberg:catalog.namespace.name`",
        sides=_SINK,
        doc="A lake table for the column `row`, a struct; its commit decides the batch, and `value` may be "
        "missing.",
    ),
    Option(
        name="table.write",
        values="`append`, `upsert`",
        default="`append`",
        sides=_SINK,
        doc="`upsert`: a row replaces those with the same `table.keys`.",
    ),
    Option(name="table.keys", values="`columnA,columnB`", sides=_SINK, doc="The key columns of an upsert."),
    Option(
        name="table.mergeSchema",
        values="`true`, `false`",
        default="`false`",
        sides=_SINK,
        doc="Add columns that the table lacks; `table.storage.NAME` is an option of its storage or catalog.",
    ),
    Option(
        name="decisions.topic",
        values="name",
        default=f"`{DECISIONS_TOPIC}`",
        sides=(ConnectorSide.SOURCE, ConnectorSide.SINK),
        doc="Where decisions are kept: one compacted topic for all queries of a cluster, created if missing.",
    ),
    Option(
        name="tracing.setup",
        values="`package.module:function`",
        sides=_SINK,
        doc="A function that each Python process calls before it first writes, to switch OpenTelemetry on "
        "there; see [tracing](../how-to/tracing.md#spark).",
    ),
    *_read_other_options(),
)
