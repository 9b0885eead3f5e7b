"""Loading of the transaction log, at a start and after a loss, and its comparison with the partitions."""

import asyncio
import gc
import logging
from collections import Counter
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from typing import Any, Final

from tallystick.broker.coordinator.runtime import CoordinatorRuntime, Pending
from tallystick.broker.txn.codec import decode_record, iter_stored
from tallystick.broker.txn.entries import TxnEntries
from tallystick.broker.txn.machine.apply import apply
from tallystick.broker.txn.machine.commands import Answer, Command
from tallystick.broker.txn.machine.model import TxnEntry
from tallystick.broker.txn.ports import Comparison
from tallystick.kernel.errors import Reject
from tallystick.kernel.ids import TransactionalId

_log = logging.getLogger("tallystick.transactions")

# About a millisecond of work each; in between, the loop serves other requests.
REPLAY_CHUNK_BYTES: Final = 128 * 1024
REPLAYED_PER_SLICE: Final = 64


class TransactionLogLoader:
    """Loader that fills the entries from the log. Lives on the loop, owned by the transaction coordinator.

    A partition that no start has compared is compared when it is read back, before its ids are served.

    loading  the task of the start, while it runs
    """

    def __init__(
        self,
        runtime: CoordinatorRuntime[TransactionalId, Command, Answer],
        entries: TxnEntries,
        *,
        coordinator_epoch: Callable[[TransactionalId], int],
        send_markers: Callable[[TxnEntry], None],
        move: Callable[[TransactionalId], Coroutine[Any, Any, Reject | None]],
    ) -> None:
        """Create a loader that is not started.

        Args:
            coordinator_epoch: returns the coordinator epoch for an id's markers.
            send_markers: sends the markers of a decided transaction again.
            move: gives the id's client another producer id.
        """
        self._runtime = runtime
        self._entries = entries
        self._send_markers = send_markers
        self._comparison: Comparison | None = None
        self._uncompared: set[int] = set()
        self._comparing: dict[int, int] = {}  # partition compared now -> how often it was lost before
        self._compares = asyncio.Lock()
        self._partitions = 0
        self.loading: asyncio.Task[None] | None = None
        # Part of the LoadedIds protocol, for the comparison.
        self.coordinator_epoch = coordinator_epoch
        self.move_loading = move

    def start(self, partitions: int, comparison: Comparison | None) -> None:
        """Begin to read, and to compare, even where the transaction log no longer exists."""
        self._partitions = partitions
        self._comparison = comparison
        self._uncompared = set() if comparison is None else set(range(partitions))
        if partitions or comparison is not None:
            self.loading = asyncio.get_running_loop().create_task(self._load(range(partitions)))

    async def stop(self) -> None:
        """Cancel the reading."""
        if self.loading is not None:
            self.loading.cancel()
            await asyncio.gather(self.loading, return_exceptions=True)

    def is_lost(self, index: int) -> bool:
        """Return whether a partition is lost, and not just being compared after it was read back."""
        losses = self._runtime.partitions.losses[index]
        return self._runtime.partitions.is_lost(index) and self._comparing.get(index) != losses

    async def _load(self, indexes: Sequence[int]) -> None:
        partitions = self._runtime.partitions
        async with self._compares:  # partitions read back meanwhile are compared after these
            collects = gc.isenabled()
            gc.disable()  # loading creates many objects and no garbage; collections would only cost time
            try:
                for index in indexes:
                    await partitions.read(index)
            finally:
                if collects:
                    gc.enable()
            await self._compare([index for index in indexes if not partitions.is_lost(index)])
            self.loading = None
        for entry in self._entries.of_partitions(set(indexes) - self._uncompared):
            self._send_markers(entry)

    async def _compare(self, indexes: Sequence[int]) -> None:
        """Compare these partitions with the data partitions. Order: none of their ids is served yet."""
        if self._comparison is None:
            return
        self._uncompared.difference_update(indexes)
        self._comparing = {index: self._runtime.partitions.losses[index] for index in indexes}
        try:
            await self._comparison.settle(self, indexes, is_last=not self._uncompared)
        except Exception as exc:
            _log.exception("partitions cannot be compared with __transaction_state: %s", exc)
        finally:
            self._comparing = {}
        if not self._uncompared:
            self._comparison = None

    async def read_back(self, index: int) -> None:
        """Apply the last record of every id; the entries become visible once all of them are decoded."""
        comparison = self._comparison if index in self._uncompared else None
        if comparison is not None:
            comparison.begin(index)
        skipped: Counter[int] = Counter()
        stored: dict[bytes, bytes | None] = {}
        async for piece in self._runtime.replay(index, REPLAY_CHUNK_BYTES):
            if comparison is not None:
                await comparison.read(index, piece)
            stored.update(iter_stored(piece, skipped))
        entries: list[TxnEntry | None] = []
        for key, value in stored.items():
            entries.append(apply(None, decode_record(key, value)))
            if len(entries) % REPLAYED_PER_SLICE == 0:
                await asyncio.sleep(0)
        for entry in entries:
            if entry is not None:
                self._entries.put(entry.transactional_id, entry)
        for version, number in skipped.items():
            _log.warning("%d records of __transaction_state have the unknown key version %d", number, version)
        if comparison is not None and self._runtime.partitions.is_lost(index):  # the start could not read it
            async with self._compares:
                await self._compare((index,))

    def resume(self, index: int) -> None:
        """Send the markers of decided transactions again; during a start, once all is loaded and compared."""
        if self.loading is None:
            for entry in self._entries.of_partitions((index,)):
                self._send_markers(entry)

    # ---- LoadedIds: the coordinator as seen by the comparison, while clients are told to wait

    def loaded(self) -> Mapping[TransactionalId, TxnEntry]:
        """Return every entry, as it is now."""
        return self._entries.by_id

    def to_compare(self) -> Iterable[TxnEntry]:
        """Return the entries whose partition of the log is compared now."""
        if len(self._comparing) == self._partitions:
            return self._entries.by_id.values()
        return self._entries.of_partitions(self._comparing)

    def run_loading(
        self, transactional_id: TransactionalId, command: Command
    ) -> "asyncio.Future[Answer | Reject]":
        """Run a command as if loading were over."""
        pending: Pending[Command, Answer] = Pending(command, asyncio.get_running_loop().create_future())
        self._runtime.admit(transactional_id, pending)
        return pending.future
