"""`tallystick.dualwrite.DualWriter`: rows and records, committed together or not at all."""

import logging
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from functools import partial
from types import TracebackType
from typing import Final, Generic, Self, TypeVar

from tallystick.admin.client import Admin
from tallystick.client.aio.producer import Column
from tallystick.client.blocking.consumer import Consumer
from tallystick.client.blocking.producer import Producer
from tallystick.client.producer.delivery import BatchDelivery, Delivery
from tallystick.client.transactions.modes import Mode
from tallystick.dualwrite.drivers import Driver, Step, Watch
from tallystick.dualwrite.errors import Halted, Outcome, Torn, WriteInDoubt
from tallystick.dualwrite.offsets import SentOffsets
from tallystick.dualwrite.recovery import Report
from tallystick.dualwrite.session import Making, Session
from tallystick.dualwrite.stores.base import Store, StoreTransaction
from tallystick.dualwrite.transaction import (
    Block,
    Half,
    Savepoint,
    flush_rows,
    left_if_forked,
    note_sent,
    one_of,
    savepoint_of,
)
from tallystick.kernel.clock import SystemClock

D = TypeVar("D", bound=StoreTransaction)
R = TypeVar("R")

_log = logging.getLogger("tallystick.dualwrite")

ONLY: Final = "kafka"
"""How the one cluster of a writer is called that was given no names."""
_MAKING: Final = Making(producer=Producer, admin=Admin, pause=time.sleep, clock=SystemClock())


class Transaction(Half[D]):
    """One dual write, inside its block: rows through `session` or `connection`, records through `send`."""

    def __init__(
        self, database: D, producers: Mapping[str, Producer], driver: Driver, offsets: SentOffsets
    ) -> None:
        super().__init__(database)
        self._producers = producers
        self._driver = driver
        self._offsets = offsets

    def send(
        self,
        topic: str,
        value: bytes | None = None,
        key: bytes | None = None,
        *,
        partition: int | None = None,
        timestamp_ms: int | None = None,
        headers: Iterable[tuple[str, bytes | None]] = (),
        cluster: str | None = None,
    ) -> Delivery:
        """Send one record in this transaction. As `Producer.send`; `cluster` where the writer has several."""
        sent = partial(
            self._producer(cluster).send,
            topic,
            value,
            key,
            partition=partition,
            timestamp_ms=timestamp_ms,
            headers=headers,
        )
        return self._driver.take(Step("send", topic, sent), sent)

    def send_batch(
        self,
        topic: str,
        values: Column,
        keys: Column | None = None,
        *,
        partition: int | None = None,
        timestamp_ms: int | None = None,
        cluster: str | None = None,
    ) -> BatchDelivery:
        """Send many records at once. As `Producer.send_batch`."""
        sent = partial(
            self._producer(cluster).send_batch,
            topic,
            values,
            keys,
            partition=partition,
            timestamp_ms=timestamp_ms,
        )
        return self._driver.take(Step("send", topic, sent), sent)

    def send_offsets(self, consumer: Consumer, *, cluster: str | None = None) -> None:
        """Commit the positions of `consumer` for its group with this transaction (KIP-447).

        All that it has returned counts as processed. Call it right after `poll`, inside the block: whatever
        fails from then on, the next `poll` returns again what was not committed. While the outcome is not
        known the consumer returns nothing; this writer's `recover()` finds out, and it goes on as that says.
        """
        producer, group = self._producer(cluster), consumer.group_metadata()
        note = self._offsets.add(consumer)
        note.positions = positions = {at: consumer.position(at) for at in consumer.assignment}
        sent = partial(producer.send_offsets_to_transaction, positions, group)
        self._driver.take(Step("send offsets", group.group_id, sent), sent)

    @contextmanager
    def savepoint(self) -> Iterator[Savepoint]:
        """A savepoint of the database whose records go out only when it is released.

            with suppress(BadLine), txn.savepoint() as part:
                txn.session.add(...)
                part.send("payments", b"...")

        Raises: NotYours for a store without savepoints.
        """
        part = Savepoint(self.send, self.send_batch)
        with ExitStack() as stack:
            stack.enter_context(savepoint_of(self.database))
            with left_if_forked(self.home, stack):
                yield part
        for send in part.kept:
            send()

    def _producer(self, cluster: str | None) -> Producer:
        self.check_open()
        note_sent(self._database)
        return one_of(self._producers, cluster)


