"""Table of the options in Spark's Kafka guide and of our own, with their meaning. docs/spark.md shows it.

Source: Spark 4.3 docs/streaming/structured-streaming-kafka-integration.md.
"""

from enum import Enum
from typing import Final

from tallystick.kernel.value import frozen

KAFKA_PREFIX: Final = "kafka."
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


@frozen(kw_only=True)
class Option:
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


def _no_effect_option(name: str, doc: str, sides: tuple[ConnectorSide, ...] = _SOURCE) -> Option:
    return Option(name=name, doc=doc, sides=sides, support=OptionSupport.NO_EFFECT)


def _refused_option(name: str, doc: str, sides: tuple[ConnectorSide, ...] = _SOURCE) -> Option:
    return Option(name=name, doc=doc, sides=sides, support=OptionSupport.REFUSED)


_TIMES_EXAMPLE: Final = '`{"topicA":{"0":1000}}`, milliseconds'
_STREAM: Final = (QueryType.STREAM,)
_BATCH: Final = (QueryType.BATCH,)

OPTIONS: Final = (
    Option(
        name="kafka.bootstrap.servers",
        values="`host:port,...`",
        sides=(ConnectorSide.SOURCE, ConnectorSide.SINK),
        doc="Brokers to ask first. Required.",
    ),
    Option(
        name="subscribe",
        values="`topicA,topicB`",
        doc="Topics to read. Exactly one of `subscribe`, `subscribePattern` and `assign` is given.",
    ),
    Option(
        name="subscribePattern",
        values="regular expression",
        doc="Topics whose whole name matches, those made later included. Python's syntax, not Java's.",
    ),
    Option(name="assign", values='`{"topicA":[0,1]}`', doc="These partitions only."),
    Option(
        name="startingOffsets",
        values='`earliest`, `latest`, `{"topicA":{"0":23,"1":-1}}`',
        default="`latest` (streaming), `earliest` (batch)",
        doc="Where a new query starts; -2 is earliest, -1 is latest (streaming only). JSON names every "
        "partition. A query that goes on starts where it stopped; partitions added later are read from "
        "their beginning.",
    ),
    Option(
        name="startingTimestamp",
        values="milliseconds",
        doc="The first record of this time or later, in all partitions. Goes before "
        "`startingOffsetsByTimestamp`, and that before `startingOffsets`.",
    ),
    Option(name="startingOffsetsByTimestamp", values=_TIMES_EXAMPLE, doc="The same for each partition."),
    Option(
        name="startingOffsetsByTimestampStrategy",
        values="`error`, `latest`",
        default="`error`",
        doc="What to do where no record is that late: fail, or start at the end.",
    ),
    Option(
        name="endingOffsets",
        values='`latest`, `{"topicA":{"0":50,"1":-1}}`',
        default="`latest`",
        queries=_BATCH,
        doc="Where a batch ends; -1 is latest, which with `read_committed` is the last stable offset.",
    ),
    Option(
        name="endingTimestamp",
        values="milliseconds",
        queries=_BATCH,
        doc="Ends before the first record of this time or later; at latest where there is none.",
    ),
    Option(
        name="endingOffsetsByTimestamp",
        values=_TIMES_EXAMPLE,
        queries=_BATCH,
        doc="The same for each partition.",
    ),
    Option(
        name="failOnDataLoss",
        values="`true`, `false`",
        default="`true`",
        doc="Fail when records that the query should read are gone: aged out, cut off, or the topic was "
        "deleted. `false`: log it and go on with what is left. Aborted transactions and markers are no loss.",
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
        doc="About how many offsets a micro-batch takes, each partition's backlog in proportion.",
    ),
    Option(
        name="minOffsetsPerTrigger",
        values="number",
        queries=_STREAM,
        ignored_elsewhere=True,
        doc="Wait for this many before a micro-batch, `maxTriggerDelay` at most. With `Trigger.AvailableNow` "
        "nothing is waited for: all that is there is read.",
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
        doc="About how many tasks to read with, at least: large partitions are cut into several ranges.",
    ),
    Option(
        name="maxRecordsPerPartition",
        values="number",
        doc="The most offsets of one task: larger ranges are cut.",
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
        doc="Differs from Spark's own source, whose default shows records of aborted and open transactions.",
    ),
    Option(
        name="checkpointLocation",
        values="folder",
        sides=(ConnectorSide.SOURCE, ConnectorSide.SINK),
        queries=_STREAM,
        doc="The query's own, where it is a folder of the driver's host. A source keeps in it where it "
        "began, so that a first batch that is repeated begins there again. Spark tells it to a sink, and "
        "not to a source or to `foreach_batch`.",
    ),
    Option(
        name="resume.from.prefix",
        values="name",
        queries=_STREAM,
        doc="A new query begins where the last decision under the sink's `transactional.id.prefix` ended, if "
        "there is one; else as `startingOffsets` says. Needs `checkpointLocation`.",
    ),
    Option(
        name="resume.from.database",
        values="URL",
        queries=_STREAM,
        doc="The `database` of `foreach_batch`, if that has the decisions.",
    ),
    _no_effect_option("fetchOffset.numRetries", "Tried again until `kafka.default.api.timeout.ms` is over."),
    _no_effect_option("fetchOffset.retryIntervalMs", "See `kafka.retry.backoff.ms`."),
    _no_effect_option("groupIdPrefix", "No consumer group is used."),
    _no_effect_option("kafka.group.id", "No consumer group is used; offsets are in the checkpoint."),
    _refused_option("kafka.auto.offset.reset", "say it with startingOffsets and failOnDataLoss"),
    _refused_option("kafka.key.deserializer", "keys are bytes; convert them with Spark"),
    _refused_option("kafka.value.deserializer", "values are bytes; convert them with Spark"),
    _refused_option("kafka.enable.auto.commit", "offsets are in the checkpoint"),
    _refused_option(
        "kafka.interceptor.classes", "no Java classes are loaded", (ConnectorSide.SOURCE, ConnectorSide.SINK)
    ),
    Option(
        name="topic",
        values="name",
        sides=_SINK,
        doc="The topic of all rows; goes before a column `topic`.",
    ),
    Option(
        name="transactional.id.prefix",
        values="name",
        sides=_SINK,
        doc="Required, and new here: what this query's transactions are called. One live query a prefix.",
    ),
    Option(
        name="tallystick.modes",
        values="`2pc`, `keep`, `resume`; several, strongest first",
        default="`2pc`",
        sides=_SINK,
        doc="Acceptable ways to keep a prepared transaction through a crash; the strongest possible is used.",
    ),
    Option(
        name="onNewCheckpoint",
        values="`refuse`, `restart`, `resume`",
        default="`refuse`",
        sides=_SINK,
        queries=_STREAM,
        doc="What to do where the prefix has decisions of another query, whose checkpoint is gone: stop; "
        "write what is read; or go on where that one ended, and stop if the sources begin elsewhere.",
    ),
    Option(
        name="onNewPrefix",
        values="`refuse`, `adopt`",
        default="`refuse`",
        sides=_SINK,
        queries=_STREAM,
        doc="What to do where a query goes on and no decision of it is known: it comes from another sink, "
        "the prefix or the place of the decisions was changed, or they were lost. Stop; or write the next "
        "batch, whatever was decided of it elsewhere. For one start: take it out when a batch is decided.",
    ),
    Option(
        name="write.id",
        values="name",
        sides=_SINK,
        queries=_BATCH,
        doc="The name of this write: again with the same rows it writes nothing, with others it stops.",
    ),
    Option(
        name="decisions.topic",
        values="name",
        default=f"`{DECISIONS_TOPIC}`",
        sides=(ConnectorSide.SOURCE, ConnectorSide.SINK),
        doc="Where decisions are kept: one compacted topic for all queries of a cluster, made when missing.",
    ),
    _refused_option(
        "asyncProgressTrackingEnabled",
        "batches are decided one by one, and Spark's log must know of one before the next begins",
        _SINK,
    ),
    _refused_option("kafka.key.serializer", "keys are strings or bytes; convert them with Spark", _SINK),
    _refused_option("kafka.value.serializer", "values are strings or bytes; convert them with Spark", _SINK),
    _refused_option(
        "kafka.partitioner.class", "no Java classes are loaded; give rows a column partition", _SINK
    ),
)
