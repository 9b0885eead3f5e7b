"""WriterPool: one writer, and so one transactional id, for each of several concurrent transactions."""

import logging
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from queue import Empty, LifoQueue
from types import TracebackType
from typing import Final, Generic, Self, TypeVar

from tallystick.client.errors import BrokerRefused
from tallystick.client.errors import Fenced as FencedInKafka
from tallystick.dualwrite.errors import Fenced, Halted, NoFreeId, NotRecovered, Torn
from tallystick.dualwrite.forks import OwningProcess
from tallystick.dualwrite.model import StoredState
from tallystick.dualwrite.recovery import RecoveredId, Report
from tallystick.dualwrite.stores.base import Store, StoreTransaction
from tallystick.dualwrite.writer import DualWriter, Transaction
from tallystick.kernel.codes import ErrorCode
from tallystick.kernel.settings import BadConfig

D = TypeVar("D", bound=StoreTransaction)
R = TypeVar("R")

_log = logging.getLogger("tallystick.dualwrite")

WAIT_S: Final = 30.0
SIZE_MAX: Final = 1000


def pool_ids(config: Mapping[str, object], size: int) -> list[str]:
    """Build the ids of a pool: `transactional.id`, a hyphen and a number. Raises: BadConfig."""
    base = config.get("transactional.id")
    if not isinstance(base, str) or not base:
        raise BadConfig("transactional.id: must be set: the ids of the pool begin with it")
    if not 1 <= size <= SIZE_MAX:
        raise BadConfig(f"size: {size} is not 1..{SIZE_MAX}")
    return [f"{base}-{number}" for number in range(size)]


def select_larger_pool_ids(base: object, size: int, stored: Iterable[str]) -> list[str]:
    """Select the stored ids that a larger pool of the same name may have left."""
    form = re.compile(rf"{re.escape(str(base))}-(0|[1-9][0-9]*)")
    return [each for each in stored if (found := form.fullmatch(each)) and int(found[1]) >= size]


def may_belong_to_pool(base: object, row: StoredState | None) -> bool:
    """Return whether an id found by `select_larger_pool_ids` belongs to a pool.

    A row without a recorded transaction, or of an earlier version, does not show it. Such a row counts as a
    pool's, because only this pool would find a transaction that a larger pool left in doubt.
    """
    if row is None or not row.alone:
        return True
    _log.warning(
        "%r has an id like those of the pool %r, and was recorded by a DualWriter of its own: it is not "
        "recovered with the pool. Where that writer is gone, `tallystick transactions resolve` finishes it",
        row.transactional_id,
        base,
    )
    return False


def combine_errors(contradictions: Sequence[Torn | Halted]) -> Torn | Halted:
    """Return the first error, with a note for each of the others."""
    first, *others = contradictions
    for each in others:
        first.add_note(f"and {type(each).__name__}: {each}")
    return first


def log_if_fenced(base: object, writer: object, exc: BaseException) -> None:
    """Log that an id was lost to another client, which suggests two pools of the same name."""
    told: BaseException | None = exc
    while told is not None and not _is_fenced_error(told):
        told = told.__cause__
    if told is None:
        return
    _log.error(
        "the pool %r has lost an id to another client, %r: %s. If that is no operator's `tallystick "
        "transactions resolve`, another process has a pool of the same name, or a DualWriter of this id: "
        "they take it from each other for ever. Give each process a transactional.id of its own",
        base,
        writer,
        told,
    )


def _is_fenced_error(exc: BaseException) -> bool:
    """Return whether the id was fenced, in the database or in Kafka, which may notice first."""
    if isinstance(exc, BrokerRefused):
        return isinstance(exc, FencedInKafka) or exc.code == ErrorCode.INVALID_PRODUCER_EPOCH
    return isinstance(exc, Fenced)


def no_free_id_error(size: int, limit_s: float) -> NoFreeId:
    return NoFreeId(f"none of {size} ids became free within {limit_s:g} s")


