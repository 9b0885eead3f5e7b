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
from tallystick.dualwrite.drivers import Recipe, do
from tallystick.dualwrite.errors import CommitUnknown, DataLoss, NotCommitted
from tallystick.dualwrite.ports import Later, Transacting
from tallystick.dualwrite.stores.base import OffsetMoved
from tallystick.kernel.errors import InDoubt
from tallystick.kernel.ids import TopicPartition
from tallystick.kernel.value import frozen

_log = logging.getLogger("tallystick.dualwrite")


class Polling(Protocol):
    """The methods used of `tallystick.Consumer` and `tallystick.aio.Consumer`."""

    @property
    def assignment(self) -> frozenset[TopicPartition]: ...
    def poll(self, timeout_s: float, most: int | None = None) -> Later[list[ConsumerRecord]]: ...
    def position(self, partition: TopicPartition) -> Later[int]: ...
    def seek(self, partition: TopicPartition, offset: int) -> None: ...
    def pin(self, partitions: Iterable[TopicPartition]) -> None: ...
    def read_committed(self) -> None: ...
    def beginning_offsets(self, partitions: Iterable[TopicPartition]) -> Later[dict[TopicPartition, int]]: ...
    def end_offsets(self, partitions: Iterable[TopicPartition]) -> Later[dict[TopicPartition, int]]: ...
    def group_metadata(self) -> GroupMetadata: ...


class Moving(Transacting, Protocol):
    """The methods used of `OffsetTransaction` and `AsyncOffsetTransaction`."""

    def move_offsets(self, group: str, moved: Mapping[TopicPartition, OffsetMoved]) -> Later[None]: ...


OnDataLoss = Literal["fail", "skip"]
M = TypeVar("M", bound=Moving)
M_co = TypeVar("M_co", bound=Moving, covariant=True)


class Keeping(Protocol[M_co]):
    """The methods used of `OffsetStore` and `AsyncOffsetStore`."""

    def begin(self) -> Later[M_co]: ...
    def read_offsets(self, group: str) -> Later[Mapping[TopicPartition, int]]: ...


@frozen
class Took:
    """The result of one poll: records, and how far they move each partition."""

    records: tuple[ConsumerRecord, ...]
    moved: Mapping[TopicPartition, OffsetMoved]


class Reading(Generic[M]):
    """A consumer's positions together with the database's offsets. Its methods are recipes."""

    def __init__(
        self, store: Keeping[M], consumer: Polling, group: str | None, on_data_loss: OnDataLoss = "fail"
    ) -> None:
        if on_data_loss not in ("fail", "skip"):
            raise ValueError(f'on_data_loss is "fail" or "skip", not {on_data_loss!r}')
        consumer.read_committed()
        self._skips = on_data_loss == "skip"
        self.group = group or consumer.group_metadata().group_id
        self._store = store
        self._consumer = consumer
        self._kept: dict[TopicPartition, int] = {}
        self._unsynced = True

    def unsync(self) -> None:
        """Mark the consumer's assignment or positions as possibly different from the database's offsets."""
        self._unsynced = True

    def poll(self, timeout_s: float, most: int | None) -> Recipe[Took]:
        """Return records that follow the database's offsets; none if `timeout_s` has passed."""
        poll = partial(self._consumer.poll, timeout_s, most)
        records = yield from self._poll(poll)
        if self._unsynced:  # an assignment may have come with these records: their offsets may be wrong
            yield from self._sync(records)
            records = yield from self._poll(poll)
            if self._unsynced:
                yield from self._sync(records)
                records = []
        moved = {}
        try:
            for at in _first_of(records):
                after: int = yield from do("position", str(at), partial(self._consumer.position, at))
                moved[at] = OffsetMoved(before=self._kept.get(at), after=after)
        except BaseException:
            self._take_back(records)
            raise
        return Took(tuple(records), moved)

    def _poll(self, poll: Callable[[], Later[list[ConsumerRecord]]]) -> Recipe[list[ConsumerRecord]]:
        """Poll once. Raises: DataLoss if the log does not contain the database's offset."""
        try:
            records: list[ConsumerRecord] = yield from do("poll", self.group, poll)
        except PositionUnknown as exc:
            at = TopicPartition(exc.topic, exc.partition)
            if self._unsynced:  # the position may not come from the database
                yield from self._sync(())
                if at in self._kept:
                    return []
            if at not in self._kept:
                raise
            yield from self._lost(at, exc)
            return []
        return records

    def _lost(self, at: TopicPartition, why: PositionUnknown) -> Recipe[None]:
        """Raise DataLoss, or seek to where the log continues, never before the database's offset."""
        begins = yield from do("position", str(at), partial(self._consumer.beginning_offsets, [at]))
        ends = yield from do("position", str(at), partial(self._consumer.end_offsets, [at]))
        loss = DataLoss(self.group, str(at), self._kept[at], begins[at], ends[at])
        if not self._skips:
            raise loss from why
        place = begins[at] if loss.offset < begins[at] else ends[at]
        _log.warning("%s; going on at %d", loss, place)
        self._consumer.seek(at, place)

    def _sync(self, records: Iterable[ConsumerRecord]) -> Recipe[None]:
        """Seek to the database's offsets; partitions without one go back to the start of `records`."""
        self._unsynced = False
        try:
            kept = yield from do("read offsets", self.group, partial(self._store.read_offsets, self.group))
        except BaseException:
            self._take_back(records)
            raise
        assigned = self._consumer.assignment
        self._kept = {at: offset for at, offset in kept.items() if at in assigned}
        self._consumer.pin(self._kept)
        self._seek({**_first_of(records), **self._kept})

    def _take_back(self, records: Iterable[ConsumerRecord]) -> None:
        """Seek back so that `records` are returned again, unless the database already has them."""
        self._unsynced = True
        self._seek(_first_of(records))

    def _seek(self, places: Mapping[TopicPartition, int]) -> None:
        assigned = self._consumer.assignment
        for at, offset in places.items():
            if at in assigned:
                self._consumer.seek(at, offset)

    def begin(self, took: Took) -> Recipe[M]:
        try:
            return (yield from do("begin database", self.group, self._store.begin))
        except BaseException:
            self._take_back(took.records)
            raise

    def commit(self, txn: M, took: Took) -> Recipe[None]:
        """Commit rows and offsets. Raises: Fenced if another reader moved a partition; InDoubt."""
        self._unsynced = True
        try:
            if took.moved:
                move = partial(txn.move_offsets, self.group, took.moved)
                yield from do("move offsets", self.group, move)
            yield from do("commit database", self.group, txn.commit)
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
        new = [at for at in took.moved if at not in self._kept and at in self._consumer.assignment]
        self._kept |= {at: each.after for at, each in took.moved.items()}
        self._unsynced = False
        if new:
            self._consumer.pin(new)

    def rollback(self, txn: M, took: Took) -> Recipe[None]:
        """Roll back the rows and rewind to `took`; the next poll checks the database's offsets."""
        self._take_back(took.records)
        try:
            yield from do("roll back", self.group, txn.rollback)
        except Exception as exc:  # must not hide the original error
            _log.warning("%s: the database's transaction could not be rolled back: %s", self.group, exc)


def _first_of(records: Iterable[ConsumerRecord]) -> dict[TopicPartition, int]:
    """Return the first offset of each partition."""
    first: dict[TopicPartition, int] = {}
    for each in records:
        first.setdefault(TopicPartition(each.topic, each.partition), each.offset)
    return first
