"""Asynchronous producer, `tallystick.aio.Producer`: records and transactions on the caller's own loop.

The engine sends records, and the transaction manager decides when they may be sent; the Producer combines
them, and opens and closes both. The synchronous Producer is this one on the engine thread.
"""

import asyncio
import logging
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from itertools import repeat
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Generic, Protocol, Self, TypeVar, cast, runtime_checkable

from tallystick.client import tracing
from tallystick.client.errors import ClientError, Closed, IllegalState
from tallystick.client.net.cluster import Cluster
from tallystick.client.net.retry_scope import Deadline
from tallystick.client.offsets import GroupMetadata, OffsetAndMetadata
from tallystick.client.producer.batches.accumulator import (
    BufferFullOrUnknownTopic,
    PlacedOutcomes,
    to_bytes_list,
    to_headers,
    to_timestamp,
)
from tallystick.client.producer.batches.arrow_rows import ArrowArray, ArrowRows, is_arrow_array
from tallystick.client.producer.batches.arrow_table import PartitionRows, split_by_partition
from tallystick.client.producer.batches.delivery import BatchDelivery, Delivery, DeliveryCallback
from tallystick.client.producer.batches.rows import ListRows
from tallystick.client.producer.engine import ProducerEngine
from tallystick.client.serializers import Header, K, SerializedHeaders, V, build_record_serializer
from tallystick.client.settings.config import ProducerConfig
from tallystick.client.transactions.engine import Completion, TransactionManager
from tallystick.client.transactions.modes import Mode
from tallystick.client.transactions.prepared import PreparedTxnState
from tallystick.client.transactions.state import State
from tallystick.kernel.check import require
from tallystick.kernel.errors import InDoubt
from tallystick.kernel.ids import TopicPartition

if TYPE_CHECKING:
    from pyarrow import RecordBatch, Table

T = TypeVar("T")

_log = logging.getLogger("tallystick.producer")

CLOSE_TIMEOUT_S: Final = 30.0
# States without a decision. Not PREPARED and IN_DOUBT: recovery decides such transactions [CLI-62].
_UNDECIDED: Final = frozenset({State.IN_TRANSACTION, State.PREPARING, State.ABORTABLE_ERROR})


@runtime_checkable
class ArrowColumn(Protocol):
    """An Arrow array of binaries or strings, or any other object with `to_pylist`."""

    def __len__(self) -> int: ...
    def to_pylist(self) -> list[bytes | None]: ...


Column = Sequence[bytes | None] | ArrowColumn
Offsets = Mapping[TopicPartition, OffsetAndMetadata | int]


