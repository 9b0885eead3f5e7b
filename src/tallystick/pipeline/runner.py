"""Python API of pipelines: load a file or a definition, start it, and stop its queries, session and broker.

    with Pipeline.from_file("delays.toml").start(once=True) as running:
        running.wait()

The order of stopping: the queries, the transactions they left undecided, Spark, the broker. A pipeline that
is killed leaves its undecided transactions to the next start, which resolves them [PIP-1].
"""

import json
import os
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

from tallystick.admin.client import Admin
from tallystick.admin.topics import NewTopic
from tallystick.broker.embedded import EmbeddedBroker
from tallystick.kernel.check import require
from tallystick.kernel.errors import TallystickError
from tallystick.kernel.settings import BadConfig
from tallystick.kernel.value import Value
from tallystick.pipeline.clients import check_definition, settings_of_role
from tallystick.pipeline.definition import (
    Definition,
    OutputDefinition,
    OwnBrokerDefinition,
    checkpoint_location,
)
from tallystick.pipeline.definition_toml import parse_definition
from tallystick.pipeline.output_query import (
    StartOptions,
    look_up_tables,
    open_sink_context,
    resume_options,
    start_query,
)
from tallystick.pipeline.progress import Progress, parse_progress
from tallystick.pipeline.views import declare_views
from tallystick.spark.checkpoint import find_local_folder, read_decision_locations
from tallystick.spark.protocol.coordinator import PrefixStatus
from tallystick.spark.protocol.decide import NewCheckpoint, NewPrefix, ParticipantOutcome
from tallystick.spark.protocol.transactional_ids import DATABASE_SUFFIX
from tallystick.spark.session import register, spark_session
from tallystick.spark.sink.driver.context import SinkContext
from tallystick.spark.sink.driver.lease_handover import abort_unfinished_batch

_BROKER_SETTINGS: Final = {"flush.policy": "ack", "transaction.two.phase.commit.enable": "true"}
# File name of the note about a checkpoint that earlier versions wrote: the prefix alone.
_PREFIX_FILE: Final = "tallystick-prefix"
_POLL_S: Final = 0.2
# Timeout for ending what a stopped query left open: an unreachable broker must not delay the stop.
_STOP_TIMEOUT_MS: Final = 5000
# A display must not block on an unreachable broker.
_WATCH_TIMEOUT_MS: Final = 2000


class DecisionStatus(Value, kw_only=True):
    """The state of a prefix.

    last_batch      last decided batch; None before the first
    mode            mode of its transactions
    in_doubt_count  number of open transactions, of the running batch or left by a crashed one
    """

    last_batch: int | None
    mode: str
    decided_ms: int | None
    in_doubt_count: int


class DecisionWatch:
    """A repeatable view of the state of one output's prefix.

    It changes nothing, except that it creates the decisions topic if missing. `close` ends its connections.
    """

    def __init__(self, context: SinkContext) -> None:
        self._context = context

    def read_status(self) -> DecisionStatus | None:
        """Return the current state; None if the cluster did not answer."""
        try:
            return to_decision_status(self._context.run(self._context.coordinator.inspect(), "look"))
        except TallystickError:
            return None

    def close(self) -> None:
        self._context.close()


def to_decision_status(standing: PrefixStatus) -> DecisionStatus:
    last = standing.decision
    return DecisionStatus(
        last_batch=None if last is None else last.batch_id,
        mode="" if last is None else last.mode,
        decided_ms=None if last is None else last.decided_ms,
        in_doubt_count=len(standing.undecided_ids)
        + sum(fate is ParticipantOutcome.OPEN for fate in standing.outcomes.values()),
    )


