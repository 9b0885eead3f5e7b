"""A driver for the consumer group state machine without loop, socket or disk: an in-memory log, a fake clock.

It is deliberately minimal and shows what the machine decides. Tests of waiting and of failing appends use the
real driver.
"""

from collections.abc import Iterable

from tallystick.broker.group.codec import count_records, decode_batches, encode_batch_of
from tallystick.broker.group.machine.apply import GroupTable
from tallystick.broker.group.machine.commands import (
    CommitTxnOffsets,
    GroupAnswer,
    GroupCommand,
    GroupEnv,
    GroupStep,
    JoinGroup,
    StartSessions,
    SyncGroup,
)
from tallystick.broker.group.machine.decide import decide
from tallystick.broker.group.machine.events import DurableEvent
from tallystick.broker.group.machine.expiry import find_due_timeouts, find_next_deadline
from tallystick.broker.group.machine.model import ClassicGroup, ClockReading, GroupConfig, GroupState, Ticket
from tallystick.kernel.check import check
from tallystick.kernel.errors import Reject
from tallystick.kernel.ids import GroupId, Offset, ProducerIdAndEpoch, TimestampMs, TopicPartition
from tallystick.kernel.value import replace
from tallystick.protocol.records import (
    ControlType,
    EndTransactionMarker,
    encode_marker,
    patch_offset_and_epoch,
    read_header,
)

START_MS = 1_700_000_000_000


