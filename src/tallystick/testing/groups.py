"""A driver for the consumer group state machine without loop, socket or disk: an in-memory log, a fake clock.

It is deliberately minimal and shows what the machine decides. Tests of waiting and of failing appends use the
real driver.
"""

from collections.abc import Iterable
from dataclasses import replace

from tallystick.broker.group.codec import decode_batches, encode_batch_of, record_count
from tallystick.broker.group.machine.commands import (
    Answer,
    Command,
    CommitTxnOffsets,
    Env,
    Join,
    Revive,
    Step,
    Sync,
)
from tallystick.broker.group.machine.decide import decide
from tallystick.broker.group.machine.events import DurableEvent
from tallystick.broker.group.machine.expiry import due, next_deadline
from tallystick.broker.group.machine.model import Group, GroupConfig, GroupState, Now, Ticket
from tallystick.broker.group.machine.table import GroupTable
from tallystick.kernel.check import check
from tallystick.kernel.errors import Reject
from tallystick.kernel.ids import GroupId, Identity, Offset, TimestampMs, TopicPartition
from tallystick.protocol.records import (
    ControlType,
    Marker,
    encode_marker,
    patch_offset_and_epoch,
    read_header,
)

START_MS = 1_700_000_000_000


class GroupWorld:
    """Groups of one partition of `__consumer_offsets`.

    log      every batch appended, with offsets assigned as a log would
    answers  each ticket's answer, in the order of answering
    parked   tickets that wait
    """

    def __init__(self, config: GroupConfig | None = None) -> None:
        self.config = config or GroupConfig()
        self.table = GroupTable({})
        self.log: list[bytes] = []
        self.log_end_offset = 0
        self.answers: list[tuple[Ticket, Answer]] = []
        self.parked: set[Ticket] = set()
        self.elapsed_ms = 0
        self._tickets = 0
        self._spares = 0

    @property
    def groups(self) -> dict[GroupId, Group]:
        return self.table.groups

    def ticket(self) -> Ticket:
        self._tickets += 1
        return Ticket(self._tickets)

    def now(self) -> Now:
        return Now(TimestampMs(START_MS + self.elapsed_ms), self.elapsed_ms)

    def env(self, group_id: GroupId) -> Env:
        self._spares += 1
        return Env(group_id=group_id, config=self.config, now=self.now(), spare_id=str(self._spares))

    def run(self, group_id: GroupId, command: Command) -> Answer | None:
        """Run one command in Kafka's order; return None when it was parked under its ticket."""
        return self.carry_out(group_id, command, self.decide(group_id, command))

    def decide(self, group_id: GroupId, command: Command) -> Step:
        """Return what the machine decides now.

        Until the step is carried out, markers may arrive, but no other command.
        """
        outcome = decide(self.groups.get(group_id), command, self.env(group_id))
        return Step(then_reply=outcome) if isinstance(outcome, Reject) else outcome

    def carry_out(self, group_id: GroupId, command: Command, step: Step) -> Answer | None:
        """Append the step's events, apply them, and answer."""
        check(
            step.append == tuple(event for event in step.then_apply if isinstance(event, DurableEvent)),
            "everything durable is appended, in order",
        )
        producer = command.identity if isinstance(command, CommitTxnOffsets) else None
        at = self.append(step.append, producer) if step.append else None
        for event in step.then_apply:
            self.table.apply(group_id, event, at)
            if at is not None and isinstance(event, DurableEvent):
                at = Offset(at + record_count(event))
        own = command.ticket if isinstance(command, Join | Sync) else None
        if step.then_reply is None:
            check(own is not None, f"{command} was neither answered nor parked")
            if own is not None:
                self.parked.add(own)
        elif own is not None:
            self.answers.append((own, step.then_reply))
        for send in step.then_send:
            check(send.ticket in self.parked, f"{send} answers nobody")
            self.parked.discard(send.ticket)
            self.answers.append((send.ticket, send.answer))
        return step.then_reply

    def append(self, events: Iterable[DurableEvent], producer: Identity | None = None) -> Offset:
        """Append events to the log as the driver does, and return the first offset."""
        durable = tuple(events)
        return self._place(encode_batch_of(durable, self.now().wall_ms, producer))

    def end_transaction(self, producer: Identity, outcome: ControlType) -> None:
        """Append an end marker and apply it, in log order like everything here."""
        marker = Marker(type=outcome, coordinator_epoch=0)
        self._place(encode_marker(marker, producer, timestamp_ms=self.now().wall_ms))
        for entry in decode_batches(self.log[-1]):
            self.table.replay(entry)

    def _place(self, batch: bytes) -> Offset:
        at, placed = Offset(self.log_end_offset), bytearray(batch)
        patch_offset_and_epoch(placed, 0, at, 0)
        self.log.append(bytes(placed))
        self.log_end_offset += read_header(placed).record_count
        return at

    def pass_time(self, by_ms: int) -> None:
        """Let time pass from deadline to deadline, acting on each one when it is reached."""
        end_ms = self.elapsed_ms + by_ms
        while True:
            coming = [
                deadline for group in self.groups.values() if (deadline := next_deadline(group)) is not None
            ]
            at_ms = min(coming, default=end_ms)
            if at_ms > end_ms or not coming:
                break
            self.elapsed_ms = max(self.elapsed_ms, at_ms)
            self.act_on_time()
        self.elapsed_ms = end_ms

    def act_on_time(self) -> None:
        """Act on every deadline that has passed."""
        for group_id, group in list(self.groups.items()):
            for timeout in due(group, self.elapsed_ms):
                self.run(group_id, timeout)

    def replayed(self) -> dict[GroupId, Group]:
        """Return the groups that a restart would read back from the log."""
        return self._replayed().groups

    def restart(self) -> None:
        """Lose what only memory held; parked requests break with their connections."""
        self.table = self._replayed()
        self.parked.clear()
        for group_id in list(self.groups):
            self.run(group_id, Revive())

    def _replayed(self) -> GroupTable:
        table = GroupTable({})
        for batch in self.log:
            for entry in decode_batches(batch):
                table.replay(entry)
        return table


def durable_view(group: Group | None) -> object:
    """Return the part of a group the log keeps, comparable between a live and a replayed one.

    While a group rebalances, its membership runs ahead of the log, so only offsets count then. A group
    without members, protocol and offsets leaves nothing to compare.
    """
    if group is None:
        return None
    offsets: dict[TopicPartition, object] = dict(group.offsets)
    settled = group.state in (GroupState.STABLE, GroupState.EMPTY)
    bare = not group.members and group.protocol_type is None and group.generation == 0
    if bare and not offsets and not group.pending_offsets:
        return None
    members = tuple(
        replace(
            member,
            protocols=tuple(p for p in member.protocols if p.name == group.protocol_name),
            session_deadline_ms=type(member.session_deadline_ms)(0),
        )
        for member in group.members.values()
    )
    membership = (
        group.state,
        group.generation,
        group.protocol_type,
        group.protocol_name,
        group.leader,
        members,
    )
    return (offsets, group.pending_offsets, membership if settled and not bare else None)
