"""Spark query of one output, with the choice of the sink that carries it.

Topics alone go through the data source's sink, which keeps its decisions in a topic. With a table among the
sinks, a row in its database decides. Either way the next start reads what was decided.
"""

from collections.abc import Iterable, Mapping

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f
from pyspark.sql.streaming.query import StreamingQuery

from tallystick.kernel.value import Value, replace
from tallystick.pipeline.clients import build_sink_options, settings_of_role
from tallystick.pipeline.definition import (
    Definition,
    OutputDefinition,
    SinkDefinition,
    TableSink,
    TableWrite,
    TopicSink,
    checkpoint_location,
)
from tallystick.pipeline.encoding import encode_sinks
from tallystick.pipeline.outputs import build_records, dead_letter_records, dead_letter_sources
from tallystick.spark.options.option_table import TABLE_STORAGE_PREFIX
from tallystick.spark.options.sink_options import SinkOptions
from tallystick.spark.options.sinks import (
    Sink,
    ToTable,
    WriteMode,
    find_lake_table,
    quote_column,
    to_table,
    to_topic,
)
from tallystick.spark.protocol.decide import NewCheckpoint, NewPrefix
from tallystick.spark.sink.driver.context import SinkContext
from tallystick.spark.sink.driver.foreach_batch import foreach_batch
from tallystick.spark.sink.driver.lake import look_up_table
from tallystick.spark.sink.driver.recovery import open_store_context

_DEAD_LETTER_COLUMN = "_dead_letter"


class StartOptions(Value, kw_only=True):
    """Options for starting the queries.

    once               read the data available now, in as many batches as needed, and end
    on_new_checkpoint  action if decisions exist and the checkpoint is new
    on_new_prefix      action if the checkpoint continues and its decisions are unknown
    """

    once: bool = False
    on_new_checkpoint: NewCheckpoint = NewCheckpoint.REFUSE
    on_new_prefix: NewPrefix = NewPrefix.REFUSE


def start_query(
    spark: SparkSession,
    definition: Definition,
    output: OutputDefinition,
    client: Mapping[str, str],
    how: StartOptions,
) -> StreamingQuery:
    """Start the query of an output, whose views are already declared.

    Args:
        client: [kafka], or the address of the pipeline's own broker; includes `bootstrap.servers`.
    Raises: BadConfig with Spark's error for a key or value expression.
    """
    options = {
        **build_sink_options(definition, output, client),
        "onNewCheckpoint": how.on_new_checkpoint.value,
        "onNewPrefix": how.on_new_prefix.value,
        "checkpointLocation": checkpoint_location(definition, output),
    }
    if output.database is None:
        writer = build_records(spark, definition, output).writeStream.format("tallystick").options(**options)
    else:
        rows = _add_dead_letters(spark, definition, output)
        sinks = _build_sinks(spark, definition, output, encode_sinks(spark, definition, output))
        database = None if find_lake_table(sinks) is not None else output.database
        together = foreach_batch(options, *sinks, database=database)
        writer = rows.writeStream.foreachBatch(together)
    writer = (
        writer.queryName(definition.prefix_of(output))
        .outputMode(output.mode.value)
        .option("checkpointLocation", options["checkpointLocation"])
    )
    if how.once:
        return writer.trigger(availableNow=True).start()
    return writer.trigger(processingTime=definition.trigger or "0 seconds").start()


def look_up_tables(spark: SparkSession, definition: Definition) -> Definition:
    """Return the definition with the paths of lake tables that it names as Spark's catalog does.

    Raises: UnusableTable.
    """

    def look_up(sink: SinkDefinition) -> SinkDefinition:
        return replace(sink, table=look_up_table(spark, sink.table)) if isinstance(sink, TableSink) else sink

    return replace(
        definition,
        outputs=tuple(
            replace(output, sinks=tuple(look_up(sink) for sink in output.sinks))
            for output in definition.outputs
        ),
    )


def resume_options(definition: Definition, output: OutputDefinition) -> dict[str, str]:
    """Build the source options that start reading where the last decision of an output ended."""
    decisions_place = {} if output.database is None else {"resume.from.database": output.database}
    storage = {
        f"{TABLE_STORAGE_PREFIX}{name}": text
        for sink in output.sinks
        if isinstance(sink, TableSink)
        for name, text in sink.storage_options.items()
    }
    return {
        **decisions_place,
        **storage,
        "resume.from.prefix": definition.prefix_of(output),
        "checkpointLocation": checkpoint_location(definition, output),
    }


def open_sink_context(
    spark: SparkSession,
    definition: Definition,
    output: OutputDefinition,
    client: Mapping[str, str],
    patience_ms: int,
) -> SinkContext:
    """Open the decision state of an output's query, to inspect it or to end what the query left open.

    Args:
        patience_ms: timeout of each request, so that an unreachable cluster does not block the caller.
    """
    options = SinkOptions(
        prefix=definition.prefix_of(output),
        client={**settings_of_role("producer", client), "max.block.ms": str(patience_ms)},
        modes=definition.modes,
    )
    if output.database is None:
        return SinkContext(options)
    sinks = _build_sinks(spark, definition, output, output.sinks)
    tables = tuple(sink for sink in sinks if isinstance(sink, ToTable))
    return open_store_context(options, output.database, tables)


def _build_sinks(
    spark: SparkSession, definition: Definition, output: OutputDefinition, parts: Iterable[SinkDefinition]
) -> tuple[Sink, ...]:
    """Build the sinks of an output with tables, including those for the dead letters of its sources."""
    columns = spark.table(output.view).columns
    alive = f"{_DEAD_LETTER_COLUMN} IS NULL" if dead_letter_sources(definition, output) else None
    row_as_json = (
        f"to_json(struct({', '.join(map(quote_column, columns))}), map('ignoreNullFields', 'false'))"
    )
    sinks: list[Sink] = []
    for sink in parts:
        match sink:
            case TopicSink():
                sinks.append(to_topic(sink.topic, key=sink.key, value=sink.value or row_as_json, where=alive))
            case TableSink():
                write: WriteMode = "upsert" if sink.write is TableWrite.UPSERT else "append"
                sinks.append(
                    to_table(
                        sink.table,
                        columns=columns,
                        write=write,
                        keys=sink.keys,
                        where=alive,
                        merge_schema=sink.merge_schema,
                        storage_options=sink.storage_options,
                    )
                )
    for source in dead_letter_sources(definition, output):
        dead = {name: f"{_DEAD_LETTER_COLUMN}.{name}" for name in ("key", "value", "headers")}
        sinks.append(
            to_topic(
                str(source.dead_letter), **dead, where=f"{_DEAD_LETTER_COLUMN}.topic = '{source.dead_letter}'"
            )
        )
    return tuple(sinks)


def _add_dead_letters(spark: SparkSession, definition: Definition, output: OutputDefinition) -> DataFrame:
    """Return the rows of the view together with the dead letters, in a column of their own."""
    rows = spark.table(output.view)
    for source in dead_letter_sources(definition, output):
        dead = dead_letter_records(spark, source).select(f.struct("*").alias(_DEAD_LETTER_COLUMN))
        rows = rows.unionByName(dead, allowMissingColumns=True)
    return rows
