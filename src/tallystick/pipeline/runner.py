"""A pipeline that runs: its broker, its Spark and its queries, from start to stop.

Stopping goes from the outside in: the queries, then what they left undecided is ended, then Spark, then the
broker. Whoever is killed instead leaves all that to the next start, which finds it out [PIP-1].
"""

import json
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Final, Self, cast

from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from tallystick.broker.embedded import EmbeddedBroker
from tallystick.pipeline.checkpoints import check_checkpoints
from tallystick.pipeline.clients import of_role
from tallystick.pipeline.definition import Broker, Definition, Output
from tallystick.pipeline.output_query import Start, resume_options, start_query, station_of
from tallystick.pipeline.progress import Progress, progress_of
from tallystick.pipeline.status import Watch
from tallystick.pipeline.topics import require_topics
from tallystick.pipeline.views import make_views
from tallystick.spark.data_source import register
from tallystick.spark.protocol.decide import NewCheckpoint, NewPrefix
from tallystick.spark.session import spark_session
from tallystick.spark.sink.lease_handover import driver_of, settle

_BROKER: Final = {"flush.policy": "ack", "transaction.two.phase.commit.enable": "true"}
_POLL_S: Final = 0.2
# To end what a query left open, after it was stopped: a broker that is away must not hold up the end.
_PATIENCE_MS: Final = 5000
# A display must not hang on a broker that is away.
_LOOK_MS: Final = 2000


class Running:
    """Queries that have been started. `stop` ends them and everything that was started for them."""

    def __init__(self, definition: Definition, how: Start, spark: SparkSession | None) -> None:
        """Args:
            spark: of the caller, who keeps it; without it one is started, with the pipeline's settings.
        Raises: BadConfig, NoJava, BrokerDidNotStart, a client's errors; then nothing is left running.
        """
        self.definition = definition
        self.queries: dict[str, StreamingQuery] = {}
        self._seen: dict[str, str] = {}
        with ExitStack() as stack:
            self.client = _cluster(stack, definition)
            require_topics(definition, of_role("admin", self.client), make=definition.broker is not None)
            if how.on_new_prefix is NewPrefix.REFUSE:
                check_checkpoints(definition)
            self._spark = spark or _session(stack, definition)
            register(self._spark)
            make_views(self._spark, definition, self.client)
            stack.callback(self._stop_queries)
            for output in definition.outputs:
                if how.on_new is NewCheckpoint.RESUME:  # each where its own decisions ended
                    make_views(self._spark, definition, self.client, resume_options(definition, output))
                query = start_query(self._spark, definition, output, self.client, how)
                self.queries[output.name] = query
            self._owned = stack.pop_all()

    @property
    def bootstrap_servers(self) -> str:
        return self.client["bootstrap.servers"]

    @property
    def active(self) -> bool:
        """Do all queries run that are to? When one has failed, the pipeline has."""
        return self.failed is None and any(query.isActive for query in self.queries.values())

    @property
    def failed(self) -> tuple[Output, PySparkException] | None:
        """The first output whose query ended with an error, and the error."""
        for output in self.definition.outputs:
            query = self.queries[output.name]
            error = None if query.isActive else query.exception()
            if error is not None:
                return output, error
        return None

    def progress(self) -> Iterator[Progress]:
        """The batches that have ended since this was asked last, by outputs."""
        for name, query in self.queries.items():
            for said in self._unseen(name, query):
                progress = progress_of(name, said)
                if progress is not None:
                    yield progress

    def _unseen(self, name: str, query: StreamingQuery) -> Iterator[Mapping[str, object]]:
        last = query.lastProgress
        if last is None or last.timestamp == self._seen.get(name):
            return
        before, self._seen[name] = self._seen.get(name, ""), last.timestamp
        for each in query.recentProgress:
            if before < each.timestamp <= last.timestamp:
                yield cast(Mapping[str, object], json.loads(each.json))

    def wait(self, timeout_s: float | None = None) -> bool:
        """Until every query has ended by itself, or one has failed; False when the time is up before that.

        Raises: what ended the query that failed.
        """
        limit = None if timeout_s is None else time.monotonic() + timeout_s
        while self.active:
            if limit is not None and time.monotonic() > limit:
                return False
            time.sleep(_POLL_S)
        if self.failed is not None:
            raise self.failed[1]
        return True

    def stop(self) -> None:
        """End the queries, what they left undecided, Spark and the broker; again is harmless."""
        self._owned.close()

    def _stop_queries(self) -> None:
        for output in self.definition.outputs:
            query = self.queries.get(output.name)
            if query is not None and query.isActive:
                query.stop()
                self._settle(output)

    def _settle(self, output: Output) -> None:
        """Give the last batch up, if the sink has not: else what its tasks prepared stays open for long.

        Under the lease of that batch, and not by a claim: an instance that has taken over, as in a rolling
        deployment, is left alone.
        """
        station = station_of(self._spark, self.definition, output, self.client, _PATIENCE_MS)
        try:
            settle(station, driver_of(self._spark))
        finally:
            station.close()

    def watch(self, output: Output) -> Watch:
        """Somebody who looks what is decided; the caller closes it."""
        return Watch(station_of(self._spark, self.definition, output, self.client, _LOOK_MS))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()


def _cluster(stack: ExitStack, definition: Definition) -> Mapping[str, str]:
    """Settings of clients; the broker of the pipeline's own is started for them where it has one."""
    if definition.kafka is not None:
        return definition.kafka
    assert definition.broker is not None  # checked with the definition
    broker = stack.enter_context(_own_broker(definition.broker))
    return {"bootstrap.servers": broker.bootstrap_servers}


def _own_broker(broker: Broker) -> EmbeddedBroker:
    listen = {} if broker.listen is None else {"listeners": f"PLAINTEXT://{broker.listen}"}
    return EmbeddedBroker(Path(broker.data_dir), config={**_BROKER, **listen, **broker.settings})


def _session(stack: ExitStack, definition: Definition) -> SparkSession:
    folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="tallystick-spark-")))
    settings = dict(definition.spark)
    master = settings.pop("spark.master", "local[*]")
    spark = spark_session(definition.name, folder, master=master, settings=settings)
    stack.callback(spark.stop)
    return spark
