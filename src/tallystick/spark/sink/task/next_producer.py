"""The producer of a process's next attempt, opened and initialised while no task runs.

A task would otherwise wait for InitProducerId, metadata and connections. When an attempt has voted, a thread
closes its producer, takes an id by the hold rule of `worker_ids` [SPK-23], and initialises it. The next
attempt, of any lease, waits for the thread and gets the producer.

Until then the id counts as used under the lease of the attempt that has voted. A process that gets the name
meanwhile does not initialise the id before one more batch was decided, as with an id whose attempt timed out.

Where Spark ends a worker after each task (`spark.python.worker.reuse=false`), nothing is opened: the ids that
are held back would be twice as many. Anything that fails here is left to the attempt, which then opens a
producer itself.

Source: docs/design/spark-sink.md.
"""

import logging
import os
import threading
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Final
from weakref import finalize

from tallystick.client.blocking.producer import Producer, connect
from tallystick.kernel.value import Value
from tallystick.spark.protocol.committable import BatchLease
from tallystick.spark.protocol.transactional_ids import WorkerTransactionalId
from tallystick.spark.sink.task.worker_ids import WorkerIdPool

_log = logging.getLogger("tallystick.spark")

AGE_S_MAX: Final = 600.0
"""The cluster forgets ids that are not used for days; connections are closed when idle for minutes."""


def is_reused_worker() -> bool:
    """Return whether this is a Python worker that Spark gives one task after another."""
    return bool(os.environ.get("SPARK_REUSE_WORKER"))  # PySpark 4.3 daemon.py, `manager`


class OpenedProducer(Value, kw_only=True):
    """An initialised producer without a transaction, and its transactional id."""

    name: WorkerTransactionalId
    producer: Producer


class NextProducer:
    """At most one producer, of a process that runs one task at a time."""

    def __init__(
        self,
        ids: WorkerIdPool,
        create_producer: Callable[[WorkerTransactionalId], Producer],
        *,
        now_s: Callable[[], float] = time.monotonic,
        is_reused: Callable[[], bool] = is_reused_worker,
    ) -> None:
        self._ids, self._create_producer, self._now_s = ids, create_producer, now_s
        self._is_reused = is_reused
        self._thread: threading.Thread | None = None
        self._producers: list[tuple[OpenedProducer, float]] = []
        finalize(self, _close_in_background, self._producers).atexit = False

    def open(self, lease: BatchLease, used_producer: Producer, topics: Iterable[str] = ()) -> None:
        """Close the producer of an attempt that has voted under `lease`, and open the next; do not wait.

        A process that Spark ends after one task only closes it.

        Args:
            topics: the topics that the next attempt will write to, if that is known.
        """
        self._join()
        if not self._is_reused():
            used_producer.close()
            return
        self._thread = threading.Thread(
            target=self._run,
            args=(lease, used_producer, tuple(topics)),
            name="tallystick-next-producer",
            daemon=True,
        )
        self._thread.start()

    def take(self, lease: BatchLease) -> OpenedProducer | None:
        """Return the producer for an attempt under `lease`; None if there is none that may be used."""
        self._join()
        if not self._producers:
            return None
        ready, since_s = self._producers.pop()
        if self._now_s() - since_s < AGE_S_MAX and self._ids.acquire_reserved(ready.name, lease):
            return ready
        _close(ready.producer)
        return None

    def close(self) -> None:
        """Close the producer, if there is one."""
        self._join()
        _close_all(self._producers)

    def _join(self) -> None:
        """Wait for the thread; each of its calls has a limit, max.block.ms or that of a close."""
        if self._thread is not None:
            self._thread.join()
            self._thread = None

    def _run(self, lease: BatchLease, used_producer: Producer, topics: tuple[str, ...]) -> None:
        _close(used_producer)
        producer: Producer | None = None
        try:
            name = self._ids.acquire(lease)
            producer = self._create_producer(name)
            producer.init_transactions()
            for topic in topics:
                connect(producer, topic)
            self._producers.append((OpenedProducer(name=name, producer=producer), self._now_s()))
        except Exception as exc:  # of a thread on which nothing depends
            _log.info("the next attempt opens its producer itself: %s", exc)
            if producer is not None:
                _close(producer)


def _close(producer: Producer) -> None:
    with suppress(Exception):  # its transaction, if any, is prepared, and the driver's to end
        producer.close()


def _close_in_background(producers: list[tuple[OpenedProducer, float]]) -> None:
    """Close without waiting, since the engine thread may be the one that collects garbage."""
    if producers:
        threading.Thread(target=_close_all, args=(producers,), daemon=True).start()


def _close_all(producers: list[tuple[OpenedProducer, float]]) -> None:
    while producers:
        _close(producers.pop()[0].producer)
