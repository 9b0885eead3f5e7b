"""State of a Python process for one prefix: connections, a coordinator and transactional ids.

Spark forks its Python workers and reuses them, for one task or one call on the driver at a time; module
globals live as long as the process. Everything here can be lost at any time and is then made again.
"""

import logging
import os
from collections.abc import Callable, Container, Coroutine, Iterable, Sequence
from typing import Final, TypeVar
from weakref import finalize

from tallystick.client.blocking.producer import Producer
from tallystick.client.blocking.thread import EngineThread, engine_thread
from tallystick.client.net.cluster import Cluster
from tallystick.client.settings.config import ProducerConfig
from tallystick.client.transactions.modes import Mode
from tallystick.kernel.ids import ProducerIdAndEpoch
from tallystick.kernel.value import replace
from tallystick.spark import tracing
from tallystick.spark.checkpoint import read_decision_locations, write_decision_location
from tallystick.spark.decisions.participants import ClusterParticipants
from tallystick.spark.decisions.topic import DecisionTopic
from tallystick.spark.options.rights import explain_missing_right
from tallystick.spark.options.sink_options import SinkOptions
from tallystick.spark.protocol.committable import BatchLease, Decision, Job, Vote
from tallystick.spark.protocol.concurrency import run_both
from tallystick.spark.protocol.coordinator import SinkCoordinator
from tallystick.spark.protocol.decide import (
    DecisionLocation,
    NewPrefix,
    QueryStart,
    refuse_moved_decisions,
    refuse_unknown_query,
    resume_decision,
)
from tallystick.spark.protocol.errors import SinkError
from tallystick.spark.protocol.ports import DecisionLogPort, ParticipantsPort
from tallystick.spark.protocol.transactional_ids import WorkerTransactionalId
from tallystick.spark.sink.next_producer import NextProducer
from tallystick.spark.sink.worker_ids import WorkerIdPool, draw_name
from tallystick.spark.sink.worker_names import acquire_name

_log = logging.getLogger("tallystick.spark")

T = TypeVar("T")

_CLOSE_TIMEOUT_S: Final = 5.0
# A call is a handful of requests, each within max.block.ms.
_REQUESTS_MAX: Final = 10


