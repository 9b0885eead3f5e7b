"""Plans actions on transactions: from a fresh reading to a dry run. Pure.

What a transaction comes to is decided where the commands have it: `dualwrite.rules.recovery` for the row of a
store, `spark.protocol.decide` for a decision, `admin.txn.hanging` for partitions, `admin.txn.completion` for
a stored state. What is added here is what an operator has to be told before anything is done, and when:

    action                  the other side                                        plan
    resolve                 recovery would commit or abort it                     ready
    resolve                 recovery would do nothing, or must not decide         refused
    resolve several         at least one of them is ready; the others are left alone ready
    resolve a prefix        all that is decided is or can be committed            ready
    resolve a prefix        nothing is open, or a decided one is lost             refused
    complete by a state     the state comes to a commit                           ready
    any abort by hand       nothing objects                                       ready
    any abort by hand       it is in doubt, committed there, or could not be read needs a reason [ACT-2]
    any action              nothing is open                                       refused
"""

from collections.abc import Iterable, Sequence
from typing import Final

from tallystick.admin.model import TransactionDescription
from tallystick.admin.txn.hanging import HARM_BY_VERDICT, AbortHarm
from tallystick.console.actions.offset_planning import plan_reset
from tallystick.console.actions.plan import ActionPlan, Guard, LookUp, PlannedSide, seal_plan
from tallystick.console.actions.readings import (
    AbortReading,
    PrefixReading,
    Reading,
    ResetReading,
    RowsReading,
    TransactionReading,
)
from tallystick.console.actions.request import (
    AbortPartition,
    ActionRequest,
    CompleteByState,
    ForceTerminate,
    ResetOffsets,
    ResolvePrefix,
    ResolveRow,
    ResolveRows,
    format_action_command,
    format_confirmation,
    get_kind,
    get_subject,
)
from tallystick.console.actions.sides import (
    ABORTED,
    FENCED,
    UNCHANGED,
    Effects,
    describe_abort,
    describe_sides,
    explain_nothing_open,
    format_loss,
    limit_lines,
    list_abort_harms,
    list_commit_harms,
    list_failures,
    list_lost_records,
    to_sentence,
    warn_of_lease,
    warn_of_row,
)
from tallystick.console.model import commands
from tallystick.console.model.assessment import StoreSide, TransactionViews, assess
from tallystick.console.model.health import Limits
from tallystick.console.model.snapshot import Snapshot
from tallystick.console.model.transactions import find_views
from tallystick.console.views.texts import format_identity, pluralize
from tallystick.dualwrite.rules.recovery import Verdict
from tallystick.kernel.value import replace
from tallystick.spark.protocol.decide import ParticipantOutcome

_COMMITTED: Final = "It is committed: readers of committed records get what it wrote."
_ROW_EFFECTS: Final = {
    Verdict.COMMIT: "The row is claimed, so that no other writer can change it, and noted as settled.",
    Verdict.ABORT: "The row is claimed, so that no writer can commit to it. Its database never committed "
    "this transaction, and takes nothing back.",
    Verdict.COMPARE: "The row is claimed, and noted as settled afterwards.",
}
_KAFKA_EFFECTS: Final = {
    Verdict.COMMIT: _COMMITTED,
    Verdict.ABORT: ABORTED,
    Verdict.COMPARE: "What is open is committed if it is exactly what the row names, and aborted otherwise.",
}
_AFTER_COMMIT: Final = "CompleteCommit or PrepareCommit"
_AFTER_ABORT: Final = "CompleteAbort or PrepareAbort"
_STATES_AFTER: Final = {
    Verdict.COMMIT: _AFTER_COMMIT,
    Verdict.ABORT: _AFTER_ABORT,
    Verdict.COMPARE: f"{_AFTER_COMMIT}, {_AFTER_ABORT}",
}
_SPARED: Final = (Verdict.NOTHING, Verdict.ALLOW)


