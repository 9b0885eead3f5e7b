"""Runner of the asynchronous producer's calls, on the caller's own loop."""

import asyncio
import logging
import os
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from typing import Final, TypeVar
from weakref import WeakSet

from tallystick.client import tracing
from tallystick.client.errors import ClientError, Closed, IllegalState
from tallystick.client.net.cluster import Cluster
from tallystick.client.net.retry_scope import Deadline
from tallystick.client.net.waits import ProcessCheck, build_forked_error
from tallystick.client.producer.batches.accumulator import RecordAccumulator
from tallystick.client.producer.engine import ProducerEngine
from tallystick.client.serializers import build_record_serializer
from tallystick.client.settings.config import ProducerConfig
from tallystick.client.transactions.engine import TransactionManager
from tallystick.client.transactions.state import State
from tallystick.kernel.errors import InDoubt

T = TypeVar("T")

_log = logging.getLogger("tallystick.producer")

# States without a decision. Not PREPARED and IN_DOUBT: recovery decides such transactions [CLI-62].
_UNDECIDED: Final = frozenset({State.IN_TRANSACTION, State.PREPARING, State.ABORTABLE_ERROR})


_OPEN_ACCUMULATORS: Final[WeakSet[RecordAccumulator]] = WeakSet()


class AsyncProducerRunner:
    """One producer's engine, which sends records, and its transaction manager, which decides when."""

    def __init__(self, config: Mapping[str, object]) -> None:
        self.config = ProducerConfig.parse(config)
        for note in self.config.notes:
            _log.warning("%s", note)
        self._cluster = Cluster(
            self.config.client,
            in_flight_max=self.config.max_in_flight_requests_per_connection,
            auto_create_topics=True,
            topics_idle_ms=self.config.metadata_max_idle_ms,
        )
        self._engine = ProducerEngine(self._cluster, self.config)
        self.txn: TransactionManager | None = None
        if self.config.transactional_id is not None:
            self.txn = TransactionManager(self._cluster, self.config, self._engine)
            self._engine.use_transactions(self.txn.send_context)
        self.serializer = build_record_serializer(self.config.functions)
        self.accumulator = self._engine.accumulator
        _OPEN_ACCUMULATORS.add(self.accumulator)
        self._check_process = ProcessCheck()
        self._started_commit: asyncio.Task[None] | None = None
        self._is_closed = False
        tracing.PRODUCERS[self] = self.config.client.client_id

    # ------------------------------------------------------------------------------ records

    async def serialize(self, call: Callable[[], T], *, may_wait: bool) -> T:
        """Run a serializer: in a thread if it may wait."""
        return await asyncio.to_thread(call) if may_wait else call()

    async def wait_for_space(self, topic: str, deadline: Deadline | None, name: str) -> Deadline:
        """Wait until a record for `topic` may be taken; return the deadline, for more waits of this call."""
        self._check_process(name)
        if deadline is None:
            deadline = self._cluster.start_deadline("max.block.ms", self.config.max_block_ms)
        await self._engine.wait_for_space(topic, deadline)
        return deadline

    async def connect(self, topic: str) -> None:
        """Connect to the leaders of a topic's partitions."""
        self._check_process("connect")
        await self._engine.connect(
            topic, self._cluster.start_deadline("max.block.ms", self.config.max_block_ms)
        )

    async def flush(self, timeout_s: float | None) -> None:
        """Send everything now, and wait until every record has its outcome."""
        self._check_process("flush")
        if timeout_s is None:
            await self._engine.flush()
        else:
            await self._engine.flush(self._cluster.start_deadline("timeout_s", int(timeout_s * 1000)))

    # ------------------------------------------------------------------------- transactions

    async def run(self, name: str, function: Callable[[TransactionManager], Awaitable[T]]) -> T:
        """Run a call on the transaction."""
        return await function(self.require_transaction_manager(name))

    async def run_once(self, name: str, function: Callable[[TransactionManager], Awaitable[T]]) -> T:
        """Run a call on the transaction that is not legal twice."""
        return await function(self.require_transaction_manager(name))

    def read(self, name: str, function: Callable[[TransactionManager], T], default: T) -> T:
        """Return a property of the transaction; the default without `transactional.id`."""
        self._check_process(name)
        return default if self.txn is None else function(self.txn)

    async def begin(self) -> None:
        """Begin a transaction."""
        await self.require_transaction_manager("begin_transaction").begin()

    async def start_commit(self) -> "AsyncPendingCommit":
        """Begin to commit the transaction."""
        txn = self.require_transaction_manager("start_commit")
        self._started_commit = task = asyncio.get_running_loop().create_task(txn.commit())
        return AsyncPendingCommit(task, txn.transactional_id)

    def require_transaction_manager(self, name: str) -> TransactionManager:
        """Return the transaction manager. Raises: Closed; IllegalState without `transactional.id`."""
        self._check_process(name)
        if self._is_closed:
            raise Closed(f"{name}: the producer is closed")
        if self.txn is None:
            raise IllegalState(f"{name}: transactional.id is not set")
        return self.txn

    # ------------------------------------------------------------------------- the whole of it

    def metrics(self) -> dict[str, float]:
        """Return the metrics by Kafka's names; in a forked child too, where an exporter may read them."""
        return {**self._engine.metrics(), **({} if self.txn is None else self.txn.metrics())}

    async def close(self, timeout_s: float, *, abort: bool = True) -> None:
        """Abort an undecided transaction, send the records taken, and close, all within `timeout_s`.

        A commit that was started gets its answer first. In a forked child it does nothing.
        """
        if self._is_closed or self._check_process.is_forked:
            return
        self._is_closed = True
        deadline = self._cluster.start_deadline("timeout_s", int(timeout_s * 1000))
        self._engine.begin_close()
        try:
            if self._started_commit is not None:  # what is decided is not left to a recovery
                await asyncio.wait((self._started_commit,), timeout=timeout_s)
            if abort and self.txn is not None and self.txn.machine.state in _UNDECIDED:
                await self._abort_on_close(self.txn, timeout_s)
        except BaseException:  # cancelled: stop waiting, but still settle every delivery
            deadline = self._cluster.start_deadline("timeout_s", 0)
            raise
        finally:
            try:
                await self._engine.close(deadline)
            finally:
                await self._cluster.close()

    async def _abort_on_close(self, txn: TransactionManager, limit_s: float) -> None:
        """Abort the transaction; if that fails, transaction.timeout.ms or the next init ends it."""
        try:
            async with asyncio.timeout(limit_s):
                await txn.abort()
        except (ClientError, InDoubt, TimeoutError) as exc:
            why = str(exc) or f"{limit_s:g} s were over"
            _log.warning("%s: closed with its transaction open: %s", txn.transactional_id, why)

    def __repr__(self) -> str:
        return f"<Producer of {self.config.client.client_id!r}{', closed' if self._is_closed else ''}>"


