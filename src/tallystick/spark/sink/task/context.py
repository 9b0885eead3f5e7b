"""Access of a Python process to one prefix: connections, transactional ids, and the check of a lease.

Spark forks its Python workers and reuses them, for one task or one call on the driver at a time; module
globals live as long as the process. Everything here can be lost at any time and is then made again.
"""

import os
from collections.abc import Callable, Coroutine
from typing import Final, TypeVar, cast
from weakref import finalize

from tallystick.client.blocking.producer import Producer
from tallystick.client.blocking.thread import EngineThread, engine_thread
from tallystick.client.net.cluster import Cluster
from tallystick.client.settings.config import ProducerConfig
from tallystick.kernel.ids import ProducerIdAndEpoch
from tallystick.spark.decisions.participants import ClusterParticipants
from tallystick.spark.options.rights import explain_missing_right
from tallystick.spark.options.sink_options import SinkOptions
from tallystick.spark.protocol.ports import ParticipantsPort
from tallystick.spark.protocol.transactional_ids import WorkerTransactionalId
from tallystick.spark.sink.task.next_producer import NextProducer
from tallystick.spark.sink.task.worker_ids import WorkerIdPool, draw_name
from tallystick.spark.sink.task.worker_names import acquire_name

T = TypeVar("T")

_CLOSE_TIMEOUT_S: Final = 5.0
# A call is a handful of requests, each within max.block.ms.
_REQUESTS_MAX: Final = 10


class TaskContext:
    """A task's access to one prefix: synchronous, one call at a time, run on the engine thread."""

    def __init__(self, options: SinkOptions) -> None:
        """Create the context without connecting to the cluster. Raises: BadConfig."""
        self.options = options
        self.worker_ids = WorkerIdPool(
            options.prefix,
            acquire_name=lambda: acquire_name(
                f"{options.client.get('bootstrap.servers')} {options.prefix}", draw_name
            ),
        )
        self.next_producer = NextProducer(self.worker_ids, self.create_producer)
        self._config = ProducerConfig.parse(options.driver_client_settings)
        self._engine = engine_thread()
        self._cluster = self._engine.call(lambda: Cluster(self._config.client), "Cluster")
        self.participants = self.create_participants(self._cluster)
        # `get_context` drops the oldest one, which a caller may still be using; so it is closed when
        # collected.
        finalize(self, _close_in_background, self._engine, self._cluster).atexit = False

    def create_participants(self, cluster: Cluster) -> ParticipantsPort:
        """Return the port through which the prefix's transactions are reached."""
        return ClusterParticipants(cluster, self.options, self._config.max_block_ms)

    def create_producer(self, name: WorkerTransactionalId) -> Producer:
        """Return the producer of one attempt."""
        return Producer(self.options.list_producer_settings(str(name)))

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
        """True if the context belongs to this process and its engine is alive."""
        return self._engine.is_alive


def _close_in_background(engine: EngineThread, cluster: Cluster) -> None:
    if engine.is_alive:
        engine.abandon(cluster.close)


OpenTaskContext = Callable[[SinkOptions], TaskContext]
C = TypeVar("C", bound=TaskContext)

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
_CONTEXTS: Final[dict[tuple[object, ...], TaskContext]] = {}
_CONTEXTS_MAX: Final = 16
"""Limit for a loop over tables, each with a prefix of its own: it must not run out of sockets."""


def get_context(options: SinkOptions, make: Callable[[SinkOptions], C]) -> C:
    """Return this process's context of a kind for these options, and create it if there is none."""
    client = tuple(sorted(options.client.items()))
    # All options that it reads: a worker outlives queries, and the next query may have another topic.
    key = (os.getpid(), make, client, *(getattr(options, name) for name in _CACHE_KEY_OPTIONS))
    context = cast(C | None, _CONTEXTS.pop(key, None))
    if context is None or not context.is_usable:
        context = make(options)
    _CONTEXTS[key] = context
    for oldest in list(_CONTEXTS)[:-_CONTEXTS_MAX]:
        _CONTEXTS.pop(oldest, None)
    return context


def get_task_context(options: SinkOptions) -> TaskContext:
    """Return this process's context for its tasks."""
    return get_context(options, TaskContext)
