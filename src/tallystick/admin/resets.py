"""Where a group is to go on: offsets planned, shown, and then committed by `Admin.alter_group_offsets`.

An offset outside its log becomes the nearest end, as in Kafka's tool: a consumer would otherwise apply
`auto.offset.reset`, which is not what was asked for.

Source: Kafka 4.3 ConsumerGroupCommand, prepareOffsetsToReset and checkOffsetsRange.
"""

from collections.abc import Mapping, Sequence

from tallystick.admin.client import Admin
from tallystick.admin.start_offsets import FROM_BEGINNING, FROM_END, Start, first_offsets
from tallystick.client.errors import NotSupported
from tallystick.client.offsets import OffsetAndMetadata
from tallystick.kernel.ids import TopicPartition
from tallystick.kernel.value import frozen


@frozen
class ShiftBy:
    """So many records on, or back, from what is committed."""

    by: int


@frozen(kw_only=True)
class PlannedOffset:
    """`now`: what is committed, None for nothing. `then`: what would be."""

    now: OffsetAndMetadata | None
    then: OffsetAndMetadata


def plan_reset(
    admin: Admin, group_id: str, partitions: Sequence[TopicPartition], to: Start | ShiftBy
) -> Mapping[TopicPartition, PlannedOffset]:
    """What the group has committed, and what it would have. Changes nothing.

    Raises: NotSupported for a shift from nothing; UnknownTopic.
    """
    committed = admin.list_group_offsets(group_id)
    first = first_offsets(admin, partitions, FROM_BEGINNING, read_committed=False)
    last = first_offsets(admin, partitions, FROM_END, read_committed=False)
    if isinstance(to, ShiftBy):
        missing = [str(at) for at in partitions if at not in committed]
        if missing:
            raise NotSupported(f"a shift of {group_id!r}", f"a committed offset in {', '.join(missing)}")
        wanted: Mapping[TopicPartition, int] = {at: committed[at].offset + to.by for at in partitions}
    else:
        wanted = first_offsets(admin, partitions, to, read_committed=False)
    return {at: planned(committed.get(at), min(max(wanted[at], first[at]), last[at])) for at in partitions}


def planned(now: OffsetAndMetadata | None, offset: int) -> PlannedOffset:
    """Pure. One that stays keeps its leader epoch and its metadata.

    One that moves has neither: they are about the place that it leaves (Kafka Streams keeps there the time
    that it has come to). Source: Kafka 4.3 OffsetsUtils, `new OffsetAndMetadata(offset)`.
    """
    then = now if now is not None and now.offset == offset else OffsetAndMetadata(offset)
    return PlannedOffset(now=now, then=then)
