# Generated from dualwrite/aio/pool.py by tools/async_to_sync.py. Do not edit it:
# change the source and run `make format`.
"""WriterPool: one writer, and so one transactional id, for each of several concurrent transactions."""

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from queue import LifoQueue
from types import TracebackType
from typing import Concatenate, Generic, ParamSpec, Self, TypeVar

from tallystick.dualwrite.block.nesting import refuse_nested
from tallystick.dualwrite.block.steps import StepRunner, Wait, Watch
from tallystick.dualwrite.blocking.leases import LeaseKeeper
from tallystick.dualwrite.blocking.writer import DualWriter, Transaction, decorate_work
from tallystick.dualwrite.errors import HeuristicMixed, NotRecovered, RecoveryHalted, WriteInDoubt
from tallystick.dualwrite.forks import OwningProcess
from tallystick.dualwrite.rules.conclusions import name_earlier
from tallystick.dualwrite.rules.idempotency import IdempotencyKey, KeyRule
from tallystick.dualwrite.rules.leases import Lease
from tallystick.dualwrite.rules.pooling import (
    WAIT_S,
    combine_errors,
    log_if_fenced,
    log_lease_lost,
    may_belong_to_pool,
    no_free_id_error,
    pool_ids,
    select_larger_pool_ids,
    take_free,
)
from tallystick.dualwrite.rules.recovery import RecoveredId, Report
from tallystick.dualwrite.rules.retries import DEFAULT_RETRY, Retry
from tallystick.dualwrite.stores.base import Store, StoreTransaction

D = TypeVar("D", bound=StoreTransaction)
R = TypeVar("R")
A = ParamSpec("A")

_log = logging.getLogger("tallystick.dualwrite")


