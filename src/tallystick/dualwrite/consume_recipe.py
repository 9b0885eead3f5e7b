"""Recipe for consuming into a database: rows and the offsets they came from, in one transaction.

KIP-939's other recipe: "the database tracks the consumption state atomically with the data update". The
offset in the database is authoritative. After every assignment, failure or unknown outcome the consumer seeks
to it. A transaction may move it only if it is still where this reader began [DW-4], so a reader that has lost
a partition without knowing it cannot write.

Only committed records are read: aborted records must leave no rows. `auto.offset.reset` never moves a
partition that has an offset in the database: if the log does not contain that offset, records are lost, which
is an error, or is skipped on request [DW-25].
"""

import logging
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Generic, Literal, Protocol, TypeVar

from tallystick.client.consumer.decode import ConsumerRecord
from tallystick.client.consumer.errors import PositionUnknown
from tallystick.client.offsets import GroupMetadata
from tallystick.dualwrite.errors import CommitUnknown, DataLoss, NotCommitted
from tallystick.dualwrite.ports import MaybeAwaitable, StoreTransactionPort
from tallystick.dualwrite.recipes import Recipe, run_step
from tallystick.dualwrite.stores.base import OffsetAdvance
from tallystick.kernel.errors import InDoubt
from tallystick.kernel.ids import TopicPartition
from tallystick.kernel.value import frozen

_log = logging.getLogger("tallystick.dualwrite")


class ConsumerPort(Protocol):
    """The methods used of `tallystick.Consumer` and `tallystick.aio.Consumer`."""

    @property
    def assignment(self) -> frozenset[TopicPartition]: ...
    def poll(self, timeout_s: float, most: int | None = None) -> MaybeAwaitable[list[ConsumerRecord]]: ...
    def position(self, partition: TopicPartition) -> MaybeAwaitable[int]: ...
    def seek(self, partition: TopicPartition, offset: int) -> None: ...
    def pin(self, partitions: Iterable[TopicPartition]) -> None: ...
    def read_committed(self) -> None: ...
    def beginning_offsets(
        self, partitions: Iterable[TopicPartition]
    ) -> MaybeAwaitable[dict[TopicPartition, int]]: ...
    def end_offsets(
        self, partitions: Iterable[TopicPartition]
    ) -> MaybeAwaitable[dict[TopicPartition, int]]: ...
    def group_metadata(self) -> GroupMetadata: ...


class OffsetTransactionPort(StoreTransactionPort, Protocol):
    """The methods used of `OffsetTransaction` and `AsyncOffsetTransaction`."""

    def move_offsets(
        self, group: str, moved: Mapping[TopicPartition, OffsetAdvance]
    ) -> MaybeAwaitable[None]: ...


OnDataLoss = Literal["fail", "skip"]
M = TypeVar("M", bound=OffsetTransactionPort)
M_co = TypeVar("M_co", bound=OffsetTransactionPort, covariant=True)


class OffsetStorePort(Protocol[M_co]):
    """The methods used of `OffsetStore` and `AsyncOffsetStore`."""

    def begin(self) -> MaybeAwaitable[M_co]: ...
    def read_offsets(self, group: str) -> MaybeAwaitable[Mapping[TopicPartition, int]]: ...


@frozen
class PolledBatch:
    """The result of one poll: records, and how far they move each partition."""

    records: tuple[ConsumerRecord, ...]
    offset_moves: Mapping[TopicPartition, OffsetAdvance]


