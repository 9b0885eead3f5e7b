"""`foreach_batch`: write each batch to topics and tables atomically.

    events.writeStream.foreachBatch(foreach_batch(
        {"kafka.bootstrap.servers": "localhost:9092", "transactional.id.prefix": "pipeline.flights"},
        to_topic("delays.by_flight", key="flight"),
        to_table("delays", columns=["flight", "delay"]),
        database="postgresql://localhost/flights",
    )).start()

The coordinator, the leases and the votes are those of the data source. With a database the decision is one of
its rows (`row`), and the tasks stage the tables' rows (`staging`). With a lake table the decision is one of
its commits (`lake_row`), and the tasks write its data files (`lake.data_files`). A batch is one Spark action,
a `collect` of votes: it runs the whole plan once, even for a batch that was decided before (SPARK-52008).
"""

from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Final, cast

import pyspark

from tallystick.kernel.settings import BadConfig
from tallystick.kernel.value import Value, replace
from tallystick.spark import sink as spark_sink
from tallystick.spark import tracing
from tallystick.spark.checkpoint import read_end_offsets, read_query_start
from tallystick.spark.options.option_table import QueryType
from tallystick.spark.options.sink_options import SinkOptions, parse_sink_options, with_database_suffix
from tallystick.spark.options.sinks import (
    Sink,
    StagedMoves,
    ToTable,
    ToTopic,
    find_lake_table,
    find_sink_problems,
    quote_column,
)
from tallystick.spark.protocol.committable import MicroBatch, Vote, build_empty_vote, decode_vote
from tallystick.spark.runtime.versions import SparkFeature, check_feature
from tallystick.spark.sink.driver import foreach_topic
from tallystick.spark.sink.driver.context import OpenContext, SinkContext, get_sink_context
from tallystick.spark.sink.driver.lake import locate_table, look_up_table, prepare_target
from tallystick.spark.sink.driver.lake_context import CreateLakeContext, LakeSinkContext, OpenLakeContext
from tallystick.spark.sink.driver.lease_handover import keep_in_memory, remove_lease
from tallystick.spark.sink.driver.projection import project_sinks
from tallystick.spark.sink.task.combined_attempt import CombinedTask, LakeTarget, name_sink_column
from tallystick.spark.sink.task.context import get_task_context

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from tallystick.spark.decisions.database import DecisionDatabase
    from tallystick.spark.sink.driver.database_context import CreateDatabaseContext, DatabaseSinkContext

_VOTE_SCHEMA: Final = "vote binary, attempt string"


class ForeachBatch(Value, kw_only=True):
    """The function for `foreachBatch`. It holds plain values only: Spark Connect sends it to its server."""

    options: SinkOptions
    sinks: tuple[Sink, ...]
    database_url: str | None
    query_id: str | None
    open_context: OpenContext | None = None
    create_database_context: "CreateDatabaseContext | None" = None
    create_lake_context: CreateLakeContext = LakeSinkContext

    def __call__(self, frame: "DataFrame", batch_id: int) -> None:
        check_feature(SparkFeature.FOREACH_BATCH, pyspark.__version__)
        sinks = tuple(_look_up(_fill_columns(sink, frame.columns), frame) for sink in self.sinks)
        rows = project_sinks(frame, sinks)
        where = self._find_store(sinks, rows)
        context = self._open_context(where, sinks)
        job = MicroBatch(foreach_topic.find_query_id(frame, self.query_id), batch_id)
        tracing.set_up(self.options.tracing_setup)
        with tracing.trace_part("spark batch", self.options.prefix, job) as trace:
            trace.describe_votes(self._run_batch(context, job, sinks, where, rows))

    def _run_batch(
        self,
        context: SinkContext,
        job: MicroBatch,
        sinks: tuple[Sink, ...],
        where: "DecisionDatabase | LakeTarget | None",
        rows: "DataFrame",
    ) -> list[Vote]:
        resuming = read_query_start(self.options, job.query_id)
        lease = context.begin(
            query_id=job.query_id, resuming=resuming, run_id=foreach_topic.find_run_id(rows)
        )
        work = CombinedTask(
            options=self.options,
            lease=lease,
            job=job,
            sinks=sinks,
            store=where,
            open_context=self.open_context or get_task_context,
            trace_carrier=tracing.carry(),
        )
        keep_in_memory(self.options, lease)
        votes: list[Vote] = []
        try:
            vote_rows = rows.mapInArrow(work, _VOTE_SCHEMA).collect()
            # A batch without partitions has no task, so the driver votes for it.
            staged_votes = [(decode_vote(bytes(row.vote)), row.attempt) for row in vote_rows] or [
                work.run(())
            ]
            votes = [vote for vote, _ in staged_votes]
            if where is not None:
                cast("DatabaseSinkContext | LakeSinkContext", context).decision_log.set_staged_moves(
                    lease.nonce, _collect_staged_moves(sinks, staged_votes)
                )
            context.commit(votes, read_end_offsets(self.options.checkpoint, job.batch_id))
            remove_lease(self.options)
        except BaseException:
            if context.try_abort(votes or [build_empty_vote(lease)]):
                remove_lease(self.options)
            raise
        return votes

    def _find_store(
        self, sinks: tuple[Sink, ...], rows: "DataFrame"
    ) -> "DecisionDatabase | LakeTarget | None":
        """Return the place of the decision, checked against the batch. Raises: BadConfig, LakeErrors."""
        table = find_lake_table(sinks)
        if table is not None:
            column = rows.schema[name_sink_column(sinks.index(table))]
            return prepare_target(locate_table(table), table, column.dataType)
        if self.database_url is None:
            return None
        return spark_sink.database_context.resolve_database(self.database_url)

    def _open_context(
        self, where: "DecisionDatabase | LakeTarget | None", sinks: tuple[Sink, ...]
    ) -> SinkContext:
        if where is None:
            return (self.open_context or get_sink_context)(self.options)
        if isinstance(where, LakeTarget):
            open_lake = OpenLakeContext(location=where.location, create=self.create_lake_context)
            context = get_sink_context(self.options, open_lake)
            cast(LakeSinkContext, context).lake_row.expect_batch(where.definition, where.keys)
            return context
        tables = tuple(each for each in sinks if isinstance(each, ToTable))
        open_context = spark_sink.database_context.OpenDatabaseContext
        make = {} if self.create_database_context is None else {"create": self.create_database_context}
        return get_sink_context(self.options, open_context(database=where, tables=tables, **make))


