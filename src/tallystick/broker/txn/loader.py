"""Loading of the transaction log, at a start and after a loss, and its comparison with the partitions."""

import asyncio
import logging
from collections import Counter, deque
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from typing import Any, Final

from tallystick.broker.coordinator.runtime import CoordinatorRuntime, PendingCommand
from tallystick.broker.txn.codec import decode_record, iter_known_records
from tallystick.broker.txn.history import TransactionHistory
from tallystick.broker.txn.machine.apply import TxnEntryTable, apply_event
from tallystick.broker.txn.machine.commands import TxnAnswer, TxnCommand
from tallystick.broker.txn.machine.model import TxnEntry
from tallystick.broker.txn.ports import StartComparison
from tallystick.kernel.errors import Reject
from tallystick.kernel.ids import TransactionalId
from tallystick.protocol import DecodeError
from tallystick.protocol.transaction_history import RecordedState, decode_recorded_state

_log = logging.getLogger("tallystick.transactions")

# About a millisecond of work each; in between, the loop serves other requests.
REPLAY_CHUNK_BYTES: Final = 128 * 1024
ENTRIES_PER_SLICE: Final = 64
# Records of a partition that are read once more, for the history of their ids.
RECORDS_TOLD_MAX: Final = 1_024
NO_TIMESTAMP: Final = -1


