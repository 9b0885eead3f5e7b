"""What a terminal is told beyond its snapshots: histories and records of a test's choice."""

import asyncio
from collections.abc import Mapping
from typing import Final

from tests.support.console_facts import NOW_MS, WRITER

from tallystick.console.lookup.history import HistorySource, IdHistory
from tallystick.console.lookup.record_page import BrowsedRecord, RecordPage, RecordVerdict, clip
from tallystick.console.lookup.record_query import RECORDS_MAX, RecordQuery
from tallystick.kernel.ids import ProducerIdAndEpoch, TopicPartition
from tallystick.protocol.transaction_history import TransactionTransition, TransitionKind

VERDICTS: Final = tuple(RecordVerdict)


def make_record(
    offset: int,
    verdict: RecordVerdict = RecordVerdict.COMMITTED,
    *,
    key: bytes | None = b"key",
    value: bytes | None = b"value",
    headers: Mapping[str, bytes] | None = None,
    producer: ProducerIdAndEpoch = WRITER,
    is_held_back: bool = False,
) -> BrowsedRecord:
    is_control = verdict is RecordVerdict.CONTROL
    return BrowsedRecord(
        offset=offset,
        timestamp_ms=NOW_MS - 1_000,
        is_append_time=False,
        verdict=verdict,
        is_held_back=is_held_back,
        marker="COMMIT" if is_control else "",
        coordinator_epoch=7 if is_control else None,
        producer=None if verdict is RecordVerdict.PLAIN else producer,
        key=None if is_control else clip(key),
        value=None if is_control else clip(value),
        headers=tuple((name, clip(each)) for name, each in (headers or {}).items()),
        header_count=len(headers or {}),
    )


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

    def __init__(self, *transitions: TransactionTransition, records: tuple[BrowsedRecord, ...] = ()) -> None:
        self.history = IdHistory(source=HistorySource.BROKER, transitions=transitions)
        self.records = records
        self.asked: list[str | RecordQuery] = []
        self.failure = ""
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

    async def browse_records(self, query: RecordQuery) -> RecordPage:
        self.asked.append(query)
        await self._released.wait()
        end = 1 + max((each.offset for each in self.records), default=-1)
        first = max(0, end - RECORDS_MAX) if query.offset is None else query.offset
        some = tuple(each for each in self.records if each.offset >= first)[:RECORDS_MAX]
        return RecordPage(
            partition=query.partition,
            first=first,
            next_offset=some[-1].offset + 1 if some else end,
            start=0,
            last_stable=next((each.offset for each in self.records if each.is_held_back), end),
            end=end,
            records=some,
            failure=self.failure,
        )

    async def download(self, at: TopicPartition, offset: int, *, is_key: bool) -> bytes | None:
        return None
