"""Asynchronous producer, `tallystick.aio.Producer`: records and transactions on the caller's own loop.

It is written once. The blocking one is generated from it, and differs in its runner: what runs a call.
"""

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Generic, Self, TypeVar, cast

from tallystick.client import tracing
from tallystick.client.aio.producer_runner import AsyncPendingCommit, AsyncProducerRunner
from tallystick.client.net.retry_scope import Deadline
from tallystick.client.offsets import GroupMetadata, OffsetAndMetadata
from tallystick.client.producer.batches.accumulator import BufferFullOrUnknownTopic
from tallystick.client.producer.batches.arrow_table import split_by_partition
from tallystick.client.producer.batches.columns import (
    ArrowColumn,
    Column,
    build_columns,
    build_delivery,
    take_objects,
)
from tallystick.client.producer.batches.delivery import BatchDelivery, Delivery, DeliveryCallback
from tallystick.client.serializers import Header, K, SerializedHeaders, V
from tallystick.client.transactions.engine import Completion
from tallystick.client.transactions.modes import Mode
from tallystick.client.transactions.prepared import PreparedTxnState
from tallystick.kernel.check import require
from tallystick.kernel.ids import TopicPartition

if TYPE_CHECKING:
    from pyarrow import RecordBatch, Table

T = TypeVar("T")

CLOSE_TIMEOUT_S: Final = 30.0

Offsets = Mapping[TopicPartition, OffsetAndMetadata | int]