class DualWriter(Generic[D]):
    """Writes a database and Kafka, in transactions that commit in both or in neither.

        writer = DualWriter(SqlStore(engine), {"bootstrap.servers": ..., "transactional.id": "payments-1"})
        print(writer.recover())
        with writer.transaction() as txn:
            txn.session.add(Payment(...))
            txn.send("payments", b"...")

    Life: made, recovered, used, closed; `with` closes it. One transaction at a time: a writer is one
    transactional id, and each writer that lives at the same time needs its own (a WriterPool hands them out).
    The store and its engine stay the caller's.

    Two-phase commit is asked for unless `tallystick.modes` lists weaker ways: docs/dualwrite.md says what
    each mode guarantees.
    """

    def __init__(
        self,
        store: Store[D],
        producer_config: Mapping[str, object] | None = None,
        *,
        clusters: Mapping[str, Mapping[str, object]] | None = None,
        watch: Watch | None = None,
        pooled: bool = False,
    ) -> None:
        """Connects to nothing yet.

        Args:
            producer_config: settings of the producer by Kafka's names; `transactional.id` among them.
            clusters: instead of it, such settings for each of several clusters, by names of your own. Each
                needs a transactional id of its own.
            watch: told of every step; for tests that end the process at one.
            pooled: the id is one of a pool, which recovers what a larger one of its name has left.
        Raises: BadConfig with all problems; ValueError.
        """
        if (producer_config is None) == (clusters is None):
            raise ValueError("either producer_config or clusters")
        configs = clusters if producer_config is None else {ONLY: producer_config}
        self._session: Session[D, Producer] = Session(store, configs or {}, _MAKING, alone=not pooled)
        self._driver = Driver(watch)

    def recover(self, *, accept_torn: bool = False) -> Report:
        """Bring both halves of this writer's id to the same end; needed before the first transaction.

        Another writer of the id is fenced in the database, and in Kafka. Again: finds nothing more to do.

        Args:
            accept_torn: go on although the halves differ for good: the cluster has aborted what the database
                has committed, or the database has lost what the cluster has; after it was repaired by hand.
        Returns: what it found and did; `print` it.
        Raises: LogBehind or ForeignCluster, and nothing was changed in Kafka. Torn, DatabaseBehind.
            UnsafeStore. What the database and the client raise: then call it again.
        """
        with Block(self._session) as block, block:
            return self._driver.run(self._session.recover(accept_torn=accept_torn, block=block))

    def look(self) -> Report:
        """What recover() would find and do now; nothing is claimed or changed, and it may be old news."""
        return self._driver.run(self._session.look())

    @contextmanager
    def transaction(self, *, wait_visible: bool = False) -> Iterator[Transaction[D]]:
        """A dual write. When the block ends, both halves are committed; if it raises, neither is.

        The rows are readable when the block has ended, and the records are decided: readers of committed
        records see them as soon as the markers are written.

        Args:
            wait_visible: wait for those, too.
        Raises: WriteInDoubt when an outcome is not known: `recover()` finds out, and finishes it. Fenced when
            another writer has claimed the id. DatabaseBehind. NotRecovered. Torn; NotVisible.
        """
        driver, session = self._driver, self._session
        with Block(session) as block, block:
            database = driver.run(session.begin(block))
            producers = {name: branch.producer for name, branch in session.branches.items()}
            txn = Transaction(database, producers, driver, session.offsets)
            try:
                yield txn
                txn.check_process()
                flush_rows(database)
            except BaseException as exc:
                txn.end()
                driver.run(session.rollback(database, exc))
                raise
            txn.end()
            driver.run(session.commit(database, wait_visible=wait_visible))

    def run(self, work: Callable[[Transaction[D]], R], *, retries: int = 0, wait_visible: bool = False) -> R:
        """What `work` returns, in a transaction of its own; never carried out twice.

        When the end of it is in doubt, this recovers, and repeats `work` only if neither half was committed.

        Args:
            retries: how often, at most.
        Raises: as `transaction`. WriteInDoubt if it cannot be found out, or was not committed once too often:
            its `outcome()` tells.
        """
        for left in reversed(range(retries + 1)):
            done: list[R] = []
            try:
                with self.transaction(wait_visible=wait_visible) as txn:
                    done.append(work(txn))
            except WriteInDoubt as doubt:
                if not done:  # of another writer, inside the work
                    raise
                try:
                    _log.info("%s", self.recover())
                except (Torn, Halted):
                    raise
                except Exception as exc:  # it may be known by now, and must not look like a failed write
                    raise doubt from exc
                if doubt.outcome() is Outcome.COMMITTED:
                    return done[0]
                if doubt.outcome() is Outcome.UNKNOWN or not left:
                    raise
            else:
                return done[0]
        raise AssertionError("retries: at least 0")

    @property
    def ready(self) -> bool:
        """Can a transaction begin? If not, recover() comes first, or the writer is in use or closed."""
        return self._session.ready

    @property
    def modes(self) -> Mapping[str, Mode | None]:
        """What a prepared transaction rests on in each cluster, after recover()."""
        return {name: branch.producer.mode for name, branch in self._session.branches.items()}

    def close(self) -> None:
        """End the clients; again is harmless. What is in doubt stays so, for the next recover()."""
        self._driver.run(self._session.close())

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<DualWriter {self._session.name}: {self._session.standing.value}>"