class TransactionLogLoader:
    """Loader that fills the entries from the log. Lives on the loop, owned by the transaction coordinator.

    A partition that no start has compared is compared when it is read back, before its ids are served.

    loading_task  the task of the start, while it runs
    """

    def __init__(
        self,
        runtime: CoordinatorRuntime[TransactionalId, TxnCommand, TxnAnswer],
        entries: TxnEntryTable,
        history: TransactionHistory,
        *,
        get_coordinator_epoch: Callable[[TransactionalId], int],
        send_markers: Callable[[TxnEntry], None],
        move: Callable[[TransactionalId], Coroutine[Any, Any, Reject | None]],
    ) -> None:
        """Create a loader that is not started.

        Args:
            get_coordinator_epoch: returns the coordinator epoch for an id's markers.
            send_markers: sends the markers of a decided transaction again.
            move: gives the id's client another producer id.
        """
        self._runtime = runtime
        self._entries = entries
        self._history = history
        self._send_markers = send_markers
        self._comparison: StartComparison | None = None
        self._uncompared_partitions: set[int] = set()
        self._comparing_loss_counts: dict[
            int, int
        ] = {}  # partition compared now -> how often it was lost before
        self._comparison_lock = asyncio.Lock()
        self._partition_count = 0
        self.loading_task: asyncio.Task[None] | None = None
        # Part of the LoadingCoordinator protocol, for the comparison.
        self.get_coordinator_epoch = get_coordinator_epoch
        self.replace_producer_id = move

    def start(self, partitions: int, comparison: StartComparison | None) -> None:
        """Begin to read, and to compare, even where the transaction log no longer exists."""
        self._partition_count = partitions
        self._comparison = comparison
        self._uncompared_partitions = set() if comparison is None else set(range(partitions))
        if partitions or comparison is not None:
            self.loading_task = asyncio.get_running_loop().create_task(self._load(range(partitions)))

    async def stop(self) -> None:
        """Cancel the reading."""
        if self.loading_task is not None:
            self.loading_task.cancel()
            await asyncio.gather(self.loading_task, return_exceptions=True)

    def is_lost(self, index: int) -> bool:
        """Return whether a partition is lost, and not just being compared after it was read back."""
        losses = self._runtime.reloader.loss_counts[index]
        return self._runtime.reloader.is_lost(index) and self._comparing_loss_counts.get(index) != losses

    async def _load(self, indexes: Sequence[int]) -> None:
        partitions = self._runtime.reloader
        async with self._comparison_lock:  # partitions read back meanwhile are compared after these
            for index in indexes:
                await partitions.load(index)
            await self._compare([index for index in indexes if not partitions.is_lost(index)])
            self.loading_task = None
        for entry in self._entries.list_by_partitions(set(indexes) - self._uncompared_partitions):
            self._send_markers(entry)

    async def _compare(self, indexes: Sequence[int]) -> None:
        """Compare these partitions with the data partitions. Order: none of their ids is served yet."""
        if self._comparison is None:
            return
        self._uncompared_partitions.difference_update(indexes)
        self._comparing_loss_counts = {index: self._runtime.reloader.loss_counts[index] for index in indexes}
        try:
            await self._comparison.repair(self, indexes, is_last=not self._uncompared_partitions)
        except Exception as exc:
            _log.exception(
                "the data partitions could not be compared with __transaction_state, so hanging transactions"
                " are not reported; use `tallystick transactions find-hanging`: %s",
                exc,
            )
        finally:
            self._comparing_loss_counts = {}
        if not self._uncompared_partitions:
            self._comparison = None

    async def load(self, index: int) -> None:
        """Apply the last record of every id; the entries become visible once all of them are decoded."""
        comparison = self._comparison if index in self._uncompared_partitions else None
        if comparison is not None:
            comparison.begin_partition(index)
        unknown_versions: Counter[int] = Counter()
        latest_values: dict[bytes, bytes | None] = {}
        last_records: deque[tuple[bytes, bytes | None]] = deque(maxlen=RECORDS_TOLD_MAX)
        async for chunk in self._runtime.read_log(index, REPLAY_CHUNK_BYTES):
            if comparison is not None:
                await comparison.read_chunk(index, chunk)
            records = list(iter_known_records(chunk, unknown_versions))
            latest_values.update(records)
            last_records.extend(records)
        entries: list[TxnEntry | None] = []
        for key, value in latest_values.items():
            entries.append(apply_event(None, decode_record(key, value)))
            if len(entries) % ENTRIES_PER_SLICE == 0:
                await asyncio.sleep(0)
        for entry in entries:
            if entry is not None:
                self._entries.put(entry.transactional_id, entry)
        await self._note_history(last_records)
        for version, number in unknown_versions.items():
            _log.warning(
                "%d records of __transaction_state have the unknown key version %d and were skipped; a newer"
                " version may have written them",
                number,
                version,
            )
        if comparison is not None and self._runtime.reloader.is_lost(index):  # the start could not read it
            async with self._comparison_lock:
                await self._compare((index,))

    async def _note_history(self, records: Iterable[tuple[bytes, bytes | None]]) -> None:
        """Record what the last records tell; who asked is not in the log, nor when an id was removed."""
        states: dict[TransactionalId, list[RecordedState]] = {}
        for number, (key, value) in enumerate(records):
            try:
                recorded_state = decode_recorded_state(key, value, NO_TIMESTAMP)
            except DecodeError:
                recorded_state = None  # nothing rests on it: the last record of each id was decoded already
            if recorded_state is not None and value is None:
                states.pop(TransactionalId(recorded_state[0]), None)
            elif recorded_state is not None:
                states.setdefault(TransactionalId(recorded_state[0]), []).append(recorded_state[1])
            if number % ENTRIES_PER_SLICE == 0:
                await asyncio.sleep(0)
        for transactional_id, some in states.items():
            self._history.note_recorded(transactional_id, some)

    def on_loaded(self, index: int) -> None:
        """Send the markers of decided transactions again; during a start, once all is loaded and compared."""
        if self.loading_task is None:
            for entry in self._entries.list_by_partitions((index,)):
                self._send_markers(entry)

    # ---- LoadingCoordinator: the coordinator as seen by the comparison, while clients wait

    def list_entries(self) -> Mapping[TransactionalId, TxnEntry]:
        """Return every entry, as it is now."""
        return self._entries.by_id

    def list_entries_to_compare(self) -> Iterable[TxnEntry]:
        """Return the entries whose partition of the log is compared now."""
        if len(self._comparing_loss_counts) == self._partition_count:
            return self._entries.by_id.values()
        return self._entries.list_by_partitions(self._comparing_loss_counts)

    def submit_while_loading(
        self, transactional_id: TransactionalId, command: TxnCommand
    ) -> "asyncio.Future[TxnAnswer | Reject]":
        """Run a command as if loading were over."""
        pending: PendingCommand[TxnCommand, TxnAnswer] = PendingCommand(
            command, asyncio.get_running_loop().create_future()
        )
        self._runtime.submit_unpaused(transactional_id, pending)
        return pending.future
