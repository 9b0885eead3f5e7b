"""Draft of a decision: events are tried on a copy of the group, and collected for the Step."""

from collections.abc import Sequence
from typing import get_args

from tallystick.broker.group.machine.apply import apply_to_existing
from tallystick.broker.group.machine.commands import GroupAnswer, GroupEnv, GroupStep, ParkedAnswer
from tallystick.broker.group.machine.events import DurableEvent, GroupEvent, GroupStored, StoredMember
from tallystick.broker.group.machine.model import ClassicGroup, ClassicGroupMember, Generation, Ticket
from tallystick.kernel.ids import MemberId, TimestampMs

_DURABLE_EVENT_TYPES = get_args(DurableEvent)


class GroupDraft:
    """Effects of one command so far; `group` is the group after them.

    Local to one decision. The real group is frozen and unchanged until the coordinator has the durable events
    on disk and applies all of them again.
    """

    __slots__ = ("_events", "_parked_answers", "env", "group")

    def __init__(self, group: ClassicGroup, env: GroupEnv) -> None:
        self.group = group
        self.env = env
        self._events: list[GroupEvent] = []
        self._parked_answers: list[ParkedAnswer] = []

    def emit(self, event: GroupEvent) -> None:
        """Add `event`, and apply it to the draft's group."""
        self.group = apply_to_existing(self.group, event)
        self._events.append(event)

    def answer_parked(self, ticket: Ticket | None, answer: GroupAnswer) -> None:
        """Answer a parked request; do nothing without a ticket."""
        if ticket is not None:
            self._parked_answers.append(ParkedAnswer(ticket=ticket, answer=answer))

    def build_step(self, reply: GroupAnswer | None, own: Ticket | None = None) -> GroupStep:
        """Close the draft.

        Args:
            reply: the answer to the command itself; None when it is parked.
            own: the command's ticket. An answer to it that the cascade produced becomes the reply.
        """
        sends: Sequence[ParkedAnswer] = self._parked_answers
        if own is not None and reply is None:
            reply = next((send.answer for send in sends if send.ticket == own), None)
            sends = [send for send in sends if send.ticket != own]
        return GroupStep(
            records=tuple(event for event in self._events if isinstance(event, _DURABLE_EVENT_TYPES)),
            events=tuple(self._events),
            reply=reply,
            parked_answers=tuple(sends),
        )


def build_group_stored(
    group: ClassicGroup,
    *,
    generation: Generation | None = None,
    assignments: dict[MemberId, bytes] | None = None,
    state_timestamp_ms: TimestampMs | None = None,
) -> GroupStored:
    """Return the record that stores `group` as it is, or with the given parts replaced."""

    def find_assignment(member: ClassicGroupMember) -> bytes:
        return member.assignment if assignments is None else assignments.get(member.member_id, b"")

    return GroupStored(
        group_id=group.group_id,
        generation=group.generation if generation is None else generation,
        protocol_type=group.protocol_type,
        protocol_name=group.protocol_name if group.members else None,
        leader_id=group.leader_id if group.members else None,
        state_timestamp_ms=state_timestamp_ms or group.state_timestamp_ms,
        members=tuple(
            StoredMember(
                member_id=member.member_id,
                instance_id=member.instance_id,
                client_id=member.client_id,
                client_host=member.client_host,
                rebalance_timeout_ms=member.rebalance_timeout_ms,
                session_timeout_ms=member.session_timeout_ms,
                subscription=member.find_metadata(group.protocol_name) or b"",
                assignment=find_assignment(member),
            )
            for member in group.members.values()
        ),
    )