class Producer(Generic[K, V]):
    """Sends records, in transactions if `transactional.id` is set. Made, used and closed on one loop.

    `tallystick.Producer` documents the methods; here they are awaited. A serializer runs in a thread, where
    it may wait, until it has succeeded once for a topic and these types of key and value, and then on the
    loop; for `send_batch` it always runs in a thread.
    """

    def __init__(self, config: Mapping[str, object]) -> None:
        """Read the configuration, without connecting. Raises: BadConfig with all problems."""
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
        self._txn: TransactionManager | None = None
        if self.config.transactional_id is not None:
            self._txn = TransactionManager(self._cluster, self.config, self._engine)
            self._engine.use_transactions(self._txn.send_context)
        self.serializer = build_record_serializer(self.config.functions)
        self.accumulator = self._engine.accumulator
        self._started_commit: asyncio.Task[None] | None = None
        self._is_closed = False
        tracing.PRODUCERS[self] = self.config.client.client_id

    # ------------------------------------------------------------------------------ records

    async def send(
        self,
        topic: str,
        value: V | None = None,
        key: K | None = None,
        *,
        partition: int | None = None,
        timestamp_ms: int | None = None,
        headers: Iterable[tuple[str, bytes | None]] = (),
        on_delivery: DeliveryCallback | None = None,
    ) -> Delivery:
        """Append one record. Waits only for metadata and memory; the returned Delivery can be awaited."""
        record: tuple[object, object, SerializedHeaders] = value, key, tuple(headers)
        if self.serializer is not None:
            record = await serialize_record(self, topic, *record)
        take = partial(
            self.accumulator.append,
            topic,
            record[0],
            record[1],
            partition=partition,
            timestamp_ms=timestamp_ms,
            headers=record[2],
            on_delivery=on_delivery,
        )
        tracer = tracing.tracer
        if tracer is None:
            return await self._append_when_admitted(topic, take)
        with tracer.trace_send(self.config.client.client_id, topic, record[2], None) as trace:
            traced_take = partial(take, headers=trace.headers)
            return trace.follow(await self._append_when_admitted(topic, traced_take))

    async def send_batch(
        self,
        topic: str,
        values: "Sequence[V | None] | ArrowColumn",
        keys: "Sequence[K | None] | ArrowColumn | None" = None,
        *,
        partition: int | None = None,
        timestamp_ms: int | None = None,
        headers: Iterable[tuple[str, bytes | None]] = (),
    ) -> BatchDelivery:
        """Append many records."""
        with trace_columns(self.config.client.client_id, topic, values, headers) as trace:
            if self.serializer is not None:
                columns = await serialize_rows(self, topic, values, keys, trace.headers)
                rows = build_columns(*columns, timestamp_ms)
            else:
                rows = build_columns(
                    cast(Column, values), cast(Column | None, keys), trace.headers, timestamp_ms
                )
            take = partial(self.accumulator.extend, topic, rows, partition)
            return trace.follow(BatchDelivery(topic, await self._append_when_admitted(topic, take)))

    async def send_arrow(self, batch: "RecordBatch | Table", topic: str | None = None) -> list[BatchDelivery]:
        """Append the rows of an Arrow batch, each for the topic and partition it names."""
        if self.serializer is not None:
            take_objects(batch)
        deliveries: list[BatchDelivery] = []
        with tracing.trace_send(self.config.client.client_id, topic, None, batch.num_rows) as trace:
            for share in split_by_partition(batch, topic, int(time.time() * 1000)):
                take = partial(self.accumulator.extend, share.topic, share.rows, share.partition)
                deliveries.append(build_delivery(share, await self._append_when_admitted(share.topic, take)))
            return trace.follow(deliveries)

    async def _append_when_admitted(self, topic: str, take: Callable[[], T]) -> T:
        deadline: Deadline | None = None
        while True:
            try:
                return take()
            except BufferFullOrUnknownTopic:
                deadline = await self.wait_for_space(topic, deadline)

    async def wait_for_space(self, topic: str, deadline: Deadline | None) -> Deadline:
        """Wait until a record for `topic` may be taken; return the deadline, for more waits of this call."""
        if deadline is None:
            deadline = self._cluster.start_deadline("max.block.ms", self.config.max_block_ms)
        await self._engine.wait_for_space(topic, deadline)
        return deadline

    async def flush(self, timeout_s: float | None = None) -> None:
        """Send everything now, and wait until every record has its outcome."""
        if timeout_s is None:
            await self._engine.flush()
        else:
            await self._engine.flush(self._cluster.start_deadline("timeout_s", int(timeout_s * 1000)))

    # ------------------------------------------------------------------------- transactions

    async def init_transactions(self, keep_prepared_txn: bool = False) -> None:
        """Claim the transactional id; abort or keep the open transaction of an earlier client."""
        await self.require_transaction_manager("init_transactions").init(keep_prepared_txn)

    async def begin_transaction(self) -> None:
        """Begin a transaction."""
        await self.require_transaction_manager("begin_transaction").begin()

    async def send_offsets_to_transaction(self, offsets: Offsets, group_metadata: GroupMetadata) -> None:
        """Commit a group's offsets with this transaction."""
        positions = {
            at: OffsetAndMetadata(place) if isinstance(place, int) else place for at, place in offsets.items()
        }
        await self.require_transaction_manager("send_offsets_to_transaction").send_offsets(
            positions, group_metadata
        )

    async def prepare_transaction(self) -> PreparedTxnState:
        """Flush everything, and leave the transaction in doubt until it is decided."""
        return await self.require_transaction_manager("prepare_transaction").prepare()

    async def commit_transaction(self) -> None:
        """Commit the transaction."""
        await self.require_transaction_manager("commit_transaction").commit()

    async def start_commit(self) -> "PendingCommit":
        """Begin to commit the transaction, and return what waits for the answer."""
        txn = self.require_transaction_manager("start_commit")
        self._started_commit = task = asyncio.get_running_loop().create_task(txn.commit())
        return PendingCommit(task, txn.transactional_id)

    async def abort_transaction(self) -> None:
        """Abort the transaction."""
        await self.require_transaction_manager("abort_transaction").abort()

    async def complete_transaction(self, state: PreparedTxnState) -> Completion:
        """Commit the transaction in doubt if `state` names it, abort it otherwise."""
        return await self.require_transaction_manager("complete_transaction").complete(state)

    @property
    def mode(self) -> Mode | None:
        """Mode that holds a prepared transaction, after `init_transactions`; None: there is no such mode."""
        return None if self._txn is None else self._txn.mode

    @property
    def transaction_version(self) -> int:
        """`transaction.version` of the open transaction, else of the next one."""
        return 0 if self._txn is None else self._txn.transaction_version

    @property
    def needs_claim(self) -> bool:
        """Whether `begin_transaction` has to initialise the id first."""
        return self._txn is not None and self._txn.needs_init

    @property
    def in_doubt(self) -> PreparedTxnState:
        """Name of the open transaction; after `init_transactions(True)`, of the kept one. May be empty."""
        return PreparedTxnState.of(None) if self._txn is None else self._txn.in_doubt

    def require_transaction_manager(self, call: str) -> TransactionManager:
        """Return the transaction manager. Raises: Closed; IllegalState without `transactional.id`."""
        if self._is_closed:
            raise Closed(f"{call}: the producer is closed")
        if self._txn is None:
            raise IllegalState(f"{call}: transactional.id is not set")
        return self._txn

    # ------------------------------------------------------------------------- the whole of it

    def metrics(self) -> dict[str, float]:
        """Return the metrics by Kafka's names."""
        return {**self._engine.metrics(), **({} if self._txn is None else self._txn.metrics())}

    async def close(self, timeout_s: float = CLOSE_TIMEOUT_S, *, abort: bool = True) -> None:
        """Abort an undecided transaction, send the records taken, and close, all within `timeout_s`.

        A commit that was started gets its answer first. With `abort=False` an open transaction is left to the
        next initialisation of the id.
        """
        if self._is_closed:
            return
        self._is_closed = True
        deadline = self._cluster.start_deadline("timeout_s", int(timeout_s * 1000))
        self._engine.begin_close()
        try:
            if self._started_commit is not None:  # what is decided is not left to a recovery
                await asyncio.wait((self._started_commit,), timeout=timeout_s)
            if abort and self._txn is not None and self._txn.machine.state in _UNDECIDED:
                await self._abort_on_close(self._txn, timeout_s)
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

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()


