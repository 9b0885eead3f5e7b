"""Runner of the blocking producer's calls on the engine thread of the process.

Records are gathered in the caller's thread: a `send` crosses to the engine thread only when a topic is new or
the memory is full.
"""

import warnings
from collections.abc import Callable, Coroutine, Mapping
from functools import partial
from typing import TypeVar

from tallystick.client.aio.producer_runner import AsyncProducerRunner
from tallystick.client.blocking.thread import StartedCall, TransactionalCalls, engine_thread
from tallystick.client.net.retry_scope import Deadline
from tallystick.client.net.waits import build_forked_error
from tallystick.client.transactions.engine import TransactionManager

T = TypeVar("T")


class ProducerRunner:
    """The asynchronous runner of one producer, on the engine thread."""

    _is_open = False  # in a copy that `__init__` never made, too

    def __init__(self, config: Mapping[str, object]) -> None:
        self._thread = engine_thread()
        self._runner = self._thread.call(lambda: AsyncProducerRunner(config), "Producer")
        self._is_open = True
        self.config = self._runner.config
        self.serializer = self._runner.serializer
        self.accumulator = self._runner.accumulator
        self._block_timeout_s = self.config.max_block_ms / 1000
        self._flush_timeout_s = 2 * self.config.delivery_timeout_ms / 1000
        # A flush, and as many requests as a transactional call makes, each within max.block.ms.
        self._txn_timeout_s = self._flush_timeout_s + 8 * self._block_timeout_s
        self._txn_calls = TransactionalCalls(self._thread, self._txn_timeout_s)
        self._thread.register(self)

    # ------------------------------------------------------------------------------ records

    def serialize(self, call: Callable[[], T], *, may_wait: bool) -> T:
        """Run a serializer: a thread may wait."""
        return call()

    def wait_for_space(self, topic: str, deadline: Deadline | None, name: str) -> Deadline:
        """Wait until a record for `topic` may be taken; return the deadline, for more waits of this call."""
        call = self._runner.wait_for_space(topic, deadline, name)
        return self._thread.run(call, self._block_timeout_s, name)

    def connect(self, topic: str) -> None:
        """Connect to the leaders of a topic's partitions."""
        self._thread.run(self._runner.connect(topic), self._block_timeout_s, "connect")

    def flush(self, timeout_s: float | None) -> None:
        """Send everything now, and wait until every record has its outcome."""
        limit_s = self._flush_timeout_s if timeout_s is None else timeout_s
        self._thread.run(self._runner.flush(timeout_s), limit_s, "flush")

    # ------------------------------------------------------------------------- transactions

    def run(self, name: str, function: Callable[[TransactionManager], Coroutine[object, object, T]]) -> T:
        """Run a call on the transaction."""
        return self._thread.run(self._runner.run(name, function), self._txn_timeout_s, name)

    def run_once(
        self, name: str, function: Callable[[TransactionManager], Coroutine[object, object, T]]
    ) -> T:
        """Run a call that is not legal twice: repeated after an interrupt, it returns its answer [CLI-67]."""
        return self._txn_calls.run(lambda: self._runner.run_once(name, function), name)

    def read(self, name: str, function: Callable[[TransactionManager], T], default: T) -> T:
        """Return a property of the transaction; the default without `transactional.id`."""
        self._thread.check_process(name)
        return self._runner.read(name, function, default)

    def begin(self) -> None:
        """Begin a transaction; on the engine thread only if the id has to be initialised first."""
        self._thread.check_process("begin_transaction")
        txn = self._runner.require_transaction_manager("begin_transaction")
        self._txn_calls.forget_answer()
        if txn.needs_init:
            self._thread.run(self._runner.begin(), self._txn_timeout_s, "begin_transaction")
        else:
            txn.begin_now()  # sends nothing, so it needs no loop

    def start_commit(self) -> "PendingCommit":
        """Begin to commit the transaction."""

        async def commit() -> None:
            await (await self._runner.start_commit()).wait()

        return PendingCommit(self._thread.start(commit(), "commit_transaction"), self._txn_timeout_s)

    # ------------------------------------------------------------------------- the whole of it

    def metrics(self) -> dict[str, float]:
        """Return the metrics by Kafka's names."""
        self._thread.check_process("metrics")
        return self._runner.metrics()

    def close(self, timeout_s: float, *, abort: bool = True) -> None:
        """Send the records taken, and close; harmless if repeated."""
        if self._is_open:
            self._thread.run(self._runner.close(timeout_s, abort=abort), timeout_s, "close")
            self._is_open = False
            self._thread.unregister(self)

    def mark_forked(self) -> None:
        """Refuse every call, in a forked child [CLI-61]. Called by the engine thread's fork hook."""
        self._is_open = False
        self.accumulator.refuse_forever(partial(build_forked_error, "send"))

    def __del__(self) -> None:
        if self._is_open:
            warnings.warn(f"unclosed {self!r}", ResourceWarning, source=self, stacklevel=2)
            self._thread.abandon(self._runner.close)

    def __repr__(self) -> str:
        return f"<Producer of {self.config.client.client_id!r}{'' if self._is_open else ', closed'}>"


class PendingCommit:
    """A commit that was started and has no answer yet. Made by `Producer.start_commit`.

    It goes on whether anyone waits for it or not, and ends as a commit that is waited for would. A failure
    is logged when it happens, and raised by every `wait`.
    """

    def __init__(self, call: StartedCall[None], limit_s: float) -> None:
        self._call, self._limit_s = call, limit_s

    @property
    def is_done(self) -> bool:
        """Whether the answer is there."""
        return self._call.is_done

    def wait(self) -> None:
        """Wait for the answer. An interrupted wait does not end the commit, and can be repeated.

        Raises: as `commit_transaction`.
        """
        self._call.wait(self._limit_s)