class WriterPool(Generic[D]):
    """A pool that lends up to `size` writers at a time; shared by threads.

        pool = WriterPool(store, {"bootstrap.servers": ..., "transactional.id": "payments-host1"}, size=8)
        print(pool.recover())
        with pool.transaction() as txn:
            ...

    Its ids are `payments-host1-0` to `payments-host1-7`. Each process needs a different name; otherwise they
    fence each other. With `lease` all processes of a service share one name instead, and take the ids from a
    table in the database. Life cycle: created, recovered, used, closed.
    """

    def __init__(
        self,
        store: Store[D],
        producer_config: Mapping[str, object],
        size: int,
        *,
        wait_s: float = WAIT_S,
        lease: Lease | None = None,
        wait: Wait = "committed",
        watch: Watch | None = None,
    ) -> None:
        """Configure the pool without connecting.

        Args:
            size: maximum number of concurrent transactions, 1..1000.
            wait_s: default seconds that a caller waits for a free id.
            lease: take ids by leases, and recover those of processes that are gone.
            wait: what a transaction waits for at its end, as of a DualWriter.
            watch: an observer, or a callback for every step of every writer, as of a DualWriter.
        Raises: BadConfig. NotSupported if the store keeps no leases.
        """
        self._store = store
        self._config = producer_config
        self._size = size
        self._wait_s = wait_s
        self._wait: Wait = wait
        self._watch = watch
        self._free: LifoQueue[DualWriter[D]] = LifoQueue()
        ids = pool_ids(producer_config, size)
        self._leases = None if lease is None else self._create_keeper(lease)
        writers = [self._create_writer(each) for each in (ids[:1] if self._leases else ids)]
        self._writers = [] if self._leases else writers  # with leases one is created to check the settings
        self._is_recovered = False
        self._owning_process = OwningProcess()
        StepRunner(watch).attach(self)

    def _create_writer(self, transactional_id: str) -> DualWriter[D]:
        return self._create_writer_over(self._store, transactional_id)

    def _create_writer_over(self, store: Store[D], transactional_id: str) -> DualWriter[D]:
        config = {**self._config, "transactional.id": transactional_id}
        return DualWriter(store, config, pooled=True, wait=self._wait, watch=self._watch)

    def _create_keeper(self, lease: Lease) -> LeaseKeeper[D]:
        return LeaseKeeper(
            self._store,
            str(self._config["transactional.id"]),
            lease,
            size=self._size,
            create_writer=self._create_writer_over,
            set_free=self._free.put_nowait,
            steps=StepRunner(self._watch),
        )

    def recover(self, *, accept_mixed: bool = False) -> Report:
        """Recover every id, including those left by an earlier, larger pool of the same name.

        Call it before the first transaction; no transaction may be open. With leases, it takes the ids first;
        one that is HeuristicMixed or DatabaseBehind is logged, and another one is taken in its place.
        Raises: as DualWriter.recover. HeuristicMixed, LogBehind and ForeignCluster after all other ids are
            recovered.
        """
        self._owning_process.claim_process(f"{self._config['transactional.id']}: this pool")
        if self._leases is not None:
            recovered = self._leases.recover(accept_mixed=accept_mixed)
            self._is_recovered = True
            return Report(tuple(recovered))
        ids: list[RecoveredId] = []
        contradictions: list[HeuristicMixed | RecoveryHalted] = []
        base = self._config["transactional.id"]
        larger = [
            each
            for each in select_larger_pool_ids(base, self._size, self._store.transactional_ids())
            if may_belong_to_pool(base, self._store.read_state(each))
        ]
        with ExitStack() as stack:
            extra_writers = [stack.enter_context(self._create_writer(each)) for each in larger]
            for writer in (*self._writers, *extra_writers):
                try:
                    ids += writer.recover(accept_mixed=accept_mixed).ids
                except (HeuristicMixed, RecoveryHalted) as exc:
                    contradictions.append(exc)
        if contradictions:
            raise combine_errors(contradictions)
        if not self._is_recovered:
            self._is_recovered = True
            for writer in reversed(self._writers):
                self._free.put_nowait(writer)
        return Report(tuple(ids))

    @contextmanager
    def writer(self, wait_s: float | None = None) -> Iterator[DualWriter[D]]:
        """Lend a writer to this caller alone, recovering it first if its last outcome is unknown.

        If that recovery fails, another free writer is tried, and the next caller tries the first one again.
        Raises: NoFreeId after `wait_s`. NotRecovered, caused by HeuristicMixed or RecoveryHalted if an
            earlier write has ended so; as DualWriter.recover otherwise, if no other writer is free.
        """
        self._check_recovered()
        limit_s = self._wait_s if wait_s is None else wait_s
        acquired: list[DualWriter[D]] = []
        try:
            yield self._acquire(acquired, limit_s)
        except Exception as exc:
            log_loss = log_if_fenced if self._leases is None else log_lease_lost
            log_loss(self._config["transactional.id"], acquired[-1:], exc)
            raise
        finally:
            if not self._owning_process.is_forked_child:
                self._take_back(acquired)

    @contextmanager
    def _lend_once(self, wait_s: float | None) -> Iterator[DualWriter[D]]:
        """Lend a writer to a caller that has no block of this pool open."""
        with refuse_nested(self):
            lending = self.writer(wait_s)
            with lending as writer:
                yield writer

    def _take_back(self, writers: Sequence[DualWriter[D]]) -> None:
        if self._leases is not None:
            self._leases.take_back(*writers)
            return
        for writer in writers:
            self._free.put_nowait(writer)

    def _check_recovered(self) -> None:
        self._owning_process.check_process(f"{self._config['transactional.id']}: this pool")
        if not self._is_recovered:
            raise NotRecovered("the pool has not been recovered: call recover() first")

    def _acquire(self, acquired: list[DualWriter[D]], limit_s: float) -> DualWriter[D]:
        """Return a ready writer, appended last to `acquired`; the ones before it could not be recovered."""
        failure: Exception | None = None
        while True:
            writer = take_free(self._free, limit_s if failure is None else 0)
            if writer is None:
                raise failure or no_free_id_error(self._size, limit_s)
            if self._leases is not None and not self._leases.lend(writer):
                continue
            acquired.append(writer)
            try:
                if not writer.ready:
                    _log.info("recovered before it is used again: %s", writer.recover())
            except Exception as exc:  # any failure: another writer may still work
                _log.warning("%r: could not be recovered: %s", writer, exc)
                if self._leases is not None:
                    self._leases.note_failure(writer, exc)
                failure = exc
                if isinstance(exc, HeuristicMixed | RecoveryHalted):
                    failure = name_earlier(str(self._config["transactional.id"]), exc)
                    failure.__cause__ = exc
            else:
                return writer

    @contextmanager
    def transaction(
        self, *, wait_visible: bool = False, wait_s: float | None = None
    ) -> Iterator[Transaction[D]]:
        """Run a dual write under a free id.

        Raises: as `writer` and DualWriter.transaction; IllegalState inside a block of this pool.
        """
        with self._lend_once(wait_s) as writer, writer.transaction(wait_visible=wait_visible) as txn:
            yield txn

    def run(
        self,
        work: Callable[[Transaction[D]], R],
        *,
        retries: Retry | int = 0,
        wait_visible: bool = False,
        wait_s: float | None = None,
        idempotency_key: IdempotencyKey | None = None,
    ) -> R:
        """Run `work` in a transaction under a free id, and never apply it twice; see DualWriter.run.

        Raises: as `transaction` and DualWriter.run.
        """
        with self._lend_once(wait_s) as writer:
            return writer.run(
                work, retries=retries, wait_visible=wait_visible, idempotency_key=idempotency_key
            )

    def transactional(
        self,
        *,
        retry: Retry | int = DEFAULT_RETRY,
        idempotency_key: KeyRule | None = None,
        scope: str | None = None,
        wait_visible: bool = False,
    ) -> Callable[[Callable[Concatenate[Transaction[D], A], R]], Callable[A, R]]:
        """Decorate a function whose calls are dual writes under a free id; see DualWriter.transactional."""

        def decorate(
            work: Callable[Concatenate[Transaction[D], A], R],
        ) -> Callable[A, R]:
            return decorate_work(
                self,
                self._store,
                work,
                retry=retry,
                key_rule=idempotency_key,
                scope=scope,
                wait_visible=wait_visible,
            )

        return decorate

    def metrics(self) -> dict[str, float]:
        """Return the state as numbers: writers that no caller uses, leases held."""
        leases = {} if self._leases is None else {"pool-leases": float(len(self._leases.held_ids))}
        return {"pool-free": self._free.qsize(), **leases}

    def close(self) -> None:
        """Close every writer. Idempotent.

        Leased ids are given back; one that cannot be recovered now is left until its lease expires.
        Raises: as DualWriter.close, when all are closed.
        """
        failures: list[HeuristicMixed | WriteInDoubt] = []
        if self._leases is not None:
            failures += self._leases.close()
        for writer in self._writers:
            try:
                writer.close()
            except (HeuristicMixed, WriteInDoubt) as exc:
                failures.append(exc)
        if failures:
            raise combine_errors(failures)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self.close()
        except (HeuristicMixed, WriteInDoubt) as exc:
            if value is None:
                raise
            value.add_note(f"{type(exc).__name__}: {exc}")