class PendingCommit:
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


def build_delivery(share: PartitionRows, parts: PlacedOutcomes) -> BatchDelivery:
    """Return the future of a share; its rows are places in the whole batch."""
    places = share.places
    if not isinstance(places, range):
        parts = [(outcome, [places[row] for row in rows]) for outcome, rows in parts]
    return BatchDelivery(share.topic, parts)


def trace_columns(
    client_id: str,
    topic: str,
    values: "Sequence[Any] | ArrowColumn",
    headers: Iterable[tuple[str, bytes | None]],
) -> tracing.SendTrace:
    """Trace a `send_batch`. Arrow arrays without headers are sent without any, at their own speed."""
    pairs = tuple(headers)
    if not pairs and is_arrow_array(values):
        return tracing.trace_send(client_id, topic, None, len(values))
    return tracing.trace_send(client_id, topic, pairs, len(values))


async def serialize_record(
    producer: Producer[Any, Any], topic: str, value: object, key: object, headers: Iterable[Header]
) -> tuple[bytes | None, bytes | None, SerializedHeaders]:
    """Return value, key and headers of a record as they are sent. Raises: SerializationFailed."""
    serializer = require(producer.serializer, "a producer that serializes")
    call = partial(serializer.serialize, topic, value, key, headers)
    return await asyncio.to_thread(call) if serializer.is_first_use(topic, value, key) else call()


async def serialize_rows(
    producer: Producer[Any, Any], topic: str, values: object, keys: object, headers: Iterable[Header]
) -> tuple[list[bytes | None], list[bytes | None] | None, SerializedHeaders]:
    """Return the columns and headers of a `send_batch` as they are sent. Raises: SerializationFailed."""
    columns = take_objects(values), None if keys is None else take_objects(keys)
    serializer = require(producer.serializer, "a producer that serializes")
    return await asyncio.to_thread(serializer.serialize_rows, topic, *columns, headers)


def take_objects(column: object) -> Sequence[object]:
    """Return a column for serializers. Raises: IllegalState for an Arrow array or batch."""
    if isinstance(column, ArrowColumn):
        raise IllegalState(
            "Arrow columns are not serialized: send a list, or use a producer without serializers"
        )
    return cast(Sequence[object], column)


def build_columns(
    values: Column,
    keys: Column | None,
    headers: Iterable[tuple[str, bytes | None]],
    timestamp_ms: int | None,
) -> ListRows | ArrowRows:
    """Return the records of one `send_batch`. Raises: TypeError, ValueError when they do not fit together."""
    if keys is not None and len(keys) != len(values):
        raise ValueError(f"{len(values)} values and {len(keys)} keys")
    if not len(values):
        raise ValueError("a batch of no records")
    runs = [(0, int(time.time() * 1000) if timestamp_ms is None else to_timestamp(timestamp_ms))]
    record_headers = to_headers(headers)
    if not record_headers and is_arrow_array(values) and (keys is None or is_arrow_array(keys)):
        return ArrowRows.from_arrays(cast(ArrowArray, values), cast(ArrowArray | None, keys), runs)
    values = to_bytes_list(_to_list(values))
    return ListRows(
        values=values,
        keys=None if keys is None else to_bytes_list(_to_list(keys)),
        headers=list(repeat(record_headers, len(values))) if record_headers else None,
        timestamp_runs=runs,
    )


def _to_list(column: Column) -> Sequence[bytes | None]:
    return column.to_pylist() if isinstance(column, ArrowColumn) else column


async def connect(producer: Producer, topic: str) -> None:
    """Learn a topic's partitions and connect to their leaders, so that its first record does not wait.

    Raises: as a `send` of the first record; sending may still succeed later.
    """
    deadline = producer._cluster.start_deadline("max.block.ms", producer.config.max_block_ms)
    await producer._engine.connect(topic, deadline)