class AsyncPendingCommit:
    """A commit that was started and has no answer yet. Made by `Producer.start_commit`.

    It goes on whether anyone waits for it or not, and ends as a commit that is waited for would. A failure
    is logged when it happens, and raised by every `wait`.
    """

    def __init__(self, task: asyncio.Task[None], transactional_id: str) -> None:
        self._task = task
        self._transactional_id = transactional_id
        task.add_done_callback(self._log_failure)

    @property
    def is_done(self) -> bool:
        """Whether the answer is there."""
        return self._task.done()

    async def wait(self) -> None:
        """Wait for the answer. Cancelling the wait does not cancel the commit.

        Raises: as `commit_transaction`; InDoubt if the loop ended before the answer came.
        """
        await asyncio.wait((self._task,))
        if self._task.cancelled():
            raise InDoubt(f"{self._transactional_id}: the loop ended before its commit was answered")
        self._task.result()

    def _log_failure(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and task.exception() is not None:
            _log.warning(
                "%s: the commit that was started failed: %s", self._transactional_id, task.exception()
            )


def _after_fork_in_child() -> None:
    for accumulator in list(_OPEN_ACCUMULATORS):
        accumulator.refuse_forever(partial(build_forked_error, "send"))


os.register_at_fork(after_in_child=_after_fork_in_child)
