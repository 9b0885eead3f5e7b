"""Pool of producer ids, allocated ahead because a decision cannot wait for the disk."""

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Iterator, Sequence
from typing import Final

from tallystick.broker.coordinator.runtime import Pending, answer_all
from tallystick.broker.txn.machine.commands import Answer, Command
from tallystick.kernel.codes import ErrorCode
from tallystick.kernel.errors import Reject
from tallystick.kernel.ids import INT64_MAX, ProducerId, TransactionalId

_log = logging.getLogger("tallystick.transactions")

SPARES: Final = 16
# Placeholder while the pool is empty. No block of ids has it; a Step that uses it waits for a real one.
NO_SPARE: Final = ProducerId(INT64_MAX)
NO_PRODUCER_ID: Final = Reject(ErrorCode.COORDINATOR_NOT_AVAILABLE, "no producer id could be had")

Group = Sequence[Pending[Command, Answer]]


class ProducerIdPool:
    """Spare producer ids, and the commands that wait for one. Lives on the loop.

    refilling  the task that takes more ids from the broker's block, while it runs
    """

    def __init__(
        self,
        new_producer_id: Callable[[], Awaitable[ProducerId]],
        decide: Callable[[TransactionalId, Group], None],
    ) -> None:
        """Create an empty pool.

        Args:
            decide: called with the commands that waited, in order, when there is an id for them.
        """
        self._new_producer_id = new_producer_id
        self._decide = decide
        self._spares: deque[ProducerId] = deque()
        self._waiting: deque[tuple[TransactionalId, Group]] = deque()
        self._is_closed = False
        self.refilling: asyncio.Task[None] | None = None

    @property
    def next_id(self) -> ProducerId:
        """Producer id that the next decision may take; NO_SPARE while there is none."""
        return self._spares[0] if self._spares else NO_SPARE

    def take(self) -> bool:
        """Use up `next_id`. Returns False if there is none, and the decision has to wait for one."""
        if len(self._spares) <= SPARES // 2:
            self.refill()
        if not self._spares:
            return False
        self._spares.popleft()
        return True

    def put_back(self, producer_id: ProducerId) -> None:
        """Return an unused id to the pool: a full disk must not consume ids."""
        self._spares.appendleft(producer_id)

    def wait(self, transactional_id: TransactionalId, group: Group) -> None:
        """Decide these commands again when there is an id."""
        self._waiting.append((transactional_id, group))

    def waiting(self) -> Iterator[Pending[Command, Answer]]:
        """Return every command that waits for an id."""
        return (pending for _, group in self._waiting for pending in group)

    def refill(self) -> None:
        """Start to allocate more ids, unless that is under way."""
        if self.refilling is None and not self._is_closed:
            self.refilling = asyncio.get_running_loop().create_task(self._refill())

    async def filled(self) -> bool:
        """Wait for the allocation under way, and return whether there is an id."""
        if not self._spares and self.refilling is not None:
            await self.refilling
        return bool(self._spares)

    async def stop(self) -> None:
        """Cancel the allocation of ids."""
        self.close()
        if self.refilling is not None:
            self.refilling.cancel()
            await asyncio.gather(self.refilling, return_exceptions=True)

    def close(self) -> None:
        """Start no further allocation."""
        self._is_closed = True

    async def _refill(self) -> None:
        try:
            while self._waiting or len(self._spares) < SPARES:
                self._spares.append(await self._new_producer_id())
                while self._waiting and self._spares:
                    self._decide(*self._waiting.popleft())
        except Exception as exc:
            _log.exception("no producer ids: %s", exc)
            for _, group in self._waiting:
                answer_all(group, NO_PRODUCER_ID)
            self._waiting.clear()
        self.refilling = None