def plan_action(request: ActionRequest, reading: Reading, servers: str) -> ActionPlan:
    """Plan an action.

    Args:
        reading: what `ActionReader.read` returns for this request.
        servers: the cluster's address, for commands.
    """
    match request, reading:
        case ResolveRow(), TransactionReading():
            plan = _plan_resolution(request, reading, servers)
        case ResolveRows(), RowsReading():
            plan = _plan_rows(request, reading, servers)
        case ResolvePrefix(), PrefixReading():
            plan = _plan_prefix(request, reading, servers)
        case AbortPartition(), AbortReading():
            plan = _plan_abort(request, reading, servers)
        case ForceTerminate(), TransactionReading():
            plan = _plan_termination(request, reading, servers)
        case CompleteByState(), TransactionReading():
            plan = _plan_completion(request, reading, servers)
        case ResetOffsets(), ResetReading():
            plan = plan_reset(request, reading, servers)
        case _:
            raise TypeError(f"{type(reading).__name__} is no reading for {type(request).__name__}")
    return seal_plan(replace(plan, cluster_id=reading.cluster_id, failures=list_failures(reading)))


def _begin_plan(
    request: ActionRequest, title: str, sides: Sequence[PlannedSide], servers: str, *, force: bool = False
) -> ActionPlan:
    return ActionPlan(
        kind=get_kind(request).value,
        title=f"{title} {get_subject(request)}",
        subject=get_subject(request),
        confirmation=format_confirmation(request),
        sides=tuple(sides),
        forces=force,
        command=format_action_command(request, servers, force=force),
    )


def _refuse(plan: ActionPlan, *objections: str) -> ActionPlan:
    return replace(plan, guard=Guard.REFUSED, objections=objections)


def _ask_for_reason(plan: ActionPlan, objections: Iterable[str]) -> ActionPlan:
    """Return the plan as it is without objections, and with the need of a reason otherwise [ACT-2]."""
    objections = tuple(objections)
    return replace(plan, guard=Guard.REASON, objections=objections) if objections else plan


# ----------------------------------------------------------------------------------- the actions


def _plan_resolution(request: ResolveRow, reading: TransactionReading, servers: str) -> ActionPlan:
    views = find_views(reading.snapshot, request.transactional_id)
    side = views.store
    verdict = None if side is None or side.store.name != request.store else side.verdict
    effects = Effects(
        kafka=UNCHANGED if verdict is None else _KAFKA_EFFECTS.get(verdict, UNCHANGED),
        store=UNCHANGED if verdict is None else _ROW_EFFECTS.get(verdict, UNCHANGED),
    )
    plan = _begin_plan(request, "Resolve", describe_sides(views, reading, effects), servers)
    if side is None or verdict is None:
        return _refuse(plan, _explain_missing_row(request, reading.snapshot, side))
    if verdict in _SPARED:
        return _refuse(plan, f"There is nothing to finish: {side.finding.value}.")
    if verdict not in _KAFKA_EFFECTS:
        return _refuse(plan, assess(views, 0, servers, Limits()).reason)
    is_commit = verdict is Verdict.COMMIT
    return replace(
        plan,
        consequences=() if is_commit else list_lost_records(views, reading),
        cautions=(*warn_of_lease(side), FENCED),
        look_ups=_list_look_ups(views, servers, _STATES_AFTER[verdict]),
    )


def _plan_rows(request: ResolveRows, reading: RowsReading, servers: str) -> ActionPlan:
    """Plan each id by itself. What cannot be resolved is left alone, and said to be."""
    plans = [
        _plan_resolution(
            ResolveRow(transactional_id=each.transactional_id, store=request.store), each, servers
        )
        for each in reading.readings
    ]
    parts = tuple(
        seal_plan(replace(plan, cluster_id=reading.cluster_id)) for plan in plans if plan.guard is Guard.READY
    )
    left = [
        f"{plan.subject} is left alone: {' '.join(plan.objections)}"
        for plan in plans
        if plan.guard is not Guard.READY
    ]
    ids = tuple(part.subject for part in parts)
    command = commands.resolve_store_command(servers, request.store, *ids)
    plan = replace(
        _begin_plan(request, "Resolve", (), servers),
        title=f"Resolve {pluralize(len(parts), 'transaction')} of {request.store}",
        confirmation=str(len(parts)),
        cautions=(*left, FENCED),
        command=command,
        look_ups=(LookUp(command=f"{command} --dry-run", meaning="NOTHING as its verdict: it was done."),),
        parts=parts,
    )
    return plan if parts else _refuse(plan, "None of them can be resolved.")