class SinkContext:
    """A process's access to one prefix: synchronous, one call at a time, run on the engine thread.

    Crash tests subclass it and wrap the results of `create_ports` and `get_producer`.
    """

    def __init__(self, options: SinkOptions) -> None:
        """Create the station without connecting to the cluster. Raises: BadConfig."""
        self.options = options
        self.worker_ids = WorkerIdPool(
            options.prefix,
            acquire_name=lambda: acquire_name(
                f"{options.client.get('bootstrap.servers')} {options.prefix}", draw_name
            ),
        )
        self.next_producer = NextProducer(self.worker_ids, self.create_producer)
        self._logged_mode = ""
        self._run_id: str | None = None
        self._last_target: tuple[Job, tuple[str, ...]] | None = None
        self._config = ProducerConfig.parse(options.driver_client_settings)
        self._engine = engine_thread()
        self._cluster = self._engine.call(lambda: Cluster(self._config.client), "Cluster")
        self.participants, self.decisions = self.create_ports(self._cluster)
        self.coordinator = SinkCoordinator(options.prefix, self.participants, self.decisions)
        # `get_sink_context` drops the oldest one, which a caller may still be using; so it is closed when
        # collected.
        finalize(self, _close_in_background, self._engine, self._cluster).atexit = False

    def create_ports(self, cluster: Cluster) -> tuple[ParticipantsPort, DecisionLogPort]:
        """Return the ports through which the coordinator reaches the cluster."""
        limit_ms = self._config.max_block_ms
        return (
            ClusterParticipants(cluster, self.options, limit_ms),
            DecisionTopic(cluster, self.options, limit_ms),
        )

    def create_producer(self, name: WorkerTransactionalId) -> Producer:
        """Return the producer of one attempt."""
        return Producer(self.options.list_producer_settings(str(name)))

    def begin(
        self,
        *,
        write_id: str | None = None,
        query_id: str | None = None,
        resuming: QueryStart | None = None,
        run_id: str | None = None,
    ) -> BatchLease:
        """Claim the prefix; see `SinkCoordinator.begin`.

        Args:
            query_id: the query's id, if the driver knows it. Then a query that is new to the prefix is
                refused before it fences the query that owns it.
            resuming: the beginning of the query under `onNewCheckpoint=resume`, if the driver can see it.
            run_id: of the query's run in this process, in which other sinks may have prefixes of their own;
                None if the query has no other sink.
        """
        options = self.options
        notes = read_decision_locations(options.checkpoint, options.prefix)
        siblings = _find_siblings(options, run_id)
        if query_id is not None:
            self.run(self._check_may_begin(query_id, resuming, notes, siblings), "look")
        adopting = options.on_new_prefix is NewPrefix.ADOPT
        with tracing.trace_part("begin batch", options.prefix):
            lease = self.run(self.coordinator.begin(write_id, resuming, adopting=adopting), "begin")
        is_noted = options.prefix in {note.prefix for note in notes}
        if query_id is not None and (not is_noted or adopting):
            # [SPK-29]: the note is written before anything is decided in that place.
            place = self.run(self.decisions.find_location(), "look")
            if place is not None:
                home = DecisionLocation(prefix=options.prefix, location=place)
                if home not in notes:
                    write_decision_location(options.checkpoint, home)
        siblings.add(options.prefix)
        if run_id != self._run_id:  # a notebook starts its query again, with other sinks
            self._run_id, self._last_target = run_id, None
        return lease

    async def _check_may_begin(
        self,
        query_id: str,
        resuming: QueryStart | None,
        notes: Sequence[DecisionLocation],
        siblings: Container[str],
    ) -> None:
        """Refuse a query that must not begin here, before it fences the query that owns the prefix.

        This is checked at every batch: a query that was replaced by one with another checkpoint must not
        fence its successor.

        Raises: UnknownCheckpoint, DecisionsMissing.
        """
        options = self.options
        state, place = await run_both(self.decisions.read(), self.decisions.find_location())
        last_decision = state.decision
        refusal = refuse_moved_decisions(notes, options.prefix, place, options.on_new_prefix, siblings)
        if refusal is not None:
            raise refusal
        summary = resume_decision(last_decision, resuming)
        if not isinstance(summary, SinkError):
            summary = refuse_unknown_query(summary, query_id, options.on_new_checkpoint)
        if isinstance(summary, SinkError):
            raise summary

    def commit(self, votes: Iterable[Vote | None], offsets: str | None = None) -> Decision | None:
        votes = list(votes)
        target = next(((vote.job, vote.sinks) for vote in votes if vote is not None), None)
        rules = self.options.repetition_rules
        if self._last_target not in (None, target):
            # Where sinks were changed, one batch stays with those before: the first of a start. After it,
            # what has been decided for others was decided by a second sink under this prefix.
            rules = replace(rules, accepts_other_sinks=False)
        with tracing.trace_part("commit batch", self.options.prefix) as trace:
            trace.describe_votes(votes)
            decision = self.run(self.coordinator.commit(votes, offsets, rules), "commit")
        self._last_target = target
        if decision is not None and decision.mode not in ("", self._logged_mode):
            self._logged_mode = decision.mode
            why = Mode(decision.mode).not_promised
            _log.log(
                logging.WARNING if why else logging.INFO,
                "%s: mode %s is in force%s",
                self.options.prefix,
                decision.mode,
                f": {why}" * bool(why),
            )
        return decision

    def try_abort(self, votes: Iterable[Vote | None]) -> bool:
        """Abort the batch; return whether that succeeded. After a failure the next begin does it.

        Failures are logged and not raised, so as not to hide the error that led to this call.
        """
        try:
            with tracing.trace_part("abort batch", self.options.prefix):
                self.run(self.coordinator.abort(votes), "abort")
        except Exception as exc:  # of a database's driver, too
            _log.warning("%s: the batch could not be aborted: %s", self.options.prefix, exc)
            return False
        return True

    def owns_prefix(self, owner: ProducerIdAndEpoch) -> bool:
        return self.run(self.participants.owns_prefix(owner), "look at the coordinator")

    def run(self, coroutine: Coroutine[object, object, T], doing: str) -> T:
        limit_s = _REQUESTS_MAX * self._config.max_block_ms / 1000
        with explain_missing_right(self.options):
            return self._engine.run(coroutine, limit_s, f"{doing} for {self.options.prefix!r}")

    def close(self) -> None:
        """Close all connections. It may be called again."""
        self.next_producer.close()
        self._engine.run(self._cluster.close(), _CLOSE_TIMEOUT_S, "close")

    @property
    def is_usable(self) -> bool:
        """True if the station belongs to this process and its engine is alive."""
        return self._engine.is_alive


def _close_in_background(engine: EngineThread, cluster: Cluster) -> None:
    if engine.is_alive:
        engine.abandon(cluster.close)


_RUNS: Final[dict[tuple[int, str, str | None], set[str]]] = {}
_RUNS_MAX: Final = 64
"""The prefixes that each run of a query has begun batches under, by its checkpoint."""


def _find_siblings(options: SinkOptions, run_id: str | None) -> set[str]:
    """Return the prefixes of this run of a query, to be added to; a set of its own without a run."""
    if run_id is None:
        return set()
    key = (os.getpid(), run_id, options.checkpoint)
    prefixes = _RUNS.pop(key, None)
    _RUNS[key] = set() if prefixes is None else prefixes
    for oldest in list(_RUNS)[:-_RUNS_MAX]:
        _RUNS.pop(oldest, None)
    return _RUNS[key]


OpenContext = Callable[[SinkOptions], SinkContext]

_CACHE_KEY_OPTIONS: Final = (
    "prefix",
    "topic",
    "modes",
    "on_new_checkpoint",
    "on_new_prefix",
    "on_changed_rows",
    "decisions_topic",
    "checkpoint",
)
_CONTEXTS: Final[dict[tuple[object, ...], SinkContext]] = {}
_CONTEXTS_MAX: Final = 16
"""Limit for a loop over tables, each with a prefix of its own: it must not run out of sockets."""


def get_sink_context(options: SinkOptions, make: OpenContext = SinkContext) -> SinkContext:
    """Return this process's context for these options, and create it if there is none."""
    client = tuple(sorted(options.client.items()))
    # All options that it reads: a worker outlives queries, and the next query may have another topic.
    key = (os.getpid(), make, client, *(getattr(options, name) for name in _CACHE_KEY_OPTIONS))
    context = _CONTEXTS.pop(key, None)
    if context is None or not context.is_usable:
        context = make(options)
    _CONTEXTS[key] = context
    for oldest in list(_CONTEXTS)[:-_CONTEXTS_MAX]:
        _CONTEXTS.pop(oldest, None)
    return context
