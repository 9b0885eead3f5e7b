"""Carries out an action whose plan was confirmed, by the code that the command of the same name runs.

Blocking: it runs in a thread of its own. Each call is made once. What the client repeats inside a call, it
repeats by its own rules [CLI-1].
"""

from typing import Final

from tallystick.admin.client import Admin
from tallystick.admin.model import TransactionDescription
from tallystick.admin.txn import completion
from tallystick.admin.txn.transactions import AbortSpec
from tallystick.client.transactions.engine import Completion
from tallystick.client.transactions.prepared import PreparedTxnState
from tallystick.console.actions.config import ActionConfig
from tallystick.console.actions.plan import ActionPlan
from tallystick.console.actions.reader import run_prefix
from tallystick.console.actions.readings import (
    AbortReading,
    PrefixReading,
    Reading,
    ResetReading,
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
)
from tallystick.console.actions.results import (
    MEANINGS,
    ActionOutcome,
    ActionResult,
    classify_error,
    describe_exception,
    report_done,
    report_refusal,
    report_unknown,
)
from tallystick.console.model.transactions import find_views
from tallystick.console.views.texts import format_identity, pluralize
from tallystick.dualwrite.resolve import resolve
from tallystick.dualwrite.rules.recovery import RecoveredId
from tallystick.dualwrite.stores.by_url import open_store
from tallystick.kernel.errors import Effect
from tallystick.spark.protocol.decide import ParticipantOutcome

_ANOTHER: Final = (
    "The state has moved since it was read for the last time: its writer is alive, or someone has ended it."
)


def carry_out(
    config: ActionConfig, request: ActionRequest, reading: Reading, plan: ActionPlan
) -> ActionResult:
    """Carry an action out. What it raises becomes the result.

    Args:
        reading: what the confirmed plan was made of.
    """
    try:
        match request:
            case ResolveRow():
                return _resolve_row(config, request, reading, plan)
            case ResolveRows():
                raise TypeError("several ids are resolved one by one: `split_action`")
            case ResolvePrefix():
                return _resolve_prefix(config, request, reading, plan)
            case AbortPartition():
                return _abort(config, request, reading, plan)
            case ForceTerminate():
                return _force_terminate(config, request, reading, plan)
            case CompleteByState():
                return _complete(config, request, reading)
            case ResetOffsets():
                return _reset(config, request, reading, plan)
    except Exception as exc:  # of clients and database drivers, which have no common base class
        text = _hide_passwords(config, describe_exception(exc))
        return classify_error(exc, text, plan, is_compound=isinstance(request, ResolvePrefix))


def _hide_passwords(config: ActionConfig, text: str) -> str:
    for store in config.stores:
        text = text.replace(store.url, store.name)
    return text


def _resolve_row(
    config: ActionConfig, request: ResolveRow, reading: Reading, plan: ActionPlan
) -> ActionResult:
    name = request.transactional_id
    expectations = {name: _expect_row(request, reading)}
    with open_store(config.find_store(request.store).url) as store:
        (result,) = resolve(store, config.producer_settings, [name], dry_run=False, expectations=expectations)
    if result.error is not None:
        return classify_error(result.error, _hide_passwords(config, result.failure), plan)
    if result.recovered is None or result.failure:
        return report_refusal(result.failure)
    if result.has_changed:
        return report_refusal(str(result.recovered))
    return report_done(str(result.recovered))


def _expect_row(request: ResolveRow, reading: Reading) -> RecoveredId:
    """Return what recovery finds unless something has changed since: a writer may have moved on."""
    if not isinstance(reading, TransactionReading):
        raise TypeError(f"{type(reading).__name__} is no reading of a row")
    views = find_views(reading.snapshot, request.transactional_id)
    if views.store is None:
        raise TypeError("without a row nothing is planned")
    is_open = views.description is not None and views.description.state == "Ongoing"
    return RecoveredId(
        transactional_id=request.transactional_id,
        state=views.store.row.state,
        in_doubt=PreparedTxnState.of(views.writer if is_open else None),
        finding=views.store.finding,
        verdict=views.store.verdict,
        action="",
    )