class Producer(Generic[K, V]):
    """Sends records, in transactions if `transactional.id` is set.

        async with Producer({"bootstrap.servers": "localhost:9092"}) as producer:
            await producer.send("orders", b"one", key=b"42")

    With `key.serializer` or `value.serializer`, functions as confluent-kafka has them, `send` takes what they
    take: `Producer[str, Order]({...})` to a type checker. They run
    on the loop; in a thread, where they may wait, until one has succeeded for a topic and types.

    Life cycle: made, used, closed; `async with` closes it. Tasks of one loop may share one: `send`,
    `send_batch` and `flush` at any time; the transaction's calls one after the other, since there is one
    transaction at a time. It does not survive a fork: the child opens its own. Callbacks run on the loop,
    so they must not wait.

    Every error is a ClientError (or InDoubt, see `commit_transaction`) that says what may have happened in
    the cluster (`effect`) and what to do about it.
    """

    def __init__(self, config: Mapping[str, object]) -> None:
        """Read the configuration, without connecting.

        Args:
            config: Kafka's dotted names and their values, as texts, numbers or booleans: docs/config.md.
        Raises: BadConfig with all problems at once.
        """
        self._runner = AsyncProducerRunner(config)
        self.config = self._runner.config
        self.serializer = self._runner.serializer
        self._accumulator = self._runner.accumulator
        self._client_id = self.config.client.client_id

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
        """Append one record, and return a future of its delivery.

        Waits only while the topic is not known yet or `buffer.memory` is full, for `max.block.ms` at most.
        Records of one task to one partition are written in the order of these calls.

        Args:
            value: the content; None is a tombstone in a compacted topic.
            key: chooses the partition by Kafka's hash; without one the partitioner spreads batches.
            partition: instead of that choice.
            timestamp_ms: milliseconds since the epoch; now by default.
            headers: names and contents, in order; a name may occur twice.
            on_delivery: called with the Delivery when it is done, on the loop. It may send, not wait.
        Returns: a Delivery of a RecordMetadata (topic, partition, offset, timestamp_ms): await it.
        Raises: nothing was taken: TimedOut, TooLarge, UnknownTopic, IllegalState outside a transaction,
            AbortRequired when the transaction has failed, TypeError for anything but bytes, Closed;
            SerializationFailed.
        Cost: about 0.5 us, without I/O.
        Source: Kafka KafkaProducer.send; KIP-91, KIP-480, KIP-794.
        """
        record: tuple[object, object, Iterable[Header]]
        if self.serializer is not None:
            record = await serialize_record(self, topic, value, key, headers)
        else:
            # Fast path for most records: every argument passed on costs time.
            if (
                tracing.tracer is None
                and partition is None
                and timestamp_ms is None
                and on_delivery is None
                and not headers
            ):
                try:
                    if key is None and (delivery := self._accumulator.append_value(topic, value)) is not None:
                        return delivery
                    return self._accumulator.append(topic, value, key)
                except BufferFullOrUnknownTopic:
                    pass
            record = value, key, headers
        pairs = tuple(record[2] or ())  # as on the fast path: none, also where confluent-kafka takes None
        take = partial(
            self._accumulator.append,
            topic,
            record[0],
            record[1],
            partition=partition,
            timestamp_ms=timestamp_ms,
            headers=pairs,
            on_delivery=on_delivery,
        )
        tracer = tracing.tracer
        if tracer is None:
            return await self._append_when_admitted(topic, take, "send")
        with tracer.trace_send(self._client_id, topic, pairs, None) as trace:
            traced_take = partial(take, headers=trace.headers)
            return trace.follow(await self._append_when_admitted(topic, traced_take, "send"))

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
        """Append many records in one call: all of them or, if it raises, none.

        Args:
            values: bytes or None, a list or an Arrow array; at least one. With serializers a list of what
                they take.
            keys: as many. Records are spread by the hash of their key; those without one stay together.
            partition: for all of them, instead of that choice.
            timestamp_ms: of all of them; now by default.
            headers: of every one of them.
        Returns: a BatchDelivery of a BatchMetadata with a part for each batch the records went into.
        Raises: as `send`; ValueError for columns of different lengths.
        Cost: about 0.1 us a record without keys, 0.4 with.
        """
        with tracing.trace_columns(self._client_id, topic, values, headers) as trace:
            if self.serializer is not None:
                columns = await serialize_rows(self, topic, values, keys, trace.headers)
                rows = build_columns(*columns, timestamp_ms)
            else:
                rows = build_columns(
                    cast(Column, values), cast(Column | None, keys), trace.headers, timestamp_ms
                )
            take = partial(self._accumulator.extend, topic, rows, partition)
            return trace.follow(
                BatchDelivery(topic, await self._append_when_admitted(topic, take, "send_batch"))
            )

    async def send_arrow(self, batch: "RecordBatch | Table", topic: str | None = None) -> list[BatchDelivery]:
        """Append the rows of an Arrow batch, each for the topic and partition it names.

        Args:
            batch: `value`, and optionally `key`, `topic`, `partition` (null where the key decides),
                `timestamp` (null for now) and `headers`: the columns of Spark's Kafka sink.
            topic: for all rows, instead of their column.
        Returns: a BatchDelivery for each topic and partition; their `rows` are places in `batch`.
        Raises: as `send_batch`. Rows of topics and partitions before a refused one were taken: outside a
            transaction flush to wait for them; inside one, abort. IllegalState for a producer with
            serializers, which take no columns.
        """
        if self.serializer is not None:
            take_objects(batch)
        deliveries: list[BatchDelivery] = []
        with tracing.trace_send(self._client_id, topic, None, batch.num_rows) as trace:
            for share in split_by_partition(batch, topic, int(time.time() * 1000)):
                take = partial(self._accumulator.extend, share.topic, share.rows, share.partition)
                parts = await self._append_when_admitted(share.topic, take, "send_arrow")
                deliveries.append(build_delivery(share, parts))
            return trace.follow(deliveries)

    async def flush(self, timeout_s: float | None = None) -> None:
        """Send all records taken so far, and wait until each has its outcome.

        Deliveries carry the outcomes; a record that failed is no error here.

        Args:
            timeout_s: seconds; by default `delivery.timeout.ms` ends the wait, as it ends every record.
        Raises: TimedOut after `timeout_s`: the rest stays in flight.
        """
        await self._runner.flush(timeout_s)

    # ------------------------------------------------------------------------- transactions

    async def init_transactions(self, keep_prepared_txn: bool = False) -> None:
        """Claim the transactional id, once, before the first transaction.

        Earlier producers of this id are fenced (in mode `resume`: when their transaction has ended). An open
        transaction of theirs is aborted, or kept.

        Args:
            keep_prepared_txn: keep a prepared transaction as it is, for `complete_transaction`.
        Raises: NotSupported, NotAuthorized or BrokerRefused if no mode of `tallystick.modes` is possible;
            the text names the version, grant or setting that is missing. InvalidTxnState for
            `keep_prepared_txn` without two-phase commit or modes. TimedOut.
        Source: KIP-98; KIP-939 "KafkaProducer API Changes".
        """
        await self._runner.run_once("init_transactions", lambda txn: txn.init(keep_prepared_txn))

    async def begin_transaction(self) -> None:
        """Begin a transaction: records sent from now on belong to it.

        Waits only after a transaction whose end did not bump the producer's epoch.
        Raises: IllegalState unless the producer is ready for one; Fenced.
        """
        await self._runner.begin()

    async def send_offsets_to_transaction(self, offsets: Offsets, group_metadata: GroupMetadata) -> None:
        """Commit a group's offsets with this transaction.

        Args:
            offsets: the next offset to read of each partition, or OffsetAndMetadata.
            group_metadata: `Consumer.group_metadata()` of the consumer that read: an evicted one is refused.
        Raises: AbortRequired and others; then the transaction can only be aborted.
        Source: KIP-447.
        """
        positions = {
            at: OffsetAndMetadata(place) if isinstance(place, int) else place for at, place in offsets.items()
        }
        await self._runner.run(
            "send_offsets_to_transaction", lambda txn: txn.send_offsets(positions, group_metadata)
        )

    async def prepare_transaction(self) -> PreparedTxnState:
        """Flush everything, then leave the transaction in doubt: only commit, abort and complete are legal.

        Returns: the prepared state; store `str()` of it in the other system's own transaction. Empty if
            nothing was sent.
        Order: when this returns, every record and offset is in the cluster.
        Raises: InvalidTxnState without two-phase commit or modes; AbortRequired if any part has failed.
        Source: KIP-939 "KafkaProducer API Changes".
        """
        return await self._runner.run_once("prepare_transaction", lambda txn: txn.prepare())

    async def commit_transaction(self) -> None:
        """Commit: `read_committed` consumers see the whole transaction.

        Flushes first, unless the transaction is prepared.
        Raises: AbortRequired if any record or offset has failed. InDoubt if the decision was sent and its
            outcome is unknown: commit again asks again. DecisionExpired if the cluster had ended the
            transaction by itself. Fenced.

        After an interrupt (Ctrl-C, an exception from a signal handler) commit again: the call continues,
        returns if the transaction was committed, or raises AbortRequired if it was never decided.
        """
        await self._runner.run_once("commit_transaction", lambda txn: txn.commit())

    async def start_commit(self) -> AsyncPendingCommit:
        """Begin to commit the transaction, and return what waits for the answer.

        The next transaction can begin when the commit has succeeded. `close` waits for the answer, too.
        Raises: Closed, IllegalState; the commit was not begun.
        """
        return await self._runner.start_commit()

    async def abort_transaction(self) -> None:
        """Abort: unsent records fail, and `read_committed` consumers never see those that were sent.

        Raises: IllegalState outside a transaction; InDoubt, TimedOut: abort again asks again. Fenced.
        """
        await self._runner.run_once("abort_transaction", lambda txn: txn.abort())

    async def complete_transaction(self, state: PreparedTxnState) -> Completion:
        """End the transaction in doubt as another system has recorded.

        Commits if `state` names exactly the transaction in doubt, aborts otherwise. With nothing in doubt it
        changes nothing, and finds out, as far as possible, how the transaction that `state` names has ended.

        Args:
            state: the state stored by the other system, `PreparedTxnState(text)`.
        Raises: InvalidTxnState unless `init_transactions(True)` or `prepare_transaction()` came before;
            DecisionExpired if `state` was committed there and the cluster has aborted it; InDoubt.
        Source: KIP-939 "KafkaProducer API Changes" and "Recovery recipe".
        """
        return await self._runner.run_once("complete_transaction", lambda txn: txn.complete(state))

    @property
    def mode(self) -> Mode | None:
        """Mode that holds a prepared transaction, after `init_transactions`; None: nothing may be prepared.

        `mode.value` is its name in `tallystick.modes`, `mode.not_promised` what it does not guarantee.
        """
        return self._runner.read("mode", lambda txn: txn.mode, None)

    @property
    def transaction_version(self) -> int:
        """`transaction.version` of the open transaction, else of the next one.

        From 2 on a producer id and epoch name one transaction (KIP-890).
        """
        return self._runner.read("transaction_version", lambda txn: txn.transaction_version, 0)

    @property
    def needs_claim(self) -> bool:
        """Whether `begin_transaction` initialises the id first, which fences others and ends what is open."""
        return self._runner.read("needs_claim", lambda txn: txn.needs_init, False)

    @property
    def in_doubt(self) -> PreparedTxnState:
        """Name of the open transaction; after `init_transactions(True)`, of the kept one. May be empty."""
        return self._runner.read("in_doubt", lambda txn: txn.in_doubt, PreparedTxnState.of(None))

    # ------------------------------------------------------------------------- the whole of it

    def metrics(self) -> dict[str, float]:
        """Return metrics by Kafka's names, `txn-*-time-ns-total` (nanoseconds) included."""
        return self._runner.metrics()

    async def close(self, timeout_s: float = CLOSE_TIMEOUT_S, *, abort: bool = True) -> None:
        """Send the records taken, and close; harmless if repeated.

        An undecided transaction is aborted; one that is prepared or in doubt is left as it is, for recovery.

        Args:
            timeout_s: maximum time in seconds. Records not sent by then fail as Closed.
            abort: False leaves an open transaction to the next initialisation of the id, too.
        """
        await self._runner.close(timeout_s, abort=abort)

    async def _append_when_admitted(self, topic: str, take: Callable[[], T], name: str) -> T:
        """Return the result of `take` once a record for `topic` may be taken, within max.block.ms."""
        deadline: Deadline | None = None
        while True:
            try:
                return take()
            except BufferFullOrUnknownTopic:
                deadline = await self._runner.wait_for_space(topic, deadline, name)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    def __repr__(self) -> str:
        return repr(self._runner)