class ConsumeRecipe(Generic[M]):
    """A consumer's positions together with the database's offsets. Its methods are recipes."""

    def __init__(
        self,
        store: OffsetStorePort[M],
        consumer: ConsumerPort,
        group: str | None,
        on_data_loss: OnDataLoss = "fail",
    ) -> None:
        if on_data_loss not in ("fail", "skip"):
            raise ValueError(f'on_data_loss is "fail" or "skip", not {on_data_loss!r}')
        consumer.read_committed()
        self._skips_data_loss = on_data_loss == "skip"
        self.group = group or consumer.group_metadata().group_id
        self._store = store
        self._consumer = consumer
        self._stored_offsets: dict[TopicPartition, int] = {}
        self._is_unsynced = True

    def mark_unsynced(self) -> None:
        """Mark the consumer's assignment or positions as possibly different from the database's offsets."""
        self._is_unsynced = True

    def poll(self, timeout_s: float, most: int | None) -> Recipe[PolledBatch]:
        """Return records that follow the database's offsets; none if `timeout_s` has passed."""
        poll = partial(self._consumer.poll, timeout_s, most)
        records = yield from self._poll_once(poll)
        if self._is_unsynced:  # an assignment may have come with these records: their offsets may be wrong
            yield from self._seek_to_stored(records)
            records = yield from self._poll_once(poll)
            if self._is_unsynced:
                yield from self._seek_to_stored(records)
                records = []
        moved = {}
        try:
            for at in _first_offsets(records):
                after: int = yield from run_step("position", str(at), partial(self._consumer.position, at))
                moved[at] = OffsetAdvance(before=self._stored_offsets.get(at), after=after)
        except BaseException:
            self._rewind_to(records)
            raise
        return PolledBatch(tuple(records), moved)

    def _poll_once(
        self, poll: Callable[[], MaybeAwaitable[list[ConsumerRecord]]]
    ) -> Recipe[list[ConsumerRecord]]:
        """Poll once. Raises: DataLoss if the log does not contain the database's offset."""
        try:
            records: list[ConsumerRecord] = yield from run_step("poll", self.group, poll)
        except PositionUnknown as exc:
            at = TopicPartition(exc.topic, exc.partition)
            if self._is_unsynced:  # the position may not come from the database
                yield from self._seek_to_stored(())
                if at in self._stored_offsets:
                    return []
            if at not in self._stored_offsets:
                raise
            yield from self._handle_data_loss(at, exc)
            return []
        return records

    def _handle_data_loss(self, at: TopicPartition, why: PositionUnknown) -> Recipe[None]:
        """Raise DataLoss, or seek to where the log continues, never before the database's offset."""
        begins = yield from run_step("position", str(at), partial(self._consumer.beginning_offsets, [at]))
        ends = yield from run_step("position", str(at), partial(self._consumer.end_offsets, [at]))
        loss = DataLoss(self.group, str(at), self._stored_offsets[at], begins[at], ends[at])
        if not self._skips_data_loss:
            raise loss from why
        place = begins[at] if loss.offset < begins[at] else ends[at]
        _log.warning("%s; going on at %d", loss, place)
        self._consumer.seek(at, place)

    def _seek_to_stored(self, records: Iterable[ConsumerRecord]) -> Recipe[None]:
        """Seek to the database's offsets; partitions without one go back to the start of `records`."""
        self._is_unsynced = False
        try:
            kept = yield from run_step(
                "read offsets", self.group, partial(self._store.read_offsets, self.group)
            )
        except BaseException:
            self._rewind_to(records)
            raise
        assigned = self._consumer.assignment
        self._stored_offsets = {at: offset for at, offset in kept.items() if at in assigned}
        self._consumer.pin(self._stored_offsets)
        self._seek_assigned({**_first_offsets(records), **self._stored_offsets})

    def _rewind_to(self, records: Iterable[ConsumerRecord]) -> None:
        """Seek back so that `records` are returned again, unless the database already has them."""
        self._is_unsynced = True
        self._seek_assigned(_first_offsets(records))

    def _seek_assigned(self, places: Mapping[TopicPartition, int]) -> None:
        assigned = self._consumer.assignment
        for at, offset in places.items():
            if at in assigned:
                self._consumer.seek(at, offset)

    def begin(self, took: PolledBatch) -> Recipe[M]:
        try:
            return (yield from run_step("begin database", self.group, self._store.begin))
        except BaseException:
            self._rewind_to(took.records)
            raise

    def commit(self, txn: M, took: PolledBatch) -> Recipe[None]:
        """Commit rows and offsets. Raises: Fenced if another reader moved a partition; InDoubt."""
        self._is_unsynced = True
        try:
            if took.offset_moves:
                move = partial(txn.move_offsets, self.group, took.offset_moves)
                yield from run_step("move offsets", self.group, move)
            yield from run_step("commit database", self.group, txn.commit)
        except BaseException as exc:
            yield from self.rollback(txn, took)
            if isinstance(exc, NotCommitted):
                raise exc.cause from exc
            if isinstance(exc, CommitUnknown):
                raise InDoubt(
                    f"{self.group}: whether the database committed is not known: {exc}; the next batch "
                    "begins where it says"
                ) from exc
            raise
        new = [
            at
            for at in took.offset_moves
            if at not in self._stored_offsets and at in self._consumer.assignment
        ]
        self._stored_offsets |= {at: each.after for at, each in took.offset_moves.items()}
        self._is_unsynced = False
        if new:
            self._consumer.pin(new)

    def rollback(self, txn: M, took: PolledBatch) -> Recipe[None]:
        """Roll back the rows and rewind to `took`; the next poll checks the database's offsets."""
        self._rewind_to(took.records)
        try:
            yield from run_step("roll back", self.group, txn.rollback)
        except Exception as exc:  # must not hide the original error
            _log.warning("%s: the database's transaction could not be rolled back: %s", self.group, exc)


def _first_offsets(records: Iterable[ConsumerRecord]) -> dict[TopicPartition, int]:
    """Return the first offset of each partition."""
    first: dict[TopicPartition, int] = {}
    for each in records:
        first.setdefault(TopicPartition(each.topic, each.partition), each.offset)
    return first