def _resolve_prefix(
    config: ActionConfig, request: ResolvePrefix, reading: Reading, plan: ActionPlan
) -> ActionResult:
    source = reading.source if isinstance(reading, PrefixReading) else ""
    status = run_prefix(config, request, source=source, dry_run=False)
    open_count = sum(each is ParticipantOutcome.OPEN for each in status.outcomes.values())
    return report_done(
        f"committed {pluralize(open_count, 'transaction')} of the decision, aborted "
        f"{len(status.undecided_ids)} that were in none"
    )


def _abort(config: ActionConfig, request: AbortPartition, reading: Reading, plan: ActionPlan) -> ActionResult:
    case = reading.case if isinstance(reading, AbortReading) else None
    if case is None:
        return report_refusal("No transaction is open there.")
    spec = AbortSpec(
        partition=request.partition, start_offset=request.start_offset, producer=case.transaction.writer
    )
    with Admin(config.admin_settings) as admin:
        if admin.abort_transaction(spec, force=plan.forces):
            return report_done("the ABORT marker was written")
    return report_done("an answer was lost, and the transaction was found ended afterwards")


def _force_terminate(
    config: ActionConfig, request: ForceTerminate, reading: Reading, plan: ActionPlan
) -> ActionResult:
    """Terminate what the plan has shown: the request itself names no transaction."""
    with Admin(config.admin_settings) as admin:
        name = request.transactional_id
        description = admin.describe_transactions([name]).one(name)
        if not _is_unchanged(description, reading):
            return report_refusal(_ANOTHER)
        now = admin.force_terminate_transaction(name, force=plan.forces)
    return report_done(f"terminated; the id has producer id and epoch {format_identity(now)} now")


def _complete(config: ActionConfig, request: CompleteByState, reading: Reading) -> ActionResult:
    state = PreparedTxnState(request.state)
    with Admin(config.admin_settings) as admin:
        plan = completion.plan_completion(admin, request.transactional_id, state)
    if not _is_unchanged(plan.description, reading):
        return report_refusal(_ANOTHER)
    done = completion.complete_by_plan(config.producer_settings, plan)
    if done in (Completion.COMMITTED, Completion.ABORTED):
        return report_done(done.value)
    return report_refusal(
        f"It was ended otherwise meanwhile: {done.value}.", meaning=MEANINGS[ActionOutcome.REFUSED]
    )


def _is_unchanged(description: TransactionDescription, reading: Reading) -> bool:
    """Return whether an id has the same transaction open as when the action was confirmed.

    Its begin counts, too: below `transaction.version` 2 an epoch names many transactions.
    """
    if not isinstance(reading, TransactionReading):
        return False
    before = reading.snapshot.transactions.descriptions[reading.transactional_id]
    return (description.writer, description.state, description.started_ms) == (
        before.writer,
        before.state,
        before.started_ms,
    )


def _reset(config: ActionConfig, request: ResetOffsets, reading: Reading, plan: ActionPlan) -> ActionResult:
    moves = reading.moves if isinstance(reading, ResetReading) else {}
    targets = {at: move.target for at, move in moves.items() if move.target != move.current}
    with Admin(config.admin_settings) as admin:
        answers = admin.alter_group_offsets(request.group_id, targets)
    if not answers.failures:
        return report_done(f"{pluralize(len(targets), 'offset')} committed")
    text = "; ".join(f"{at}: {why.what()}" for at, why in list(answers.failures.items())[:5])
    if any(why.effect is Effect.UNKNOWN for why in answers.failures.values()):
        return report_unknown(text, plan)
    meaning = f"{len(answers.found)} of {len(targets)} offsets were committed."
    return report_refusal(text, meaning=meaning)
