"""One output as one Spark query: this is where it is decided which sink carries it."""

from collections.abc import Mapping

from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from tallystick.kernel.value import frozen
from tallystick.pipeline.checkpoints import checkpoint_of
from tallystick.pipeline.clients import sink_options
from tallystick.pipeline.definition import Definition, Output
from tallystick.pipeline.outputs import records
from tallystick.spark.deciding import NewCheckpoint


@frozen(kw_only=True)
class Start:
    """How the queries are started.

    once    read what is there now, in as many batches as it takes, and end
    on_new  what to do where decisions are known and the checkpoint is not
    """

    once: bool = False
    on_new: NewCheckpoint = NewCheckpoint.REFUSE


def start_query(
    spark: SparkSession, definition: Definition, output: Output, client: Mapping[str, str], how: Start
) -> StreamingQuery:
    """Start the query of an output; its views are declared.

    Args:
        client: [kafka], or the address of the pipeline's own broker: `bootstrap.servers` among them.
    Raises: BadConfig with what Spark says of a key or a value.
    """
    writer = (
        records(spark, definition, output)
        .writeStream.format("tallystick")
        .queryName(definition.prefix(output))
        .outputMode(output.mode.value)
        .options(**sink_options(definition, output, client))
        .option("onNewCheckpoint", how.on_new.value)
        .option("checkpointLocation", checkpoint_of(definition, output))
    )
    if how.once:
        return writer.trigger(availableNow=True).start()
    return writer.trigger(processingTime=definition.trigger or "0 seconds").start()
