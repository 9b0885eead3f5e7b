"""The leases of a pool: which ids it uses, how long it may use them, and the ids of processes that are gone.

A heartbeat renews the leases. Upkeep takes longer, and runs in parallel: taking other ids in place of
those that were lost, recovering the ids whose holder has let its lease expire, and closing the writers of
ids that were lost. `rules.leases` decides; this module asks the database and keeps the writers.

A lease protects nothing by itself [DW-15]; see `rules.leases`.
"""

import asyncio
import logging
import secrets
import threading
from collections.abc import Awaitable, Callable, Collection, Iterable, Sequence
from contextlib import AsyncExitStack
from typing import Any, Final, Generic, TypeVar

from tallystick.client.errors import NotSupported
from tallystick.dualwrite.aio.writer import DualWriter
from tallystick.dualwrite.block.steps import AsyncStepRunner
from tallystick.dualwrite.errors import (
    DatabaseBehind,
    HeuristicMixed,
    LeaseLost,
    NotRecovered,
    RecoveryHalted,
    WriteInDoubt,
)
from tallystick.dualwrite.forks import OwningProcess
from tallystick.dualwrite.rules.conclusions import describe_error
from tallystick.dualwrite.rules.leases import (
    GivingBack,
    Lease,
    LeaseRow,
    LeaseTaking,
    Lending,
    RecoveryAttempts,
    assess_giving_back,
    assess_lending,
    choose_leases,
    find_expired,
    find_lost,
)
from tallystick.dualwrite.rules.model import StoredState
from tallystick.dualwrite.rules.pooling import (
    describe_process,
    join_within_async,
    log_contradiction,
    start_background_async,
    wait_event_async,
)
from tallystick.dualwrite.rules.recovery import RecoveredId
from tallystick.dualwrite.stores.base import AsyncLeaseStore, AsyncStore, AsyncStoreTransaction
from tallystick.dualwrite.tracing import get_database_system
from tallystick.kernel.clock import Clock, SystemClock
from tallystick.kernel.value import replace
from tallystick.metrics.dual_writes import WriteEvent

D = TypeVar("D", bound=AsyncStoreTransaction)

_log = logging.getLogger("tallystick.dualwrite")

HOLDER_BYTES: Final = 16
CLOSE_WAIT_S: Final = 5.0
"""Maximum time that closing waits for a renewal or recovery that is under way."""


class AsyncLeasedId(Generic[D]):
    """An id whose lease the pool holds, and its writer."""

    def __init__(self, transactional_id: str, writer: DualWriter[D], usable_until_ms: int) -> None:
        self.id = transactional_id
        self.writer = writer
        self.usable_until_ms = usable_until_ms
        self.is_recovered = False
        self.is_lent = False
        self.is_parked = False  # neither lent nor free: its lease may have expired


