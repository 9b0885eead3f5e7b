"""`tallystick.aio.Consumer`: reading, alone or in a group, on the caller's own loop."""

import asyncio
import logging
import re
from collections.abc import AsyncIterator, Iterable, Mapping
from types import TracebackType
from typing import TYPE_CHECKING, Final, Self

from tallystick.client.config import ConsumerConfig
from tallystick.client.consumer.decode import ConsumerRecord
from tallystick.client.consumer.engine import ConsumerEngine, Offsets, RebalanceListener
from tallystick.client.offsets import GroupMetadata, OffsetAndMetadata, OffsetAndTimestamp
from tallystick.kernel.ids import TopicPartition

if TYPE_CHECKING:
    from pyarrow import RecordBatch

_log = logging.getLogger("tallystick.consumer")

CLOSE_S: Final = 30.0
# An endless `async for` looks up this often whether it is to end.
_POLL_S: Final = 1.0


class Consumer:
    """Reads records. Made, used and closed on one loop; one task at a time, but for `wakeup`.

    Its methods are those of `tallystick.Consumer`, where they are described; those that wait are awaited.
    """

    def __init__(self, config: Mapping[str, object]) -> None:
        """Connects to nothing yet. Raises: BadConfig with all problems."""
        self.config = ConsumerConfig.parse(config)
        for note in self.config.notes:
            _log.warning("%s", note)
        self._engine = ConsumerEngine(self.config)

    # ------------------------------------------------------------------------ what to read

    def subscribe(
        self, topics: Iterable[str] | re.Pattern[str], listener: RebalanceListener | None = None
    ) -> None:
        """Share these topics with the group."""
        self._engine.subscribe(topics, listener)

    def assign(self, partitions: Iterable[TopicPartition]) -> None:
        """Read exactly these, without a group's help."""
        self._engine.assign(partitions)

    async def unsubscribe(self) -> None:
        """Read nothing, and leave the group."""
        await self._engine.unsubscribe()

    @property
    def assignment(self) -> frozenset[TopicPartition]:
        """The partitions that are read."""
        return self._engine.assignment

    @property
    def subscription(self) -> frozenset[str]:
        """The topics that are shared with the group."""
        return self._engine.subscription

    @property
    def paused(self) -> frozenset[TopicPartition]:
        """The partitions of which nothing is returned for now."""
        return self._engine.paused

    def pause(self, partitions: Iterable[TopicPartition]) -> None:
        """Return no records of these until `resume`."""
        self._engine.pause(partitions)

    def resume(self, partitions: Iterable[TopicPartition]) -> None:
        """Return records of these again."""
        self._engine.resume(partitions)

    # --------------------------------------------------------------------------- positions

    def seek(self, partition: TopicPartition, offset: int, leader_epoch: int | None = None) -> None:
        """The next record is that at `offset`, or the first one after it."""
        self._engine.seek(partition, offset, leader_epoch)

    def go_back(self, partition: TopicPartition, offset: int) -> None:
        """Return again what begins at `offset`; what was returned before it may still be committed."""
        self._engine.go_back(partition, offset)

    def rewind(self) -> None:
        """From the next `poll` on, return again what was returned and never committed."""
        self._engine.rewind()

    def note_committed(self, offsets: Offsets) -> None:
        """A transaction has committed these for the group: `rewind` does not go behind them."""
        self._engine.note_committed(offsets)

    def seek_to_beginning(self, partitions: Iterable[TopicPartition] = ()) -> None:
        """To the first record there is; of all assigned partitions where none are given."""
        self._engine.seek_to_beginning(partitions)

    def seek_to_end(self, partitions: Iterable[TopicPartition] = ()) -> None:
        """Behind the last record."""
        self._engine.seek_to_end(partitions)

    def pin(self, partitions: Iterable[TopicPartition]) -> None:
        """Take a position of these outside the log for an error, whatever `auto.offset.reset` says."""
        self._engine.pin(partitions)

    def read_committed(self) -> None:
        """Read committed records only from now on."""
        self._engine.read_committed()

    async def position(self, partition: TopicPartition, timeout_s: float | None = None) -> int:
        """The offset of the next record that `poll` would return."""
        return await self._engine.position(partition, ms(timeout_s))

    async def beginning_offsets(
        self, partitions: Iterable[TopicPartition], timeout_s: float | None = None
    ) -> dict[TopicPartition, int]:
        """Where each log begins."""
        return await self._engine.beginning_offsets(partitions, ms(timeout_s))

    async def end_offsets(
        self, partitions: Iterable[TopicPartition], timeout_s: float | None = None
    ) -> dict[TopicPartition, int]:
        """Where each log ends for this reader."""
        return await self._engine.end_offsets(partitions, ms(timeout_s))

    async def offsets_for_times(
        self, times_ms: Mapping[TopicPartition, int], timeout_s: float | None = None
    ) -> dict[TopicPartition, OffsetAndTimestamp | None]:
        """The first record of each time or later."""
        return await self._engine.offsets_for_times(times_ms, ms(timeout_s))

    # ------------------------------------------------------------------------------ reading

    async def poll(self, timeout_s: float, most: int | None = None) -> list[ConsumerRecord]:
        """Records, as soon as there are any; none when `timeout_s` has passed."""
        return await self._engine.poll(int(timeout_s * 1000), most)

    async def poll_arrow(self, timeout_s: float, most: int | None = None) -> "RecordBatch":
        """`poll`, as one Arrow batch; it may have no rows."""
        return await self._engine.poll_arrow(int(timeout_s * 1000), most)

    async def __aiter__(self) -> AsyncIterator[ConsumerRecord]:
        """Records one by one, for ever."""
        while True:
            for record in await self._engine.poll(int(_POLL_S * 1000)):
                yield record

    def wakeup(self) -> None:
        """End the wait of `poll`, or of the next one, with WokenUp."""
        self._engine.wakeup()

    # ------------------------------------------------------------------------------ commits

    async def commit(self, offsets: Offsets | None = None, timeout_s: float | None = None) -> None:
        """Commit these offsets for the group; all positions where none are given."""
        await self._engine.commit(offsets, ms(timeout_s))

    def commit_soon(self, offsets: Offsets | None = None) -> "asyncio.Task[None]":
        """`commit`, under way when this returns."""
        return self._engine.commit_soon(offsets)

    async def committed(
        self, partitions: Iterable[TopicPartition], timeout_s: float | None = None
    ) -> dict[TopicPartition, OffsetAndMetadata | None]:
        """What the group has committed."""
        return await self._engine.committed(partitions, ms(timeout_s))

    def group_metadata(self) -> GroupMetadata:
        """For `Producer.send_offsets_to_transaction` (KIP-447)."""
        return self._engine.group_metadata()

    # ------------------------------------------------------------------------- the whole of it

    def metrics(self) -> dict[str, float]:
        """Measurements by Kafka's names."""
        return self._engine.metrics()

    async def close(self, timeout_s: float = CLOSE_S) -> None:
        """Commit if that is automatic, leave the group, end the connections."""
        await self._engine.close(int(timeout_s * 1000))

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()


def ms(timeout_s: float | None) -> int | None:
    """Seconds as milliseconds; None, the setting's own limit, stays None."""
    return None if timeout_s is None else int(timeout_s * 1000)