class WriterPool(Generic[D]):
    """A pool that lends up to `size` writers at a time; shared by threads.

        pool = WriterPool(store, {"bootstrap.servers": ..., "transactional.id": "payments-host1"}, size=8)
        print(pool.recover())
        with pool.transaction() as txn:
            ...

    Its ids are `payments-host1-0` to `payments-host1-7`. Each process needs a different name; otherwise they
    fence each other. Life cycle: created, recovered, used, closed.
    """

    def __init__(
        self, store: Store[D], producer_config: Mapping[str, object], size: int, *, wait_s: float = WAIT_S
    ) -> None:
        """Configure the pool without connecting.

        Args:
            size: maximum number of concurrent transactions, 1..1000.
            wait_s: default seconds that a caller waits for a free id.
        Raises: BadConfig.
        """
        self._store = store
        self._config = producer_config
        self._size = size
        self._wait_s = wait_s
        self._writers = [self._create_writer(each) for each in pool_ids(producer_config, size)]
        self._free: LifoQueue[DualWriter[D]] = LifoQueue()
        self._is_recovered = False
        self._owning_process = OwningProcess()

    def _create_writer(self, transactional_id: str) -> DualWriter[D]:
        config = {**self._config, "transactional.id": transactional_id}
        return DualWriter(self._store, config, pooled=True)

    def recover(self, *, accept_torn: bool = False) -> Report:
        """Recover every id, including those left by an earlier, larger pool of the same name.

        Call it before the first transaction; no transaction may be open.
        Raises: as DualWriter.recover. Torn, LogBehind and ForeignCluster after all other ids are recovered.
        """
        self._owning_process.claim_process(f"{self._config['transactional.id']}: this pool")
        found: list[RecoveredId] = []
        contradictions: list[Torn | Halted] = []
        base = self._config["transactional.id"]
        larger = [
            each
            for each in select_larger_pool_ids(base, self._size, self._store.transactional_ids())
            if may_belong_to_pool(base, self._store.read_state(each))
        ]
        with ExitStack() as stack:
            left = [stack.enter_context(self._create_writer(each)) for each in larger]
            for writer in (*self._writers, *left):
                try:
                    found += writer.recover(accept_torn=accept_torn).ids
                except (Torn, Halted) as exc:
                    contradictions.append(exc)
        if contradictions:
            raise combine_errors(contradictions)
        if not self._is_recovered:
            self._is_recovered = True
            for writer in reversed(self._writers):
                self._free.put(writer)
        return Report(tuple(found))

    @contextmanager
    def writer(self, wait_s: float | None = None) -> Iterator[DualWriter[D]]:
        """Lend a writer to this caller alone, recovering it first if its last outcome is unknown.

        If that recovery fails, another free writer is tried, and the next caller tries the first one again.
        Raises: NoFreeId after `wait_s`; NotRecovered; as DualWriter.recover if no other writer is free.
        """
        self._owning_process.check_process(f"{self._config['transactional.id']}: this pool")
        if not self._is_recovered:
            raise NotRecovered("the pool has not been recovered: call recover() first")
        limit_s = self._wait_s if wait_s is None else wait_s
        taken: list[DualWriter[D]] = []
        try:
            yield self._acquire(taken, limit_s)
        except Exception as exc:
            log_if_fenced(self._config["transactional.id"], taken[-1:], exc)
            raise
        finally:
            for writer in taken if not self._owning_process.is_forked_child else ():
                self._free.put(writer)

    def _acquire(self, taken: list[DualWriter[D]], limit_s: float) -> DualWriter[D]:
        """Return a ready writer, appended last to `taken`; the ones before it could not be recovered."""
        failure: Exception | None = None
        while True:
            try:
                writer = self._free.get(timeout=limit_s) if failure is None else self._free.get_nowait()
            except Empty:
                raise failure or no_free_id_error(self._size, limit_s) from None
            taken.append(writer)
            try:
                if not writer.ready:
                    _log.info("recovered before it is used again: %s", writer.recover())
            except Exception as exc:  # any failure: another writer may still work
                _log.warning("%r: could not be recovered: %s", writer, exc)
                failure = exc
            else:
                return writer

    @contextmanager
    def transaction(
        self, *, wait_visible: bool = False, wait_s: float | None = None
    ) -> Iterator[Transaction[D]]:
        """Run a dual write under a free id. Raises: as `writer` and DualWriter.transaction."""
        with self.writer(wait_s) as writer, writer.transaction(wait_visible=wait_visible) as txn:
            yield txn

    def run(
        self,
        work: Callable[[Transaction[D]], R],
        *,
        retries: int = 0,
        wait_visible: bool = False,
        wait_s: float | None = None,
    ) -> R:
        """Run `work` in a transaction under a free id, and never apply it twice; see DualWriter.run."""
        with self.writer(wait_s) as writer:
            return writer.run(work, retries=retries, wait_visible=wait_visible)

    def close(self) -> None:
        """Close every writer. Idempotent."""
        for writer in self._writers:
            writer.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