class AsyncLeaseKeeper(Generic[D]):
    """The leases of one pool. The pool belongs to the process that recovered it; so do they."""

    def __init__(
        self,
        store: AsyncStore[D],
        base: str,
        lease: Lease,
        *,
        size: int,
        create_writer: Callable[[AsyncStore[D], str], DualWriter[D]],
        set_free: Callable[[DualWriter[D]], object],
        steps: AsyncStepRunner,
        clock: Clock | None = None,
    ) -> None:
        """Configure the leases without connecting.

        Args:
            base: name that all processes of the service share.
            create_writer: creates the writer of an id.
            set_free: adds a writer to those that can be lent.
        Raises: BadConfig; NotSupported by a store that keeps no leases.
        """
        lease.check()
        self._store = _require_leases(store)
        self._base = base
        self._lease = lease
        self._size = size
        self._create_writer = create_writer
        self._set_free = set_free
        self._steps = steps
        self._clock = clock or SystemClock()
        self._holder = ""
        self._held: dict[str, AsyncLeasedId[D]] = {}
        self.held_ids: Collection[str] = self._held.keys()  # a view
        self._lost_writers: list[DualWriter[D]] = []  # to be closed
        self._close_failures: list[HeuristicMixed | WriteInDoubt] = []
        self._recovering_ids: set[str] = set()  # of other holders, taken over in order to recover them
        self._attempts = RecoveryAttempts(lease.duration_ms)
        self._lock = threading.Lock()  # around what is looked at and changed without waiting
        self._fill_lock = asyncio.Lock()
        self._wake = asyncio.Event()
        self._is_filled = self._is_closed = False
        self._heartbeat: Any = None
        self._upkeep: Any = None
        self._is_upkeep_running = False
        self._owning_process = OwningProcess()

    # ---- recovery of the pool

    async def recover(self, *, accept_mixed: bool = False) -> list[RecoveredId]:
        """Recover the ids that are held, and take and recover others until there are enough.

        An id whose two sides contradict each other is left to an operator, and another one is taken.
        Raises: as DualWriter.recover; what is held by then is recovered by the next call.
        """
        self._owning_process.claim_process(f"{self._base}: this pool")
        if self._is_closed:
            raise NotRecovered(f"{self._base}: this pool is closed")
        self._holder = self._holder or secrets.token_hex(HOLDER_BYTES)
        if self._heartbeat is None:
            self._heartbeat = start_background_async(f"tallystick-leases-{self._base}", self._beat)
        ids: list[RecoveredId] = []
        async with self._fill_lock:
            for leased in list(self._held.values()):
                ids += await self._recover_held(leased, accept_mixed=accept_mixed)
            ids += await self._fill(accept_mixed=accept_mixed)
            self._is_filled = True
        return ids

    async def _fill(self, *, accept_mixed: bool = False) -> list[RecoveredId]:
        """Acquire and recover ids until there are enough."""
        ids: list[RecoveredId] = []
        while (missing_count := self._size - len(self._held)) > 0 and not self._is_closed:
            leases = await self._steps.run("read leases", self._base, self._store.read_leases, self._base)
            barred_ids = self._select_barred_ids()
            for row, former in choose_leases(self._base, leases, missing_count, barred_ids):
                taken_ms = self._clock.monotonic_ms()
                if await self._take(row, former):
                    leased = self._hold(row.transactional_id, taken_ms)
                    ids += await self._recover_held(leased, accept_mixed=accept_mixed)
        return ids

    def _select_barred_ids(self) -> frozenset[str]:
        tried_ids = self._attempts.barred_ids(self._clock.monotonic_ms())
        return frozenset({*self._held, *self._recovering_ids, *tried_ids})

    async def _take(self, row: LeaseRow, former: LeaseRow | None) -> bool:
        taken = replace(row, holder=self._holder, holder_info=describe_process())
        taking = LeaseTaking(row=taken, former=former, duration_ms=self._lease.duration_ms)
        is_taken = await self._steps.run("take lease", row.transactional_id, self._store.take_lease, taking)
        if is_taken:
            self._steps.emit(WriteEvent.LEASE_TAKEN)
        return is_taken

    def _hold(self, transactional_id: str, taken_ms: int) -> AsyncLeasedId[D]:
        writer = self._create_writer(AsyncLeasedStore(self._store, self._holder), transactional_id)
        leased = AsyncLeasedId(transactional_id, writer, taken_ms + self._lease.duration_ms)
        with self._lock:
            self._held[transactional_id] = leased
        return leased

    async def _recover_held(self, leased: AsyncLeasedId[D], *, accept_mixed: bool) -> list[RecoveredId]:
        """Recover an id that is held, and let it be lent; nothing if it was given up."""
        try:
            report = await leased.writer.recover(accept_mixed=accept_mixed)
        except (LeaseLost, HeuristicMixed, DatabaseBehind) as exc:
            self.note_failure(leased.writer, exc)
            await self._close_writer(leased.writer)
            return []
        self._attempts.forget(leased.id)
        await self._set_lendable(leased)
        return list(report.ids)

    async def _set_lendable(self, leased: AsyncLeasedId[D]) -> None:
        """Allow an id to be lent from now on."""
        if not leased.is_recovered:
            leased.is_recovered = True
            await self.take_back(leased.writer)

    # ---- lending

    async def lend(self, writer: DualWriter[D]) -> bool:
        """Return whether a writer, taken from the free ones, may be used; otherwise it was put away."""
        with self._lock:
            leased = self._find(writer)
            lending = assess_lending(
                None if leased is None else leased.usable_until_ms, self._clock.monotonic_ms()
            )
            if leased is not None:
                leased.is_lent = lending is Lending.LEND
                leased.is_parked = lending is Lending.PARK
        if lending is Lending.DROP:
            await self._close_writer(writer)
        return lending is Lending.LEND

    async def take_back(self, *writers: DualWriter[D]) -> None:
        """Take back writers that were lent, and close those whose ids were given up meanwhile.

        The others are free before the first close, which takes time and may be interrupted.
        """
        async with AsyncExitStack() as stack:
            for writer in writers:
                with self._lock:
                    leased = self._find(writer)
                    if leased is not None:
                        leased.is_lent = False
                        self._set_free(writer)
                if leased is None:
                    stack.push_async_callback(self._close_writer, writer)

    def note_failure(self, writer: DualWriter[D], exc: Exception) -> None:
        """Give up an id that could not be recovered if another one serves better."""
        with self._lock:
            leased = self._find(writer)
        if leased is None:
            return
        if isinstance(exc, LeaseLost):
            self._give_up(leased.id, str(exc))
        elif isinstance(exc, HeuristicMixed | RecoveryHalted):
            self._note_unrecovered(leased.id, exc)
            self._give_up(leased.id, "its sides contradict each other")

    def _find(self, writer: DualWriter[D]) -> AsyncLeasedId[D] | None:
        return next((each for each in self._held.values() if each.writer is writer), None)

    def _give_up(self, transactional_id: str, reason: str) -> AsyncLeasedId[D] | None:
        """Use an id no more, and return it if it was held. Its lease is left to expire."""
        with self._lock:
            leased = self._held.pop(transactional_id, None)
        if leased is not None:
            _log.warning(
                "the pool %r gives up %r and takes another id: %s", self._base, transactional_id, reason
            )
            self._steps.emit(WriteEvent.LEASE_LOST)
            self._wake.set()
        return leased

    def _note_unrecovered(self, transactional_id: str, exc: Exception) -> None:
        is_contradiction = isinstance(exc, HeuristicMixed | RecoveryHalted)
        now_ms = self._clock.monotonic_ms()
        self._attempts.note_failure(transactional_id, now_ms, is_contradiction=is_contradiction)
        if is_contradiction:
            log_contradiction(transactional_id, exc)
        else:
            _log.warning(
                "%r, whose lease has expired, could not be recovered: %s; it is tried again later",
                transactional_id,
                describe_error(exc),
            )

    # ---- the heartbeat

    async def _beat(self) -> None:
        """Renew the leases until the pool is closed, and start the upkeep."""
        is_failed = False
        while True:
            await wait_event_async(self._wake, self._lease.delay_ms(failed=is_failed) / 1000)
            self._wake.clear()
            if self._is_closed or self._owning_process.is_forked_child:
                break
            is_failed = not await self.renew()
            if not self._is_upkeep_running:
                # Not told by `_upkeep`: a thread may have ended before it is assigned here.
                self._is_upkeep_running = True
                self._upkeep = start_background_async(f"tallystick-upkeep-{self._base}", self._run_upkeep)
        _release_thread(self._store)

    async def renew(self) -> bool:
        """Renew the leases; return False if the database was not reached."""
        with self._lock:
            ids = [*self._held, *self._recovering_ids]
        sent_ms = self._clock.monotonic_ms()
        try:
            renewed_ids = await self._steps.run(
                "renew leases",
                self._base,
                self._store.renew_leases,
                ids,
                self._holder,
                self._lease.duration_ms,
            )
        except Exception as exc:  # of the database's driver
            _log.warning("the leases of %r were not renewed: %s", self._base, describe_error(exc))
            return False
        for each in find_lost(ids, renewed_ids):
            lost = self._give_up(each, "its lease has expired, and another process has taken it over")
            if lost is not None and not lost.is_lent:
                self._lost_writers.append(lost.writer)
        with self._lock:
            for leased in [self._held[each] for each in ids if each in self._held]:
                leased.usable_until_ms = sent_ms + self._lease.duration_ms
                if leased.is_parked:
                    leased.is_parked = False
                    self._set_free(leased.writer)
        return True

    # ---- upkeep, in parallel with the heartbeat

    async def _run_upkeep(self) -> None:
        try:
            await self.keep_up()
        except Exception as exc:  # the next heartbeat starts it again
            _log.warning("the leases of %r: %s", self._base, describe_error(exc))
        finally:
            try:
                await self._close_lost()
                if self._is_closed:
                    await self._close_held()
                _release_thread(self._store)
            finally:
                self._is_upkeep_running = False

    async def keep_up(self) -> None:
        """Acquire ids in place of those that were given up, and recover those whose holder is gone."""
        if not self._is_filled:
            return
        async with self._fill_lock:
            try:
                await self._fill()
            finally:  # its borrower recovers what could not be
                for leased in list(self._held.values()):
                    await self._set_lendable(leased)
        leases = await self._steps.run("read leases", self._base, self._store.read_leases, self._base)
        for row in find_expired(leases, self._select_barred_ids()):
            if self._is_closed:
                return
            if await self._take(row, row):
                await self._recover_expired(row)

    async def _recover_expired(self, row: LeaseRow) -> None:
        """Recover an id that was taken over and give it back; after a failure let the lease expire."""
        _log.info(
            "the lease of %r, held by %s, has expired: it is recovered", row.transactional_id, row.holder_info
        )
        self._steps.emit(WriteEvent.LEASE_EXPIRED)
        with self._lock:
            self._recovering_ids.add(row.transactional_id)
        writer = self._create_writer(AsyncLeasedStore(self._store, self._holder), row.transactional_id)
        try:
            _log.info("recovered for a process that is gone: %s", await writer.recover())
            await writer.close()
            await self._release(row.transactional_id)
            self._attempts.forget(row.transactional_id)
        except LeaseLost as exc:
            _log.info("%s", exc)
        except Exception as exc:  # of the database's driver, too
            self._note_unrecovered(row.transactional_id, exc)
        finally:
            with self._lock:
                self._recovering_ids.discard(row.transactional_id)
            await writer.close()

    async def _release(self, transactional_id: str) -> None:
        await self._steps.run(
            "release lease", transactional_id, self._store.release_lease, transactional_id, self._holder
        )

    # ---- the end

    async def close(self) -> Sequence[HeuristicMixed | WriteInDoubt]:
        """Close the writers, and give back the ids that are finished. A forked child gives nothing back.

        Returns: how the Kafka transaction has failed in transactions whose blocks had ended before.
        """
        self._is_closed = True
        if self._owning_process.is_forked_child:
            for leased in self._held.values():
                await leased.writer.close()
            return ()
        self._wake.set()
        for driver in (self._heartbeat, self._upkeep):
            if driver is not None:
                await join_within_async(driver, CLOSE_WAIT_S)
        self._heartbeat = None
        await self._close_lost()
        await self._close_held()
        failures, self._close_failures = self._close_failures, []
        return failures

    async def _close_lost(self) -> None:
        while True:
            with self._lock:
                writer = self._lost_writers.pop() if self._lost_writers else None
            if writer is None:
                return
            await self._close_writer(writer)

    async def _close_held(self) -> None:
        while True:
            with self._lock:
                leased = self._held.popitem()[1] if self._held else None
            if leased is None:
                return
            await self._close_leased(leased)

    async def _close_leased(self, leased: AsyncLeasedId[D]) -> None:
        giving_back = assess_giving_back(is_ready=leased.writer.ready, is_busy=leased.is_lent)
        try:
            if giving_back is GivingBack.RECOVER:
                _log.info("recovered before its lease is given back: %s", await leased.writer.recover())
            await leased.writer.close()
            if giving_back is not GivingBack.EXPIRE:
                await self._release(leased.id)
        except Exception as exc:  # of the database or the cluster: another process recovers the id
            if isinstance(exc, HeuristicMixed | WriteInDoubt) and giving_back is not GivingBack.RECOVER:
                self._close_failures.append(exc)  # by the close: of the last block, which has not raised it
            _log.warning("%r is left until its lease expires: %s", leased.id, describe_error(exc))
            await self._close_writer(leased.writer)

    async def _close_writer(self, writer: DualWriter[D]) -> None:
        try:
            await writer.close()
        except Exception as exc:  # its id is recovered by the next holder
            _log.warning("%r did not close: %s", writer, describe_error(exc))