def _explain_missing_row(request: ResolveRow, snapshot: Snapshot, side: StoreSide | None) -> str:
    store = next((each for each in snapshot.stores if each.name == request.store), None)
    if store is None:
        return f"{request.store} is no store of this console."
    if not store.status.is_complete:
        return f"{store.name} could not be read: {'; '.join(store.status.failures)}."
    if side is None:
        return f"{store.name} has no row of {request.transactional_id}."
    return f"The row that counts is the one in {side.store.name}."


def _plan_termination(request: ForceTerminate, reading: TransactionReading, servers: str) -> ActionPlan:
    views = find_views(reading.snapshot, request.transactional_id)
    description = views.description
    effects = describe_abort(views)
    in_doubt = description is not None and description.in_doubt
    sides = describe_sides(views, reading, effects)
    plan = _begin_plan(request, "Force-terminate", sides, servers, force=in_doubt)
    if description is None or description.state != "Ongoing":
        return _refuse(plan, explain_nothing_open(views))
    plan = replace(
        plan,
        consequences=list_lost_records(views, reading),
        cautions=warn_of_row(views.store),
        look_ups=_list_look_ups(views, servers, f"Empty, {_AFTER_ABORT}"),
    )
    return _ask_for_reason(plan, (*_list_doubts(views), *list_abort_harms(views, reading.snapshot)))


def _list_doubts(views: TransactionViews) -> tuple[str, ...]:
    """Return the objection to any abort by hand of what may be prepared [ACT-2]."""
    in_doubt = views.description is not None and views.description.in_doubt
    return (to_sentence(AbortHarm.IN_DOUBT.value),) if in_doubt else ()


def _plan_completion(request: CompleteByState, reading: TransactionReading, servers: str) -> ActionPlan:
    views = find_views(reading.snapshot, request.transactional_id)
    outlook = reading.completion
    is_commit = outlook is not None and outlook.outcome == "commit"
    effects = Effects(kafka=_COMMITTED) if is_commit else describe_abort(views)
    if outlook is None or not outlook.sends_request:
        effects = Effects(kafka=UNCHANGED)
    plan = _begin_plan(request, "Complete", describe_sides(views, reading, effects), servers)
    if outlook is None:
        return _refuse(plan, explain_nothing_open(views))
    by_state = f"By state {request.state}" if request.state else "By the empty state"
    if not outlook.sends_request:
        return _refuse(plan, f"{by_state}: {outlook.text}.")
    objections = list_commit_harms(views)
    if not is_commit:
        objections = (*_list_doubts(views), *list_abort_harms(views, reading.snapshot))
    plan = replace(
        plan,
        consequences=() if is_commit else list_lost_records(views, reading),
        cautions=(f"{by_state}: {outlook.text}.", FENCED),
        look_ups=_list_look_ups(views, servers, _AFTER_COMMIT if is_commit else _AFTER_ABORT),
    )
    return _ask_for_reason(plan, objections)


def _plan_abort(request: AbortPartition, reading: AbortReading, servers: str) -> ActionPlan:
    case, owner = reading.case, reading.owner
    name = f"Kafka, {request.partition}"
    if case is None:
        side = PlannedSide(name=name, now=(f"Not open: {reading.missing}.",), effect=UNCHANGED)
        plan = _begin_plan(request, "Abort the transaction in", [side], servers)
        return _refuse(plan, f"No transaction is open there from offset {request.start_offset} on.")
    harm = HARM_BY_VERDICT[case.verdict]
    transaction = case.transaction
    side = PlannedSide(
        name=name,
        now=(
            f"Open from offset {transaction.start_offset}, producer {format_identity(transaction.writer)}.",
            to_sentence(f"{case.verdict.value}: {case.finding.value}"),
        ),
        effect="An ABORT marker is written here, and not by the coordinator: what the transaction wrote here "
        "will never be read by readers of committed records.",
    )
    views = None if owner is None else find_views(owner.snapshot, owner.transactional_id)
    others = (
        []
        if views is None or owner is None
        else describe_sides(views, owner, describe_abort(views, UNCHANGED))
    )
    plan = _begin_plan(
        request, "Abort the transaction in", [side, *others], servers, force=harm is not AbortHarm.NOTHING
    )
    look_up = LookUp(
        command=commands.describe_producers_command(servers, request.partition),
        meaning=f"Producer {transaction.writer.producer_id} without a CurrentTransactionStartOffset of "
        f"{transaction.start_offset}: it was aborted. With it: it was not.",
    )
    plan = replace(
        plan,
        consequences=format_loss(transaction, reading.end),
        cautions=() if reading.guarded else (_UNGUARDED,),
        look_ups=(look_up,),
    )
    harms = () if harm is AbortHarm.NOTHING else (to_sentence(harm.value),)
    committed = () if views is None or owner is None else list_abort_harms(views, owner.snapshot)
    return _ask_for_reason(plan, (*harms, *committed))


