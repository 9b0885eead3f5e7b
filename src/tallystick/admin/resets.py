"""Offset resets of a group: plan them, show them, then commit them by `Admin.alter_group_offsets`.

An offset outside its log becomes the nearest end, as in Kafka's tool: a consumer would otherwise apply
`auto.offset.reset` instead of the requested offset.

Source: Kafka 4.3 ConsumerGroupCommand, prepareOffsetsToReset and checkOffsetsRange.
"""

from collections.abc import Mapping, Sequence

from tallystick.admin.client import Admin
from tallystick.admin.start_offsets import FROM_BEGINNING, FROM_END, StartSpec, find_start_offsets
from tallystick.client.errors import NotSupported
from tallystick.client.offsets import OffsetAndMetadata
from tallystick.kernel.ids import TopicPartition
from tallystick.kernel.value import Value


class ShiftBy(Value):
    """A shift by a number of records from the committed offset, backward if negative."""

    by: int


class PlannedOffset(Value, kw_only=True):
    """`current` is the committed offset, None without one; `target` is the planned offset."""

    current: OffsetAndMetadata | None
    target: OffsetAndMetadata


def plan_reset(
    admin: Admin, group_id: str, partitions: Sequence[TopicPartition], to: StartSpec | ShiftBy
) -> Mapping[TopicPartition, PlannedOffset]:
    """Plan the offsets of a reset, next to the committed ones. Changes nothing.

    Raises: NotSupported for a shift without a committed offset; UnknownTopic.
    """
    committed = admin.list_group_offsets(group_id)
    first = find_start_offsets(admin, partitions, FROM_BEGINNING, read_committed=False)
    last = find_start_offsets(admin, partitions, FROM_END, read_committed=False)
    if isinstance(to, ShiftBy):
        missing = [str(at) for at in partitions if at not in committed]
        if missing:
            raise NotSupported(f"a shift of {group_id!r}", f"a committed offset in {', '.join(missing)}")
        targets: Mapping[TopicPartition, int] = {at: committed[at].offset + to.by for at in partitions}
    else:
        targets = find_start_offsets(admin, partitions, to, read_committed=False)
    return {
        at: plan_offset(committed.get(at), min(max(targets[at], first[at]), last[at])) for at in partitions
    }


def plan_offset(now: OffsetAndMetadata | None, offset: int) -> PlannedOffset:
    """Plan one offset; an unchanged offset keeps its leader epoch and metadata. Pure.

    A changed one has neither, because they describe the old position (Kafka Streams stores its stream time
    there). Source: Kafka 4.3 OffsetsUtils, `new OffsetAndMetadata(offset)`.
    """
    then = now if now is not None and now.offset == offset else OffsetAndMetadata(offset)
    return PlannedOffset(current=now, target=then)
