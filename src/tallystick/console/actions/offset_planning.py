"""Plans a reset of a group's offsets: what its consumers would read again or pass over. Pure.

The offsets that are committed are those of the dry run that was shown. So `to-latest` means the end at that
moment, however long the operator reads the page; all other targets must be the same when the form comes back.
"""

from collections.abc import Iterator, Mapping
from typing import Final

from tallystick.console.actions.plan import ActionPlan, Guard, LookUp, PlannedSide
from tallystick.console.actions.readings import OffsetMove, ResetReading
from tallystick.console.actions.request import (
    ResetOffsets,
    ResetTarget,
    format_action_command,
    format_confirmation,
    get_kind,
)
from tallystick.console.model import commands
from tallystick.console.views.texts import pluralize
from tallystick.kernel.ids import TopicPartition
from tallystick.kernel.value import replace

MOVES_MAX: Final = 200


def plan_reset(request: ResetOffsets, reading: ResetReading, servers: str) -> ActionPlan:
    """Plan a reset; the caller seals the plan."""
    group = reading.group
    changes = {at: move for at, move in sorted(reading.moves.items()) if move.current != move.target}
    members = () if group is None else group.members
    kafka = PlannedSide(
        name=f"Kafka, group {request.group_id}",
        now=(
            "Its coordinator does not know it."
            if group is None
            else f"{group.state}, {pluralize(len(members), 'member')}.",
            *_list_current(reading),
        ),
        effect=f"The offsets of {pluralize(len(changes), 'partition')} are replaced, as listed below.",
    )
    databases = PlannedSide(
        name="Databases",
        now=("Offsets that a consumer keeps in its database are not read here.",),
        effect="Nothing changes here: such a consumer goes on where its database says.",
    )
    plan = ActionPlan(
        kind=get_kind(request).value,
        title=f"Reset offsets of {request.group_id}",
        subject=request.group_id,
        confirmation=format_confirmation(request),
        sides=(kafka, databases),
        consequences=tuple(_list_moves(changes)),
        command=format_action_command(request, servers),
        fingerprint=_format_moves(changes, with_targets=request.target is not ResetTarget.LATEST),
        look_ups=(
            LookUp(
                command=commands.describe_group_command(servers, request.group_id),
                meaning="CurrentOffset as listed above: it was done, in those partitions.",
            ),
        ),
    )
    objections = []
    if group is None:
        objections.append("Its coordinator does not know this group.")
    if members:
        objections.append(
            f"{pluralize(len(members), 'member')} {'reads' if len(members) == 1 else 'read'} it, "
            f"{members[0].client_id} for one, and its coordinator would refuse: stop them first."
        )
    if group is not None and not changes:
        objections.append("No offset would change.")
    return replace(plan, guard=Guard.REFUSED, objections=tuple(objections)) if objections else plan


def _format_moves(changes: Mapping[TopicPartition, OffsetMove], *, with_targets: bool) -> str:
    """Return all moves in one line, for the digest: those that are not listed count as well."""
    return " ".join(
        f"{at}:{move.current and move.current.offset}{f'={move.target.offset}' if with_targets else ''}"
        for at, move in changes.items()
    )


def _list_current(reading: ResetReading) -> Iterator[str]:
    moves = sorted(reading.moves.items())
    for at, move in moves[:MOVES_MAX]:
        current = "nothing is committed" if move.current is None else f"committed {move.current.offset}"
        pending = (
            ", and a transaction that is not decided yet would replace it" if at in reading.pending else ""
        )
        yield f"{at}: {current}{pending}."
    if len(moves) > MOVES_MAX:
        yield f"and {len(moves) - MOVES_MAX} more partitions."


def _list_moves(changes: Mapping[TopicPartition, OffsetMove]) -> Iterator[str]:
    for at, move in list(changes.items())[:MOVES_MAX]:
        target = move.target.offset
        if move.current is None:
            yield f"{at}: from nothing to {target}."
            continue
        count = target - move.current.offset
        offsets = f"{pluralize(abs(count), 'offset')} {'is' if abs(count) == 1 else 'are'}"
        text = f"{offsets} passed over" if count > 0 else f"{offsets} read again"
        yield f"{at}: from {move.current.offset} to {target}: {text}."
    if len(changes) > MOVES_MAX:
        yield f"and {len(changes) - MOVES_MAX} more partitions."