def foreach_batch(
    options: Mapping[str, str],
    *sinks: Sink,
    database: str | None = None,
    query_id: str | None = None,
) -> "Callable[[DataFrame, int], None]":
    """Return a function for `writeStream.foreachBatch` that writes each batch to all sinks exactly once.

    Args:
        options: the sink's options (docs/spark/options.md); `topic` only without sinks.
        sinks: `to_topic(...)` and `to_table(...)`. Without any, the batch has the columns of the data
            source's sink, and the options are its options. A table of a lake, `to_table("delta:...")`, is
            the only table of its query, and needs no database.
        database: the SQLAlchemy URL of the database with the tables and the decisions: PostgreSQL, MariaDB,
            MySQL, or SQLite if all tasks run on the driver's host.
        query_id: an id that is the same in all runs on one checkpoint, and different for each checkpoint.
            Required under Spark Connect; classic Spark knows it.
    Raises: BadConfig with all problems at once; MissingLibrary. When a batch is run: BadConfig, SinkErrors,
        errors of client and database.
    """
    has_table = any(name.lower() == "table" for name in options)
    if not sinks and database is None and not has_table:
        return foreach_topic.foreach_batch(options, query_id=query_id)
    problems = list(find_sink_problems(sinks, database))
    if has_table:
        problems.append("table: write to_table(...) among the sinks, not as an option of the query")
    if any(name.lower() == "topic" for name in options):
        problems.append("topic: set it in each to_topic, not for the whole query")
    sink_options = None
    try:
        sink_options = parse_sink_options(options, QueryType.STREAM)
        problems += [
            f"{each.field}.format: encode with a function of register_serializer in to_topic"
            for each in sink_options.formats.fields
        ]
    except BadConfig as exc:
        problems += str(exc).splitlines()
    if problems or sink_options is None:
        raise BadConfig("\n".join(problems))
    if database is not None or find_lake_table(sinks) is not None:
        sink_options = with_database_suffix(sink_options)
    return ForeachBatch(options=sink_options, sinks=sinks, database_url=database, query_id=query_id)


def _fill_columns(sink: Sink, columns: Iterable[str]) -> Sink:
    if isinstance(sink, ToTopic) or sink.columns is not None:
        return sink
    return replace(sink, columns=tuple((name, quote_column(name)) for name in columns))


def _look_up(sink: Sink, frame: "DataFrame") -> Sink:
    if isinstance(sink, ToTopic):
        return sink
    return replace(sink, table=look_up_table(frame.sparkSession, sink.table))


def _collect_staged_moves(sinks: tuple[Sink, ...], staged_votes: list[tuple[Vote, str]]) -> StagedMoves:
    rows = [
        sum(vote.row_checksums[number].rows for vote, _ in staged_votes)
        for number, sink in enumerate(sinks)
        if isinstance(sink, ToTable)
    ]
    return StagedMoves(attempts=tuple(attempt for _, attempt in staged_votes), rows=tuple(rows))
