"""Histories of a test's choice."""

import asyncio

from tests.support.console_facts import NOW_MS, WRITER

from tallystick.console.lookup.history import HistorySource, IdHistory
from tallystick.kernel.ids import ProducerIdAndEpoch
from tallystick.protocol.transaction_history import TransactionTransition, TransitionKind


def make_transition(
    kind: TransitionKind,
    age_ms: int,
    name: str = "pay-1",
    *,
    producer: ProducerIdAndEpoch = WRITER,
    client: str | None = "shop",
) -> TransactionTransition:
    return TransactionTransition(
        transactional_id=name,
        kind=kind,
        at_ms=NOW_MS - age_ms,
        state="Ongoing",
        producer=producer,
        partition_count=1,
        client_id=client,
        address=client and f"/{client}",
    )


class Answers:
    """Answers from memory; `is_held` keeps every answer back until `release`."""

    def __init__(self, *transitions: TransactionTransition) -> None:
        self.history = IdHistory(source=HistorySource.BROKER, transitions=transitions)
        self.asked: list[str] = []
        self._released = asyncio.Event()
        self._released.set()

    def hold(self) -> None:
        """Keep every answer back from now on."""
        self._released = asyncio.Event()

    def release(self) -> None:
        """Give the answers that are kept back, and those to come."""
        self._released.set()

    async def read_history(self, transactional_id: str) -> IdHistory:
        self.asked.append(transactional_id)
        await self._released.wait()
        return self.history
