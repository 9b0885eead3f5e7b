"""Groups of one partition of `__consumer_offsets`: events applied by group, markers by producer."""

from tallystick.broker.group.codec import ReplayedEvent
from tallystick.broker.group.machine.apply import apply_event
from tallystick.broker.group.machine.events import GroupEvent, OffsetsCommitted, TransactionEnded
from tallystick.broker.group.machine.model import ClassicGroup
from tallystick.kernel.ids import GroupId, Offset, ProducerId


class GroupTable:
    """The groups of one partition of `__consumer_offsets`, live and on replay alike [GRP-4].

    `groups` may be shared with the tables of other partitions. The index of groups with pending offsets of a
    producer belongs to one table: a marker ends a transaction in its own partition alone.
    """

    def __init__(self, groups: dict[GroupId, ClassicGroup]) -> None:
        self.groups = groups
        # A dict serves as a set: its order is that of the log, in every process.
        self._pending_by_producer: dict[ProducerId, dict[GroupId, None]] = {}

    def apply_event(self, group_id: GroupId, event: GroupEvent, at: Offset | None = None) -> None:
        """Change one group. `at`: log offset of the event's first record, for a durable one."""
        group = apply_event(self.groups.get(group_id), event, at)
        if group is None:
            self.groups.pop(group_id, None)
        else:
            self.groups[group_id] = group
        if isinstance(event, OffsetsCommitted) and event.producer_id is not None:
            self._pending_by_producer.setdefault(event.producer_id, {})[group_id] = None

    def end_transaction(self, event: TransactionEnded) -> None:
        """Change every group with pending offsets of the producer. Cost: linear in those groups' offsets."""
        for group_id in self._pending_by_producer.pop(event.producer_id, {}):
            self.apply_event(group_id, event)

    def replay_event(self, entry: ReplayedEvent) -> None:
        """Apply an event read from the log."""
        if isinstance(entry.event, TransactionEnded):
            self.end_transaction(entry.event)
        else:
            self.apply_event(entry.event.group_id, entry.event, entry.offset)
