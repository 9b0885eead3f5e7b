"""Draft of a decision: events are tried on a copy of the group, and collected for the Step."""

from collections.abc import Sequence
from typing import get_args

from tallystick.broker.group.machine.apply import apply_soft_to
from tallystick.broker.group.machine.commands import Answer, Env, Send, Step
from tallystick.broker.group.machine.events import DurableEvent, Event, GroupStored, StoredMember
from tallystick.broker.group.machine.model import Generation, Group, Member, Ticket
from tallystick.kernel.ids import MemberId, TimestampMs

_DURABLE = get_args(DurableEvent)


class Draft:
    """Effects of one command so far; `group` is the group after them.

    Local to one decision. The real group is frozen and unchanged until the coordinator has the durable events
    on disk and applies all of them again.
    """

    __slots__ = ("_events", "_sends", "env", "group")

    def __init__(self, group: Group, env: Env) -> None:
        self.group = group
        self.env = env
        self._events: list[Event] = []
        self._sends: list[Send] = []

    def emit(self, event: Event) -> None:
        """Add `event`, and apply it to the draft's group."""
        self.group = apply_soft_to(self.group, event)
        self._events.append(event)

    def send(self, ticket: Ticket | None, answer: Answer) -> None:
        """Answer a parked request; do nothing without a ticket."""
        if ticket is not None:
            self._sends.append(Send(ticket=ticket, answer=answer))

    def step(self, reply: Answer | None, own: Ticket | None = None) -> Step:
        """Close the draft.

        Args:
            reply: the answer to the command itself; None when it is parked.
            own: the command's ticket. An answer to it that the cascade produced becomes the reply.
        """
        sends: Sequence[Send] = self._sends
        if own is not None and reply is None:
            reply = next((send.answer for send in sends if send.ticket == own), None)
            sends = [send for send in sends if send.ticket != own]
        return Step(
            append=tuple(event for event in self._events if isinstance(event, _DURABLE)),
            then_apply=tuple(self._events),
            then_reply=reply,
            then_send=tuple(sends),
        )


def snapshot(
    group: Group,
    *,
    generation: Generation | None = None,
    assignments: dict[MemberId, bytes] | None = None,
    state_timestamp_ms: TimestampMs | None = None,
) -> GroupStored:
    """Return the record that stores `group` as it is, or with the given parts replaced."""

    def assignment_of(member: Member) -> bytes:
        return member.assignment if assignments is None else assignments.get(member.member_id, b"")

    return GroupStored(
        group_id=group.group_id,
        generation=group.generation if generation is None else generation,
        protocol_type=group.protocol_type,
        protocol_name=group.protocol_name if group.members else None,
        leader=group.leader if group.members else None,
        state_timestamp_ms=state_timestamp_ms or group.state_timestamp_ms,
        members=tuple(
            StoredMember(
                member_id=member.member_id,
                instance_id=member.instance_id,
                client_id=member.client_id,
                client_host=member.client_host,
                rebalance_timeout_ms=member.rebalance_timeout_ms,
                session_timeout_ms=member.session_timeout_ms,
                subscription=member.metadata(group.protocol_name) or b"",
                assignment=assignment_of(member),
            )
            for member in group.members.values()
        ),
    )
