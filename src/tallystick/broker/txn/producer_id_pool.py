"""Pool of producer ids, allocated ahead because a decision cannot wait for the disk."""

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Iterator, Sequence
from typing import Final

from tallystick.broker.coordinator.runtime import PendingCommand, answer_all
from tallystick.broker.txn.machine.commands import TxnAnswer, TxnCommand
from tallystick.kernel.codes import ErrorCode
from tallystick.kernel.errors import Reject
from tallystick.kernel.ids import INT64_MAX, ProducerId, TransactionalId

_log = logging.getLogger("tallystick.transactions")

POOL_SIZE: Final = 16
# Placeholder while the pool is empty. No block of ids has it; a Step that uses it waits for a real one.
PLACEHOLDER_PRODUCER_ID: Final = ProducerId(INT64_MAX)
NO_PRODUCER_ID: Final = Reject(
    ErrorCode.COORDINATOR_NOT_AVAILABLE, "no producer id could be allocated; retry"
)

WaitingCommands = Sequence[PendingCommand[TxnCommand, TxnAnswer]]


class ProducerIdPool:
    """Spare producer ids, and the commands that wait for one. Lives on the loop.

    refill_task  the task that takes more ids from the broker's block, while it runs
    """

    def __init__(
        self,
        new_producer_id: Callable[[], Awaitable[ProducerId]],
        decide: Callable[[TransactionalId, WaitingCommands], None],
    ) -> None:
        """Create an empty pool.

        Args:
            decide: called with the commands that waited, in order, when there is an id for them.
        """
        self._allocate_producer_id = new_producer_id
        self._on_available = decide
        self._free_ids: deque[ProducerId] = deque()
        self._waiting_commands: deque[tuple[TransactionalId, WaitingCommands]] = deque()
        self._is_closed = False
        self.refill_task: asyncio.Task[None] | None = None

    @property
    def next_id(self) -> ProducerId:
        """Producer id that the next decision may take; PLACEHOLDER_PRODUCER_ID while there is none."""
        return self._free_ids[0] if self._free_ids else PLACEHOLDER_PRODUCER_ID

    def take(self) -> bool:
        """Use up `next_id`. Returns False if there is none, and the decision has to wait for one."""
        if len(self._free_ids) <= POOL_SIZE // 2:
            self.refill()
        if not self._free_ids:
            return False
        self._free_ids.popleft()
        return True

    def put_back(self, producer_id: ProducerId) -> None:
        """Return an unused id to the pool: a full disk must not consume ids."""
        self._free_ids.appendleft(producer_id)

    def add_waiting(self, transactional_id: TransactionalId, group: WaitingCommands) -> None:
        """Decide these commands again when there is an id."""
        self._waiting_commands.append((transactional_id, group))

    def iter_waiting(self) -> Iterator[PendingCommand[TxnCommand, TxnAnswer]]:
        """Return every command that waits for an id."""
        return (pending for _, group in self._waiting_commands for pending in group)

    def refill(self) -> None:
        """Start to allocate more ids, unless that is under way."""
        if self.refill_task is None and not self._is_closed:
            self.refill_task = asyncio.get_running_loop().create_task(self._refill())

    async def wait_for_refill(self) -> bool:
        """Wait for the allocation under way, and return whether there is an id."""
        if not self._free_ids and self.refill_task is not None:
            await self.refill_task
        return bool(self._free_ids)

    async def stop(self) -> None:
        """Cancel the allocation of ids."""
        self.close()
        if self.refill_task is not None:
            self.refill_task.cancel()
            await asyncio.gather(self.refill_task, return_exceptions=True)

    def close(self) -> None:
        """Start no further allocation."""
        self._is_closed = True

    async def _refill(self) -> None:
        try:
            while self._waiting_commands or len(self._free_ids) < POOL_SIZE:
                self._free_ids.append(await self._allocate_producer_id())
                while self._waiting_commands and self._free_ids:
                    self._on_available(*self._waiting_commands.popleft())
        except Exception as exc:
            _log.exception(
                "no producer ids could be allocated, so new producers are refused; check the metadata store:"
                " %s",
                exc,
            )
            for _, group in self._waiting_commands:
                answer_all(group, NO_PRODUCER_ID)
            self._waiting_commands.clear()
        self.refill_task = None