def _release_thread(store: object) -> None:
    """Release what a store keeps for each thread, if it does."""
    release = getattr(store, "release_thread", None)
    if release is not None:
        release()


def _require_leases(store: AsyncStore[D]) -> AsyncLeaseStore[D]:
    """Return the store. Raises: NotSupported if it keeps no leases."""
    if not hasattr(store, "claim_leased"):
        name = type(store).__name__
        raise NotSupported(
            "lease", f"leases in {name}: give each process a transactional.id of its own, without `lease`"
        )
    return store  # type: ignore[return-value]


class AsyncLeasedStore(Generic[D]):
    """The store of one pool's leased ids."""

    def __init__(self, store: AsyncLeaseStore[D], holder: str) -> None:
        """Wrap a store.

        Args:
            holder: token of the pool.
        """
        self.wrapped_store = store
        self._holder = holder
        self.database_system = get_database_system(store)

    async def create(self) -> None:
        await self.wrapped_store.create()

    async def claim(self, transactional_id: str) -> StoredState:
        """Claim an id whose lease the pool holds. Raises: LeaseLost."""
        return await self.wrapped_store.claim_leased(transactional_id, self._holder)

    async def begin(self) -> D:
        return await self.wrapped_store.begin()

    async def begin_briefly(self) -> D:
        begin: Callable[[], Awaitable[D]] = getattr(
            self.wrapped_store, "begin_briefly", self.wrapped_store.begin
        )
        return await begin()

    async def read_state(self, transactional_id: str) -> StoredState | None:
        return await self.wrapped_store.read_state(transactional_id)

    async def transactional_ids(self) -> Iterable[str]:
        return await self.wrapped_store.transactional_ids()

    async def close(self) -> None:
        """Do nothing: the caller owns the store."""
