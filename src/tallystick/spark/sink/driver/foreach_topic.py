"""`foreach_batch` for one topic: the data source's sink as a function for `foreachBatch`.

    query = events.writeStream.foreachBatch(foreach_batch({
        "kafka.bootstrap.servers": "localhost:9092",
        "transactional.id.prefix": "pipeline.flights",
        "topic": "delays",
    })).start()

One Spark action, a `collect` of votes, runs the whole plan once, even for a batch that was decided before:
Spark fails a stateful query whose state stores did not commit (SPARK-52008).
"""

from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Final

import pyarrow as pa
import pyspark

from tallystick.kernel.settings import BadConfig
from tallystick.spark import sink, tracing
from tallystick.spark.checkpoint import read_end_offsets, read_query_start
from tallystick.spark.options.option_table import QueryType
from tallystick.spark.options.sink_options import SinkOptions
from tallystick.spark.protocol.committable import (
    BatchLease,
    MicroBatch,
    Vote,
    build_empty_vote,
    decode_vote,
    encode_vote,
)
from tallystick.spark.runtime.versions import SparkFeature, check_feature
from tallystick.spark.sink.driver.columns import parse_checked_options
from tallystick.spark.sink.driver.context import OpenContext, get_sink_context
from tallystick.spark.sink.task.attempt import run_attempt
from tallystick.spark.sink.task.context import OpenTaskContext, get_task_context

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from tallystick.spark.sink.task.encoding import RecordEncoding


_QUERY_ID_PROPERTY: Final = "sql.streaming.queryId"
_RUN_ID_PROPERTY: Final = "spark.jobGroup.id"
"""Set by Spark's StreamExecution to the id of the query's run."""
_VOTE_SCHEMA: Final = "vote binary"


def foreach_batch(
    options: Mapping[str, str],
    transform: "Callable[[DataFrame], DataFrame] | None" = None,
    *,
    query_id: str | None = None,
    connect: OpenContext | None = None,
) -> "Callable[[DataFrame, int], None]":
    """Return a function for `writeStream.foreachBatch` that writes each batch exactly once.

    Args:
        options: the sink's options (docs/spark/options.md).
        transform: makes the sink's columns from a batch; without it, the batch must have them.
        query_id: an id that is the same in all runs on one checkpoint, and different for each checkpoint.
            Required under Spark Connect; classic Spark knows it.
        connect: connects a process to the cluster; crash tests replace it.
    Raises: when a batch is run: BadConfig, SinkErrors, UnsupportedSpark.
    """

    def write(frame: "DataFrame", batch_id: int) -> None:
        check_feature(SparkFeature.FOREACH_BATCH, pyspark.__version__)
        rows = frame if transform is None else transform(frame)
        sink_options = parse_checked_options(options, rows.schema, QueryType.STREAM)
        encoding = None
        if any(each.has_schema for each in sink_options.formats.fields):
            encoding = sink.schemas.resolve_encoding(sink_options, rows.schema)
        context = (connect or get_sink_context)(sink_options)
        job = MicroBatch(find_query_id(frame, query_id), batch_id)
        tracing.set_up(sink_options.tracing_setup)
        with tracing.trace_part("spark batch", sink_options.prefix, job) as trace:
            lease = context.begin(
                query_id=job.query_id,
                resuming=read_query_start(sink_options, job.query_id),
                run_id=find_run_id(frame),
            )
            task = _create_task(sink_options, lease, job, connect or get_task_context, encoding)
            votes: list[Vote | None] = []
            try:
                vote_rows = rows.mapInArrow(task, _VOTE_SCHEMA).collect()
                # A batch without partitions has no task, so the driver votes for it.
                votes = [decode_vote(bytes(row.vote)) for row in vote_rows] or [
                    run_attempt(context, lease, job, ())
                ]
                trace.describe_votes(votes)
                context.commit(votes, read_end_offsets(sink_options.checkpoint, batch_id))
            except BaseException:
                context.try_abort(votes or [build_empty_vote(lease)])
                raise

    return write


def _create_task(
    options: SinkOptions,
    lease: BatchLease,
    job: MicroBatch,
    connect: OpenTaskContext,
    encoding: "RecordEncoding | None",
) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    carrier = tracing.carry()

    def run(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        tracing.set_up(options.tracing_setup)
        rows = batches if encoding is None else sink.encoding.encode_batches(batches, encoding)
        with tracing.resume(carrier), tracing.trace_part("spark task", options.prefix, job) as trace:
            vote = run_attempt(connect(options), lease, job, rows)
            trace.describe_votes([vote])
        yield pa.record_batch([pa.array([encode_vote(vote)])], names=["vote"])

    return run


def find_query_id(frame: "DataFrame", query_id: str | None) -> str:
    """Return the query's id, from the driver thread's local properties unless given. Raises: BadConfig."""
    if query_id is not None:
        return query_id
    local_property = _find_local_property(frame, _QUERY_ID_PROPERTY)
    if local_property is None:
        raise BadConfig("query_id: required with Spark Connect, which does not reveal it")
    return local_property


def find_run_id(frame: "DataFrame") -> str:
    """Return the id of the query's run. Under Spark Connect it is empty: each run has a process there."""
    return _find_local_property(frame, _RUN_ID_PROPERTY) or ""


def _find_local_property(frame: "DataFrame", name: str) -> str | None:
    session = frame.sparkSession
    if not hasattr(session, "_jsparkSession"):
        return None
    return session.sparkContext.getLocalProperty(name)