class Running:
    """A started pipeline. `stop` ends its queries and everything that was started for them."""

    def __init__(self, definition: Definition, how: StartOptions, spark: SparkSession | None) -> None:
        """Start the pipeline.

        Args:
            spark: a session owned by the caller; without it one is started with the pipeline's settings.
        Raises: BadConfig, NoJava, BrokerDidNotStart, client errors; nothing is left running then.
        """
        self.definition = definition
        self.queries: dict[str, StreamingQuery] = {}
        self._last_timestamps: dict[str, str] = {}
        with ExitStack() as stack:
            self.client = _start_cluster(stack, definition)
            ensure_topics(
                definition, settings_of_role("admin", self.client), make=definition.broker is not None
            )
            if how.on_new_prefix is NewPrefix.REFUSE:
                check_checkpoints(definition)
            self._spark = spark or _start_session(stack, definition)
            register(self._spark)
            self.definition = definition = look_up_tables(self._spark, definition)
            if how.on_new_prefix is NewPrefix.REFUSE:
                check_checkpoints(definition)  # those that only Spark can read
            declare_views(self._spark, definition, self.client)
            stack.callback(self._stop_queries)
            for output in definition.outputs:
                if (
                    how.on_new_checkpoint is NewCheckpoint.RESUME
                ):  # each output starts where its own decisions ended
                    declare_views(self._spark, definition, self.client, resume_options(definition, output))
                query = start_query(self._spark, definition, output, self.client, how)
                self.queries[output.name] = query
            self._exit_stack = stack.pop_all()

    @property
    def bootstrap_servers(self) -> str:
        return self.client["bootstrap.servers"]

    @property
    def active(self) -> bool:
        """Whether the pipeline is running: no query has failed and at least one is active."""
        return self.failed is None and any(query.isActive for query in self.queries.values())

    @property
    def failed(self) -> tuple[OutputDefinition, PySparkException] | None:
        """The first output whose query ended with an error, and the error."""
        for output in self.definition.outputs:
            query = self.queries[output.name]
            error = None if query.isActive else query.exception()
            if error is not None:
                return output, error
        return None

    def progress(self) -> Iterator[Progress]:
        """Yield the batches that have ended since the last call, by output."""
        for name, query in self.queries.items():
            for report in self._new_reports(name, query):
                progress = parse_progress(name, report)
                if progress is not None:
                    yield progress

    def _new_reports(self, name: str, query: StreamingQuery) -> Iterator[Mapping[str, object]]:
        last = query.lastProgress
        if last is None or last.timestamp == self._last_timestamps.get(name):
            return
        before, self._last_timestamps[name] = self._last_timestamps.get(name, ""), last.timestamp
        for each in query.recentProgress:
            if before < each.timestamp <= last.timestamp:
                yield cast(Mapping[str, object], json.loads(each.json))

    def wait(self, timeout_s: float | None = None) -> bool:
        """Wait until every query has ended or one has failed; return False if the timeout expires first.

        Raises: the error of the failed query.
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
        """Stop the queries, end what they left undecided, and stop Spark and the broker. Idempotent."""
        self._exit_stack.close()

    def _stop_queries(self) -> None:
        with ExitStack() as stack:  # a failure of one output leaves none of the others as it is
            for output in reversed(self.definition.outputs):
                if output.name in self.queries:
                    stack.callback(self._stop_query, output)

    def _stop_query(self, output: OutputDefinition) -> None:
        query = self.queries[output.name]
        if query.isActive:
            try:
                query.stop()
            finally:
                self._abort_unfinished(output)

    def _abort_unfinished(self, output: OutputDefinition) -> None:
        """Give up the last batch if the sink has not; otherwise its prepared transactions stay open for long.

        It uses the lease of that batch instead of a claim, so an instance that has taken over, as in a
        rolling deployment, is not disturbed.
        """
        context = open_sink_context(self._spark, self.definition, output, self.client, _STOP_TIMEOUT_MS)
        try:
            abort_unfinished_batch(context)
        finally:
            context.close()

    def watch(self, output: OutputDefinition) -> DecisionWatch:
        """Create a watch on the decisions of an output; the caller closes it."""
        return DecisionWatch(
            open_sink_context(self._spark, self.definition, output, self.client, _WATCH_TIMEOUT_MS)
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()


def _start_cluster(stack: ExitStack, definition: Definition) -> Mapping[str, str]:
    """Return the client settings, after starting the pipeline's own broker if it has one."""
    if definition.kafka is not None:
        return definition.kafka
    own = require(definition.broker, "a definition without a cluster is refused when it is read")
    broker = stack.enter_context(_create_broker(own))
    return {"bootstrap.servers": broker.bootstrap_servers}


def _create_broker(broker: OwnBrokerDefinition) -> EmbeddedBroker:
    listen = {} if broker.listen is None else {"listeners": f"PLAINTEXT://{broker.listen}"}
    return EmbeddedBroker(Path(broker.data_dir), config={**_BROKER_SETTINGS, **listen, **broker.settings})


def _start_session(stack: ExitStack, definition: Definition) -> SparkSession:
    folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="tallystick-spark-")))
    settings = dict(definition.spark)
    master = settings.pop("spark.master", "local[*]")
    spark = spark_session(definition.name, folder, master=master, settings=settings)
    stack.callback(spark.stop)
    return spark


