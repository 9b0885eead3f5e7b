"""The dry run of an action as a value: the state of each side, and the effect of the action. Pure.

A plan is made of a fresh reading, is shown, and is made once more when its form comes back. Its digest covers
what the operator has read on the page; if the two digests differ, the state has moved, and nothing is done
[ACT-1].
"""

import hashlib
import json
from enum import Enum

import msgspec

from tallystick.kernel.value import Value, replace


class Guard(Enum):
    """Whether a plan may be carried out; the value is the word that pages show."""

    READY = "ready"
    REASON = "needs a reason"
    REFUSED = "refused"


class PlannedSide(Value, kw_only=True):
    """One side of the transaction.

    name    Kafka, the name of a store, or a Spark prefix
    now     what is true, a sentence each
    effect  what the action makes of it
    """

    name: str
    now: tuple[str, ...]
    effect: str


class LookUp(Value, kw_only=True):
    """A command that shows whether an action whose outcome is unknown took effect, and how to read it."""

    command: str
    meaning: str


class ActionPlan(Value, kw_only=True):
    """A dry run.

    cluster_id    of the cluster that was read; None if it has none
    kind          of the action, as in its URL
    confirmation  what has to be typed
    consequences  what readers will notice, as far as it is known; counts may grow meanwhile
    cautions      what else to know
    objections    why it is refused, or what a reason is needed for
    forces        the guards of the commands have to be overridden by `--force`
    command       the command line that does the same
    failures      what could not be read, and why: the next attempt may fail in other words
    look_ups      what to look at if the outcome stays unknown
    fingerprint   what the digest covers beyond what is shown
    parts         of an action on several ids: the sealed dry run of each
    digest        of all that decides what would be done; "" until `seal_plan`
    """

    cluster_id: str | None = None
    kind: str
    title: str
    subject: str
    confirmation: str
    sides: tuple[PlannedSide, ...]
    consequences: tuple[str, ...] = ()
    cautions: tuple[str, ...] = ()
    guard: Guard = Guard.READY
    objections: tuple[str, ...] = ()
    forces: bool = False
    command: str = ""
    failures: tuple[str, ...] = ()
    look_ups: tuple[LookUp, ...] = ()
    fingerprint: str = ""
    parts: tuple["ActionPlan", ...] = ()
    digest: str = ""


def seal_plan(plan: ActionPlan) -> ActionPlan:
    """Return the plan with its digest: of everything but texts that change by themselves.

    Consequences grow while others write; the same failure has many texts. Parts count by their digests.
    """
    digests = [part.digest for part in plan.parts]
    steady = replace(plan, consequences=(), failures=(), parts=(), digest="")
    content = [msgspec.to_builtins(steady), *digests]
    text = json.dumps(content, sort_keys=True, separators=(",", ":"))
    return replace(plan, digest=hashlib.sha256(text.encode()).hexdigest())


def list_changes(before: ActionPlan, after: ActionPlan) -> tuple[str, ...]:
    """Return what has changed between two dry runs of an action, a sentence each; none if nothing has."""
    if before.digest == after.digest:
        return ()
    changes = _list_changed_parts(before, after)
    if before.cluster_id != after.cluster_id:
        changes.append(f"another cluster answers: {after.cluster_id}, and no longer {before.cluster_id}")
    earlier = {side.name: side for side in before.sides}
    later = {side.name: side for side in after.sides}
    for name in dict.fromkeys([*earlier, *later]):
        was = earlier[name].now if name in earlier else ()
        now = later[name].now if name in later else ()
        changes += [f"{name}, before: {each}" for each in was if each not in now]
        changes += [f"{name}, now: {each}" for each in now if each not in was]
        effect = later[name].effect if name in later else ""
        if name in earlier and name in later and earlier[name].effect != effect:
            changes.append(f"{name}, would be now: {effect}")
    changes += [f"now: {each}" for each in after.objections if each not in before.objections]
    return tuple(changes) or ("the dry run is another one now",)


def _list_changed_parts(before: ActionPlan, after: ActionPlan) -> list[str]:
    earlier = {part.subject: part for part in before.parts}
    later = {part.subject: part for part in after.parts}
    changes = [f"{name} would be left alone now" for name in earlier if name not in later]
    changes += [f"{name} would not be left alone now" for name in later if name not in earlier]
    for name in earlier.keys() & later.keys():
        changes += [f"{name}: {each}" for each in list_changes(earlier[name], later[name])]
    return sorted(changes)


def describe_state(plan: ActionPlan) -> str:
    """Return the state of each side in one line, for the audit log."""
    return "; ".join(f"{side.name}: {' '.join(side.now)}" for side in plan.sides)
