"""`foreach_batch`: write each batch to topics and tables atomically.

    events.writeStream.foreachBatch(foreach_batch(
        {"kafka.bootstrap.servers": "localhost:9092", "transactional.id.prefix": "pipeline.flights"},
        to_topic("delays.by_flight", key="flight"),
        to_table("delays", columns=["flight", "delay"]),
        database="postgresql://localhost/flights",
    )).start()

The coordinator, the leases and the votes are those of the data source. With a database the decision is one of
its rows (`row`), and the tasks stage the tables' rows (`staging`). A batch is one Spark action, a `collect`
of votes: it runs the whole plan once, even for a batch that was decided before (SPARK-52008).
"""

from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Final, cast

from tallystick import _lazy
from tallystick.kernel.settings import BadConfig
from tallystick.kernel.value import frozen, replace
from tallystick.spark.checkpoint import offsets_after, resuming
from tallystick.spark.options.option_table import Query
from tallystick.spark.options.sink_options import SinkOptions, write_options
from tallystick.spark.options.sinks import Moves, Sink, ToTable, ToTopic, quoted, sink_problems
from tallystick.spark.protocol.committable import Batch, Vote, decode_vote, no_vote
from tallystick.spark.sink import foreach_topic
from tallystick.spark.sink.combined_attempt import TABLE_STATION, Work
from tallystick.spark.sink.context import Connect, Station, station
from tallystick.spark.sink.lease_handover import forget, keep
from tallystick.spark.sink.projection import projected

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from tallystick.spark.decisions.database import Database
    from tallystick.spark.sink.database_context import Make, TableStation

_VOTES: Final = "vote binary, attempt string"


@frozen(kw_only=True)
class ForeachBatch:
    """The function for `foreachBatch`. It holds plain values only: Spark Connect sends it to its server."""

    options: SinkOptions
    sinks: tuple[Sink, ...]
    url: str | None
    query_id: str | None
    connect: Connect = station
    connect_database: "Make | None" = None

    def __call__(self, frame: "DataFrame", batch_id: int) -> None:
        where = None if self.url is None else _lazy.load(TABLE_STATION).opened(self.url)
        sinks = tuple(_with_columns(sink, frame.columns) for sink in self.sinks)
        rows = projected(frame, sinks)
        here = self._station(where, sinks)
        job = Batch(foreach_topic.query_of(frame, self.query_id), batch_id)
        lease = here.begin(query_id=job.query_id, resuming=resuming(self.options, job.query_id))
        work = Work(
            options=self.options, lease=lease, job=job, sinks=sinks, where=where, connect=self.connect
        )
        keep(self.options, lease)
        votes: list[Vote] = []
        try:
            found = rows.mapInArrow(work, _VOTES).collect()
            # A batch without partitions has no task, so the driver votes for it.
            told = [(decode_vote(bytes(row.vote)), row.attempt) for row in found] or [work.vote(())]
            votes = [vote for vote, _ in told]
            if where is not None:
                cast("TableStation", here).log.moving(lease.nonce, _moves(sinks, told))
            here.commit(votes, offsets_after(self.options.checkpoint, batch_id))
            forget(self.options)
        except BaseException:
            if here.give_up(votes or [no_vote(lease)]):
                forget(self.options)
            raise

    def _station(self, where: "Database | None", sinks: tuple[Sink, ...]) -> Station:
        if where is None:
            return self.connect(self.options)
        tables = tuple(each for each in sinks if isinstance(each, ToTable))
        at_database = _lazy.load(TABLE_STATION).AtDatabase
        make = {} if self.connect_database is None else {"make": self.connect_database}
        return station(self.options, at_database(where=where, tables=tables, **make))


def foreach_batch(
    options: Mapping[str, str],
    *sinks: Sink,
    database: str | None = None,
    query_id: str | None = None,
) -> "Callable[[DataFrame, int], None]":
    """Return a function for `writeStream.foreachBatch` that writes each batch to all sinks exactly once.

    Args:
        options: the sink's options (docs/spark.md); `topic` only without sinks.
        sinks: `to_topic(...)` and `to_table(...)`. Without any, the batch has the columns of the data
            source's sink, and the options are its options.
        database: the SQLAlchemy URL of the database with the tables and the decisions: PostgreSQL, MariaDB,
            MySQL, or SQLite if all tasks run on the driver's host.
        query_id: an id that is the same in all runs on one checkpoint, and different for each checkpoint.
            Required under Spark Connect; classic Spark knows it.
    Raises: BadConfig with all problems at once; MissingLibrary. When a batch is run: BadConfig, SinkErrors,
        errors of client and database.
    """
    if not sinks and database is None:
        return foreach_topic.foreach_batch(options, query_id=query_id)
    problems = list(sink_problems(sinks, database))
    if any(name.lower() == "topic" for name in options):
        problems.append("topic: each to_topic has its own")
    checked = None
    try:
        checked = write_options(options, Query.STREAM)
    except BadConfig as exc:
        problems += str(exc).splitlines()
    if problems or checked is None:
        raise BadConfig("\n".join(problems))
    if database is not None:
        checked = _lazy.load(TABLE_STATION).in_database(checked)
    return ForeachBatch(options=checked, sinks=sinks, url=database, query_id=query_id)


def _with_columns(sink: Sink, columns: Iterable[str]) -> Sink:
    if isinstance(sink, ToTopic) or sink.columns is not None:
        return sink
    return replace(sink, columns=tuple((name, quoted(name)) for name in columns))


def _moves(sinks: tuple[Sink, ...], told: list[tuple[Vote, str]]) -> Moves:
    rows = [
        sum(vote.tallies[number].rows for vote, _ in told)
        for number, sink in enumerate(sinks)
        if isinstance(sink, ToTable)
    ]
    return Moves(attempts=tuple(attempt for _, attempt in told), rows=tuple(rows))