def check_checkpoints(definition: Definition) -> None:
    """Check that no output's checkpoint belongs to another prefix [PIP-2].

    Decisions are kept under the pipeline's name and offsets in its checkpoint, and neither is meaningful
    without the other: under another prefix a decided batch would be repeated. In a checkpoint the sink notes
    where its batches are decided, and refuses any other place (`spark.checkpoint`).
    Here all outputs are checked at once, before anything is started if their checkpoints are local.

    Raises: BadConfig listing all that do; BadCheckpoint, OSError.
    """
    problems = []
    for output in definition.outputs:
        checkpoint = checkpoint_location(definition, output)
        prefix = definition.prefix_of(output) + (DATABASE_SUFFIX if output.database else "")
        noted = _read_prefix(checkpoint, prefix)
        # Notes of earlier versions lack the place of the decisions.
        if noted not in (None, prefix, definition.prefix_of(output)):
            problems.append(
                f"checkpoint: {find_local_folder(checkpoint) or checkpoint} belongs to {noted!r}, and this "
                f"pipeline is {prefix!r}: rows that were decided there would be written again here. Nothing "
                "was read. Use the old name, or another checkpoint; to continue under the new name, add "
                "--on-new-prefix adopt"
            )
    if problems:
        raise BadConfig("\n".join(problems))


def _read_prefix(checkpoint: str, prefix: str) -> str | None:
    homes = read_decision_locations(checkpoint, prefix)
    if homes:
        return homes[0].prefix
    folder = find_local_folder(checkpoint)
    owner = None if folder is None else folder / _PREFIX_FILE
    return None if owner is None or not owner.exists() else owner.read_text().strip()


def ensure_topics(definition: Definition, client: Mapping[str, str], *, make: bool) -> None:
    """Ensure that every topic named by the pipeline exists: only those of its own broker are created.

    Args:
        client: client settings, including `bootstrap.servers`.
        make: create missing topics, with the broker's default number of partitions.
    Raises: BadConfig with each missing topic, its key's path, and the command that creates it; client
        errors.
    """
    topics = {**dict(definition.topics_written()), **dict(definition.topics_read())}
    with Admin(client) as admin:
        there = admin.list_topics(internal=True)
        missing = {topic: path for topic, path in topics.items() if topic not in there}
        if make and missing:
            admin.create_topics(NewTopic(name=topic) for topic in missing).all()
        elif missing:
            servers = client["bootstrap.servers"]
            raise BadConfig(
                "\n".join(
                    f"{path}: there is no topic {topic!r}; make it with `tallystick topics create "
                    f"--topic {topic} --bootstrap-server {servers}`"
                    for topic, path in missing.items()
                )
            )


class Pipeline:
    """A pipeline that can be started. Nothing is connected or read before `start`."""

    def __init__(self, definition: Definition) -> None:
        """Check a definition. Its paths are relative to the current directory. Raises: BadConfig."""
        check_definition(definition)
        self.definition = definition

    @classmethod
    def from_file(cls, path: str | Path, variables: Mapping[str, str] | None = None) -> "Pipeline":
        """Read a `PIPELINE.toml`. Its paths are relative to its folder.

        Args:
            variables: values of `${NAME}`; the environment by default.
        Raises: BadConfig with all problems at once, each with its key's path.
        """
        file = Path(path)
        try:
            text = file.read_text("utf-8")
        except (OSError, UnicodeDecodeError) as exc:
            why = exc.strerror if isinstance(exc, OSError) else f"is not UTF-8: {exc}"
            raise BadConfig(f"{file}: {why}") from exc
        definition = parse_definition(text, str(file), os.environ if variables is None else variables)
        return cls(definition.resolve_paths(str(file.absolute().parent)))

    def start(
        self,
        once: bool = False,
        *,
        on_new: NewCheckpoint = NewCheckpoint.REFUSE,
        on_new_prefix: NewPrefix = NewPrefix.REFUSE,
        spark: SparkSession | None = None,
    ) -> Running:
        """Start the pipeline's own broker, if it has one, Spark, and a query for each output.

        Args:
            once: read the data available now, and end.
            on_new: action if the prefix has decisions of another checkpoint.
            on_new_prefix: action if a checkpoint continues and its decisions are unknown here.
            spark: a session owned by the caller; the settings of [spark] do not apply to it.
        Raises: BadConfig, NoJava, BrokerDidNotStart, client errors; nothing is left running then.
        """
        return Running(
            self.definition,
            StartOptions(once=once, on_new_checkpoint=on_new, on_new_prefix=on_new_prefix),
            spark,
        )