_UNGUARDED: Final = (
    "This broker does not check the start offset. It is read again immediately before the abort; a "
    "transaction that begins in between would be aborted instead."
)


def _plan_prefix(request: ResolvePrefix, reading: PrefixReading, servers: str) -> ActionPlan:
    decision = reading.decision
    now = ["Nothing is decided under the prefix." if decision is None else f"Last decision: {decision}."]
    if decision is not None:
        now.append(f"It is number {decision.number}, nonce {decision.nonce}.")
    open_ids = [name for name, each in reading.outcomes.items() if each is ParticipantOutcome.OPEN]
    kafka = PlannedSide(
        name="Kafka",
        now=limit_lines(
            [
                *(f"{name}: {outcome.value}." for name, outcome in reading.outcomes.items()),
                *(f"{name}: open, and in no decision." for name in reading.undecided_ids),
            ]
        )
        or ("Nothing of it is open.",),
        effect=f"Committed: {pluralize(len(open_ids), 'transaction')} of the decision. Aborted: "
        f"{len(reading.undecided_ids)} that are in no decision.",
    )
    spark = PlannedSide(
        name=f"Spark, {reading.source}",
        now=tuple(now),
        effect="The prefix is claimed, which fences the query if it is alive: it stops. The decision is "
        "noted as complete.",
    )
    topic = reading.source if request.store is None else ""
    command = commands.resolve_prefix_command(servers, request.prefix, store=request.store or "", topic=topic)
    plan = _begin_plan(request, "Resolve the prefix", [kafka, spark], servers)
    plan = replace(plan, command=command)
    if reading.lost_ids:
        return _refuse(
            plan,
            f"{len(reading.lost_ids)} decided transactions are lost, {reading.lost_ids[0]} for one: rows may "
            "be missing. Compare the topic with the source of that batch first; the command line can accept "
            "the loss (--retire).",
        )
    if not reading.outcomes and not reading.undecided_ids:
        return _refuse(plan, "Nothing of this prefix is open.")
    look_up = LookUp(
        command=f"{command} --dry-run",
        meaning="No row with 'to be committed' or 'in no decision': it was done. Otherwise run it again: "
        "what was done is not done twice.",
    )
    again = (
        ("Rows in no decision are written again when the query is started.",) if reading.undecided_ids else ()
    )
    ids = " ".join([*reading.outcomes, *reading.undecided_ids])  # those that are not listed count as well
    return replace(plan, consequences=again, look_ups=(look_up,), fingerprint=ids)


def _list_look_ups(views: TransactionViews, servers: str, states: str) -> tuple[LookUp, ...]:
    """Return how to find out whether an action took effect.

    Args:
        states: those of the id's coordinator that tell so.
    """
    return (
        LookUp(
            command=commands.describe_command(servers, views.transactional_id or ""),
            meaning=f"{states}: it was done. {_format_before(views.description)}: it was not, and a new dry "
            "run tells whether to try again. Ongoing with another producer epoch: it was ended, and a writer "
            "has begun another one.",
        ),
    )


def _format_before(description: TransactionDescription | None) -> str:
    if description is None:
        return "As before"
    return f"{description.state} with producer id and epoch {format_identity(description.writer)}"
