"""Celery: a task whose rows and records are committed together, once for each task id.

    class PaymentTask(DualWriteTask):
        def make_writers(self, number: int) -> WriterPool:
            return WriterPool(store, {..., "transactional.id": f"payments-{HOST}-{number}"}, size=1)

    @app.task(base=PaymentTask, name="payments.pay")
    def pay(txn, customer: str, cents: int) -> None:
        txn.session.add(Payment(...))
        txn.send("payments", b"...")

    pay.delay("ann", 350)

The task's message is acknowledged after both sides are committed (`acks_late`), and the task's id is the
idempotency key. A message that is delivered again, because its worker died or because the broker lost the
acknowledgement, finds the key, and returns the stored result without paying again.

A task that met an outage of the database or of Kafka is sent again by Celery's own retry, as `max_retries`
and `default_retry_delay` say. One whose function raises anything else has failed, and is not sent again.
What the function tells Celery itself (`self.retry()`, `Reject`, `Ignore`) stands, and rolls both sides back.

Each process of a worker makes its own writers, after the fork, and recovers them while it starts: Celery
kills a process that takes longer than seconds to start. Process `number` of a prefork pool is replaced by
another one of the same number, which finishes what it left. The pools `solo` and `threads` have one process
of number 0; give a pool of threads a size like its `--concurrency`.

Source: Celery, "Tasks", `acks_late` and `reject_on_worker_lost`; "Signals", `worker_process_init`.
"""

import logging
import os
import threading
from collections.abc import Callable
from typing import Any, ClassVar, Final

from billiard import current_process
from celery import Task, current_app
from celery.exceptions import TaskPredicate
from celery.signals import worker_process_init, worker_process_shutdown, worker_ready, worker_shutdown

from tallystick.dualwrite.blocking.pool import WriterPool
from tallystick.dualwrite.blocking.writer import DualWriter, Transaction
from tallystick.dualwrite.rules.idempotency import IdempotencyKey
from tallystick.dualwrite.rules.retries import DEFAULT_RETRY, Retry, is_outage
from tallystick.kernel.errors import InDoubt

_log = logging.getLogger("tallystick.dualwrite")

Writers = WriterPool[Any] | DualWriter[Any]
MakeWriters = Callable[[int], Writers]
_PREFORK: Final = "celery.concurrency.prefork"
CLOSE_WAIT_S: Final = 5.0
"""How long the end of a process waits for a recovery that is under way."""


class DualWriteTask(Task):  # type: ignore[misc]
    """The base of tasks whose function takes the transaction first. Subclasses define `make_writers`.

    dual_write_retry  what the writer repeats by itself, within one delivery of the message
    """

    abstract = True
    acks_late = True
    reject_on_worker_lost = True
    typing = False  # callers do not pass the transaction, which Celery would count as missing
    dual_write_retry: ClassVar[Retry | int] = DEFAULT_RETRY

    def make_writers(self, number: int) -> Writers:
        """Return the writers of a process, which recovers and closes them. Called after the fork.

        Args:
            number: of this process in its worker, from 0. It must be part of `transactional.id`, and the
                host, or the worker's name, as well if there are several.
        """
        raise NotImplementedError(f"{type(self).__name__}.make_writers returns the writers of a process")

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run the task's function in a transaction, unless a task of this id has been committed.

        Called directly, without a worker, it has no id: then each call is a dual write of its own.
        Raises: as DualWriter.run; Retry, Reject or Ignore of the function. After an outage, or if the outcome
            stays in doubt, Celery's Retry: the message is sent again, and the key tells.
        """
        request = self.request
        key = None if request.id is None else IdempotencyKey(self.name, request.id)

        def work(txn: Transaction[Any]) -> Any:
            try:
                return self.run(txn, *args, **kwargs)
            except TaskPredicate as exc:
                # Without its cause: after a conflict the writer would run it, and it would send, once more.
                raise exc from None

        try:
            return self.get_writers().run(work, retries=self.dual_write_retry, idempotency_key=key)
        except TaskPredicate:
            raise
        except Exception as exc:
            if request.called_directly or key is None or not (isinstance(exc, InDoubt) or is_outage(exc)):
                raise
            raise self.retry(exc=exc) from exc

    def get_writers(self) -> Writers:
        """Return the writers of this process, recovered; shared by all tasks of the same `make_writers`.

        Raises: as `recover`; the next call tries again.
        """
        return _of_this_process.get(self.make_writers)


class _ProcessWriters:
    """The writers of one process: made at first use, and forgotten in a fork of it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._writers_by_function: dict[object, Writers] = {}
        self._recovered: set[object] = set()

    def get(self, make_writers: MakeWriters) -> Writers:
        function = getattr(make_writers, "__func__", make_writers)
        with self._lock:
            writers = self._writers_by_function.get(function)
            if writers is None:
                writers = self._writers_by_function[function] = make_writers(
                    getattr(current_process(), "index", 0)
                )
            if function not in self._recovered:
                _log.info("%s", writers.recover())
                self._recovered.add(function)
            return writers

    def close(self) -> None:
        if not self._lock.acquire(timeout=CLOSE_WAIT_S):  # it recovers; the next process does it again
            return
        try:
            for writers in self._writers_by_function.values():
                writers.close()
            self._writers_by_function.clear()
            self._recovered.clear()
        finally:
            self._lock.release()


_of_this_process = _ProcessWriters()


def _forget_after_fork() -> None:
    global _of_this_process
    _of_this_process = _ProcessWriters()


os.register_at_fork(after_in_child=_forget_after_fork)


def _start_recovery() -> None:
    """Recover while the process starts; tasks wait for it.

    Source: Celery, `worker_process_init`: "Handlers attached to this signal must not be blocking for more
    than 4 seconds, or the process will be killed assuming it failed to start."
    """
    threading.Thread(target=_recover_all, name="tallystick-recovery", daemon=True).start()


def _recover_all() -> None:
    """Finish what an earlier process of this number has left: readers wait for it, whatever comes next."""
    for task in current_app.tasks.values():
        if isinstance(task, DualWriteTask):
            try:
                task.get_writers()
            except Exception:  # the first task tries again, and fails with it
                _log.exception("the writers of %s could not be recovered", task.name)


@worker_process_init.connect  # type: ignore[untyped-decorator]
def _start_process(**_: Any) -> None:
    """Recover in a new process of a prefork pool."""
    _start_recovery()


@worker_ready.connect  # type: ignore[untyped-decorator]
def _start_worker(sender: Any = None, **_: Any) -> None:
    """Recover in a worker without such processes."""
    if type(sender.pool).__module__ != _PREFORK:
        _start_recovery()


@worker_process_shutdown.connect  # type: ignore[untyped-decorator]
@worker_shutdown.connect  # type: ignore[untyped-decorator]
def _close(**_: Any) -> None:
    _of_this_process.close()