async def serialize_record(
    producer: Producer[Any, Any], topic: str, value: object, key: object, headers: Iterable[Header]
) -> tuple[bytes | None, bytes | None, SerializedHeaders]:
    """Return value, key and headers of a record as they are sent. Raises: SerializationFailed."""
    serializer = require(producer.serializer, "a producer that serializes")
    call = partial(serializer.serialize, topic, value, key, headers)
    return await producer._runner.serialize(call, may_wait=serializer.is_first_use(topic, value, key))


async def serialize_rows(
    producer: Producer[Any, Any], topic: str, values: object, keys: object, headers: Iterable[Header]
) -> tuple[list[bytes | None], list[bytes | None] | None, SerializedHeaders]:
    """Return the columns and headers of a `send_batch` as they are sent. Raises: SerializationFailed."""
    columns = take_objects(values), None if keys is None else take_objects(keys)
    serializer = require(producer.serializer, "a producer that serializes")
    call = partial(serializer.serialize_rows, topic, *columns, headers)
    return await producer._runner.serialize(call, may_wait=True)


async def connect(producer: Producer, topic: str) -> None:
    """Learn a topic's partitions and connect to their leaders, so that the first record does not wait.

    Raises: as a `send` of the first record; sending may still succeed later.
    """
    await producer._runner.connect(topic)