class GroupMachineHarness:
    """Groups of one partition of `__consumer_offsets`.

    log             every batch appended, with offsets assigned as a log would
    answers         each ticket's answer, in the order of answering
    parked_tickets  tickets that wait
    """

    def __init__(self, config: GroupConfig | None = None) -> None:
        self.config = config or GroupConfig()
        self.table = GroupTable({})
        self.log: list[bytes] = []
        self.log_end_offset = 0
        self.answers: list[tuple[Ticket, GroupAnswer]] = []
        self.parked_tickets: set[Ticket] = set()
        self.elapsed_ms = 0
        self._ticket_count = 0
        self._spare_count = 0

    @property
    def groups(self) -> dict[GroupId, ClassicGroup]:
        return self.table.groups

    def new_ticket(self) -> Ticket:
        self._ticket_count += 1
        return Ticket(self._ticket_count)

    def now(self) -> ClockReading:
        return ClockReading(TimestampMs(START_MS + self.elapsed_ms), self.elapsed_ms)

    def new_env(self, group_id: GroupId) -> GroupEnv:
        self._spare_count += 1
        return GroupEnv(
            group_id=group_id, config=self.config, now=self.now(), member_id_suffix=str(self._spare_count)
        )

    def run(self, group_id: GroupId, command: GroupCommand) -> GroupAnswer | None:
        """Run one command in Kafka's order; return None when it was parked under its ticket."""
        return self.execute_step(group_id, command, self.decide(group_id, command))

    def decide(self, group_id: GroupId, command: GroupCommand) -> GroupStep:
        """Return what the machine decides now.

        Until the step is carried out, markers may arrive, but no other command.
        """
        outcome = decide(self.groups.get(group_id), command, self.new_env(group_id))
        return GroupStep(reply=outcome) if isinstance(outcome, Reject) else outcome

    def execute_step(self, group_id: GroupId, command: GroupCommand, step: GroupStep) -> GroupAnswer | None:
        """Append the step's events, apply them, and answer."""
        check(
            step.records == tuple(event for event in step.events if isinstance(event, DurableEvent)),
            "everything durable is appended, in order",
        )
        producer = command.identity if isinstance(command, CommitTxnOffsets) else None
        at = self.append(step.records, producer) if step.records else None
        for event in step.events:
            self.table.apply_event(group_id, event, at)
            if at is not None and isinstance(event, DurableEvent):
                at = Offset(at + count_records(event))
        own = command.ticket if isinstance(command, JoinGroup | SyncGroup) else None
        if step.reply is None:
            check(own is not None, f"{command} was neither answered nor parked")
            if own is not None:
                self.parked_tickets.add(own)
        elif own is not None:
            self.answers.append((own, step.reply))
        for send in step.parked_answers:
            check(send.ticket in self.parked_tickets, f"{send} answers no request")
            self.parked_tickets.discard(send.ticket)
            self.answers.append((send.ticket, send.answer))
        return step.reply

    def append(self, events: Iterable[DurableEvent], producer: ProducerIdAndEpoch | None = None) -> Offset:
        """Append events to the log as the driver does, and return the first offset."""
        durable = tuple(events)
        return self._append_at_end(encode_batch_of(durable, self.now().wall_ms, producer))

    def end_transaction(self, producer: ProducerIdAndEpoch, outcome: ControlType) -> None:
        """Append an end marker and apply it, in log order like everything here."""
        marker = EndTransactionMarker(control_type=outcome, coordinator_epoch=0)
        self._append_at_end(encode_marker(marker, producer, timestamp_ms=self.now().wall_ms))
        for entry in decode_batches(self.log[-1]):
            self.table.replay_event(entry)

    def _append_at_end(self, batch: bytes) -> Offset:
        at, data = Offset(self.log_end_offset), bytearray(batch)
        patch_offset_and_epoch(data, 0, at, 0)
        self.log.append(bytes(data))
        self.log_end_offset += read_header(data).record_count
        return at

    def pass_time(self, by_ms: int) -> None:
        """Let time pass from deadline to deadline, acting on each one when it is reached."""
        end_ms = self.elapsed_ms + by_ms
        while True:
            coming = [
                deadline
                for group in self.groups.values()
                if (deadline := find_next_deadline(group)) is not None
            ]
            at_ms = min(coming, default=end_ms)
            if at_ms > end_ms or not coming:
                break
            self.elapsed_ms = max(self.elapsed_ms, at_ms)
            self.run_due_timeouts()
        self.elapsed_ms = end_ms

    def run_due_timeouts(self) -> None:
        """Act on every deadline that has passed."""
        for group_id, group in list(self.groups.items()):
            for timeout in find_due_timeouts(group, self.elapsed_ms):
                self.run(group_id, timeout)

    def replay_groups(self) -> dict[GroupId, ClassicGroup]:
        """Return the groups that a restart would read back from the log."""
        return self._replay_table().groups

    def restart(self) -> None:
        """Lose what only memory held; parked requests break with their connections."""
        self.table = self._replay_table()
        self.parked_tickets.clear()
        for group_id in list(self.groups):
            self.run(group_id, StartSessions())

    def _replay_table(self) -> GroupTable:
        table = GroupTable({})
        for batch in self.log:
            for entry in decode_batches(batch):
                table.replay_event(entry)
        return table


def durable_view(group: ClassicGroup | None) -> object:
    """Return the part of a group the log keeps, comparable between a live and a replayed one.

    While a group rebalances, its membership runs ahead of the log, so only offsets count then. A group
    without members, protocol and offsets leaves nothing to compare.
    """
    if group is None:
        return None
    offsets: dict[TopicPartition, object] = dict(group.offsets)
    is_settled = group.state in (GroupState.STABLE, GroupState.EMPTY)
    bare = not group.members and group.protocol_type is None and group.generation == 0
    if bare and not offsets and not group.pending_offsets:
        return None
    members = tuple(
        replace(
            member,
            supported_protocols=tuple(p for p in member.supported_protocols if p.name == group.protocol_name),
            session_deadline_ms=type(member.session_deadline_ms)(0),
        )
        for member in group.members.values()
    )
    membership = (
        group.state,
        group.generation,
        group.protocol_type,
        group.protocol_name,
        group.leader_id,
        members,
    )
    return (offsets, group.pending_offsets, membership if is_settled and not bare else None)
