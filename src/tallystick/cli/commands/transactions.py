"""`tallystick transactions`: open and hanging transactions, and how to end them (KIP-664, KIP-939).

Subcommands, options and columns are those of Kafka's `kafka-transactions.sh`, with the spellings of the KIPs
as aliases, and more: see docs/adr/0020. Works on any Kafka cluster.
"""

from datetime import UTC, datetime
from typing import Annotated, Final

import typer

from tallystick.admin.client import Admin
from tallystick.admin.errors import NothingOpen
from tallystick.admin.model import AbortCause, ForcedOutcome, TransactionDescription
from tallystick.admin.txn import completion
from tallystick.admin.txn.hanging import HangingCase, HangingVerdict, compute_idle_ms
from tallystick.admin.txn.transactions import AbortPlan, AbortSpec
from tallystick.cli.audit import AuditLog, write_audit_lines
from tallystick.cli.cluster_command import (
    ClusterTarget,
    confirm,
    create_app,
    report_failures,
    select_role_settings,
)
from tallystick.cli.commands.resolve import resolve_command
from tallystick.cli.exits import ExitCode, print_error, print_failure
from tallystick.cli.settings import ModeOption, add_modes
from tallystick.cli.subjects import choose_name, merge_names
from tallystick.cli.tables import OutputFormat, Row
from tallystick.cli.terminal_text import make_printable
from tallystick.client.transactions.prepared import BadPreparedTxnState, PreparedTxnState
from tallystick.kernel.clock import SystemClock
from tallystick.kernel.ids import INT16_MAX, ProducerEpoch, ProducerId, ProducerIdAndEpoch, TopicPartition
from tallystick.protocol.transaction_history import (
    STATES_BY_LABEL,
    TransactionTransition,
    TransitionKind,
)

app = create_app("See transactions, find what hangs, decide and end them.")

_MINUTE_MS: Final = 60_000
_LAST_TIME_MS: Final = 253_402_300_799_999  # of the year 9999

_LIST_COLUMNS: Final = ("TransactionalId", "Coordinator", "ProducerId", "TransactionState")
_DESCRIBE_COLUMNS: Final = (
    "CoordinatorId", "TransactionalId", "ProducerId", "ProducerEpoch", "TransactionState",
    "TransactionTimeoutMs", "CurrentTransactionStartTimeMs", "TransactionDurationMs", "TopicPartitions",
)  # fmt: skip
_PRODUCER_COLUMNS: Final = (
    "ProducerId", "ProducerEpoch", "LatestCoordinatorEpoch", "LastSequence", "LastTimestamp",
    "CurrentTransactionStartOffset",
)  # fmt: skip
_HANGING_COLUMNS: Final = (
    "Verdict", "Topic", "Partition", "ProducerId", "ProducerEpoch", "CoordinatorEpoch", "StartOffset",
    "LastTimestamp", "Duration(min)", "TransactionalId", "Why",
)  # fmt: skip
_FORCED_COLUMNS: Final = ("ProducerId", "ProducerEpoch", "AbortCause", "TimestampMs", "TopicPartition")

_HISTORY_COLUMNS: Final = (
    "Time", "Transition", "State", "ProducerId", "ProducerEpoch", "Partitions", "ClientId", "Address",
)  # fmt: skip

_EXIT_BY_OUTCOME: Final = {
    completion.CompletionOutcome.LOST: ExitCode.FAILED,
    completion.CompletionOutcome.BEHIND: ExitCode.FAILED,
    completion.CompletionOutcome.UNKNOWN: ExitCode.NOTHING_OPEN,
}
_RESULT_BY_STATE: Final = {"CompleteCommit": "committed", "CompleteAbort": "aborted"}

Topic = Annotated[str | None, typer.Argument(metavar="TOPIC", show_default=False)]
TopicOption = Annotated[str | None, typer.Option("--topic", help="The same as TOPIC.")]
Partition = Annotated[int, typer.Option("--partition", min=0, help="The partition of it.")]
TransactionalId = Annotated[str | None, typer.Argument(metavar="ID", show_default=False)]
IdOption = Annotated[
    str | None, typer.Option("--transactional-id", "--transactionalId", help="The same as ID.")
]
Broker = Annotated[int | None, typer.Option("--broker", "--broker-id", help="Ask this broker's replicas.")]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")]
Force = Annotated[bool, typer.Option("--force", help="Even if it breaks what others rely on.")]


@app.command("list")
def list_(
    context: typer.Context,
    *,
    coordinator: Annotated[list[int] | None, typer.Option(help="Only of this broker; repeatable.")] = None,
    longer_than_ms: Annotated[
        int | None,
        typer.Option(
            "--duration-filter", "--runningLongerThanMs", "--running-longer-than-ms", min=0,
            help="Open for longer than this many milliseconds.",
        ),
    ] = None,
    pattern: Annotated[
        str | None, typer.Option("--transactional-id-pattern", help="Of whole ids, in RE2's dialect.")
    ] = None,
    state: Annotated[list[str] | None, typer.Option(help="Only in this state; repeatable.")] = None,
    producer_id: Annotated[list[int] | None, typer.Option(help="Only of this producer; repeatable.")] = None,
) -> None:  # fmt: skip
    """List transactional ids and their states."""
    at: ClusterTarget = context.obj
    unknown = [each for each in state or () if each not in STATES_BY_LABEL]
    if unknown:
        raise typer.BadParameter(f"--state {', '.join(unknown)}: is not one of {', '.join(STATES_BY_LABEL)}")
    with at.open_admin() as admin:
        answers = admin.list_transactions(
            states=state or (),
            producer_ids=producer_id or (),
            longer_than_ms=longer_than_ms,
            transactional_id_pattern=pattern,
            coordinators=coordinator,
        )
    rows: list[Row] = [
        {
            "TransactionalId": each.transactional_id,
            "Coordinator": each.coordinator,
            "ProducerId": each.producer_id,
            "TransactionState": each.state,
        }
        for some in answers.found.values()
        for each in some
    ]
    at.print_rows(_LIST_COLUMNS, rows, failed=bool(answers.failures))
    raise typer.Exit(report_failures({f"broker {node}": why for node, why in answers.failures.items()}))


@app.command()
def describe(
    context: typer.Context,
    ids: Annotated[list[str] | None, typer.Argument(metavar="ID", show_default=False)] = None,
    *,
    transactional_id: Annotated[
        list[str] | None,
        typer.Option("--transactional-id", "--transactionalId", help="The same as ID; repeatable."),
    ] = None,
    history: Annotated[bool, typer.Option("--history", help="What has happened to it, too.")] = False,
) -> None:
    """Show a transactional id as its coordinator knows it.

    On tallystick's broker also its forced outcomes and, with --history, its last transitions.
    """
    at: ClusterTarget = context.obj
    names = merge_names(context, ids, transactional_id, "ID")
    with at.open_admin() as admin:
        answers = admin.describe_transactions(names, history=history)
    now_ms = SystemClock().now_ms()
    if answers.found:
        at.print_rows(
            _DESCRIBE_COLUMNS, [_format_description(each, now_ms) for each in answers.found.values()]
        )
    if at.output is OutputFormat.TABLE:
        for each in answers.found.values():
            if each.forced_outcomes:
                print(
                    f"\nEnded without its client's decision, under {make_printable(each.transactional_id)}:"
                )
                at.print_rows(
                    _FORCED_COLUMNS, [_format_forced_outcome(outcome) for outcome in each.forced_outcomes]
                )
            if history:
                _print_history(at, each)
    for name, failure in answers.failures.items():
        print_failure(name, failure.what(), ExitCode.FAILED)
    raise typer.Exit(ExitCode.FAILED if answers.failures else ExitCode.DONE)


@app.command()
def describe_producers(
    context: typer.Context,
    topic: Topic = None,
    *,
    topic_option: TopicOption = None,
    partition: Partition,
    broker: Broker = None,
) -> None:
    """Show a partition's producers and open transactions."""
    at: ClusterTarget = context.obj
    name = choose_name(context, topic, topic_option, "TOPIC", rest="--partition PARTITION")
    topic_partition = TopicPartition(name, partition)
    with at.open_admin() as admin:
        states = admin.describe_producers([topic_partition], broker=broker).one(topic_partition)
    rows: list[Row] = [
        {
            "ProducerId": state.identity.producer_id,
            "ProducerEpoch": state.identity.epoch,
            "LatestCoordinatorEpoch": -1 if state.coordinator_epoch is None else state.coordinator_epoch,
            "LastSequence": -1 if state.last_sequence is None else state.last_sequence,
            "LastTimestamp": -1 if state.last_timestamp_ms is None else state.last_timestamp_ms,
            "CurrentTransactionStartOffset": state.txn_start_offset,
        }
        for state in states
    ]
    at.print_rows(_PRODUCER_COLUMNS, rows)


@app.command()
def find_hanging(
    context: typer.Context,
    *,
    topic: Annotated[str | None, typer.Option("--topic", help="Only in this one.")] = None,
    partition: Annotated[int | None, typer.Option(min=0, help="Only in this one of --topic.")] = None,
    broker: Broker = None,
    limit_min: Annotated[
        int, typer.Option("--max-transaction-timeout", min=0, help="Minutes a transaction may be open.")
    ] = 15,
) -> None:
    """Find transactions open for too long.

    Exit code 3 if one hangs, which means that nothing will end it.
    """
    if partition is not None and topic is None:
        raise typer.BadParameter("--partition needs --topic")
    at: ClusterTarget = context.obj
    with at.open_admin() as admin:
        report = admin.find_hanging_transactions(
            topic=topic, partition=partition, broker=broker, limit_ms=limit_min * _MINUTE_MS
        )
    now_ms = SystemClock().now_ms()
    at.print_rows(
        _HANGING_COLUMNS, [_format_case(each, now_ms) for each in report.cases], failed=bool(report.failures)
    )
    code = report_failures(report.failures)
    if not report.complete and code is ExitCode.DONE:
        code = print_error("coordinators moved during the request: try again", ExitCode.INCOMPLETE)
    if any(case.verdict in (HangingVerdict.HANGING, HangingVerdict.CONTRADICTION) for case in report.cases):
        code = ExitCode.HANGING
    raise typer.Exit(code)


@app.command()
def abort(
    context: typer.Context,
    topic: Topic = None,
    *,
    topic_option: TopicOption = None,
    partition: Partition,
    start_offset: Annotated[int | None, typer.Option(min=0, help="Where the transaction begins.")] = None,
    producer_id: Annotated[int | None, typer.Option(min=0, help="Whose it is.")] = None,
    producer_epoch: Annotated[int | None, typer.Option(min=0, max=INT16_MAX, help="And its epoch.")] = None,
    coordinator_epoch: Annotated[int | None, typer.Option(help="As describe-producers told.")] = None,
    yes: Yes = False,
    force: Force = False,
    audit_log: AuditLog = None,
) -> None:
    """End one transaction, in one partition, if it hangs.

    The marker does not come from its coordinator. Anything but a hanging transaction is refused without
    --force.
    """
    name = choose_name(
        context, topic, topic_option, "TOPIC", rest="--partition PARTITION --start-offset OFFSET"
    )
    producer_options = (producer_id, producer_epoch, coordinator_epoch)
    if (start_offset is None) == (None in producer_options) or (
        start_offset is not None and producer_options != (None,) * 3
    ):
        raise typer.BadParameter(
            "give either --start-offset, or --producer-id, --producer-epoch and --coordinator-epoch"
        )
    at: ClusterTarget = context.obj
    spec = AbortSpec(
        partition=TopicPartition(name, partition),
        start_offset=start_offset,
        producer=None if producer_id is None else _to_identity(producer_id, producer_epoch or 0),
        coordinator_epoch=coordinator_epoch,
    )
    with write_audit_lines(audit_log), at.open_admin() as admin:
        plan = admin.plan_abort(spec)
        transaction = plan.transaction
        typer.echo(_format_abort_plan(plan), err=True)
        if force or plan.breaks.name == "NOTHING":
            confirm(f"Abort it in {transaction.partition}?", yes=yes)
        marker_written = admin.abort_transaction(plan, force=force)
    row: Row = {
        "Topic": name,
        "Partition": partition,
        "ProducerId": transaction.writer.producer_id,
        "ProducerEpoch": transaction.writer.epoch,
        "StartOffset": transaction.start_offset,
        "Guarded": plan.guarded,
        "Result": "aborted" if marker_written else "ended: an answer was lost, and it is no longer open",
    }
    at.print_rows(tuple(row), [row])


@app.command("forceTerminateTransaction", hidden=True)
@app.command()
def force_terminate(
    context: typer.Context,
    transactional_id: TransactionalId = None,
    *,
    id_option: IdOption = None,
    yes: Yes = False,
    force: Force = False,
    audit_log: AuditLog = None,
) -> None:
    """Abort a transactional id's open transaction.

    In all partitions, and fence its producer (KIP-939). A prepared transaction is refused without --force.
    """
    at: ClusterTarget = context.obj
    name = choose_name(context, transactional_id, id_option, "ID")
    with write_audit_lines(audit_log), at.open_admin() as admin:
        description = admin.describe_transactions([name]).one(name)
        partitions = ", ".join(sorted(map(str, description.partitions)))
        loss = f", open in: {partitions}. What it wrote there will never be read by read_committed consumers"
        typer.echo(
            f"{name!r} is {description.state}{loss if partitions else ', and nothing of it is open'}. "
            "Its producer is fenced until it is initialised again.",
            err=True,
        )
        if force or not description.in_doubt:
            confirm(f"Terminate {name!r}?", yes=yes)
        _check_unchanged(admin, description)
        now = admin.force_terminate_transaction(name, force=force)
    row: Row = {
        "TransactionalId": name,
        "ProducerId": now.producer_id,
        "ProducerEpoch": now.epoch,
        "Result": "terminated",
    }
    at.print_rows(tuple(row), [row])


@app.command()
def complete(
    context: typer.Context,
    transactional_id: Annotated[str, typer.Argument(metavar="TRANSACTIONAL_ID", show_default=False)],
    state: Annotated[
        str, typer.Argument(metavar="STATE", show_default=False, help="As it was stored; '' for none.")
    ],
    *,
    mode: ModeOption = None,
    yes: Yes = False,
    audit_log: AuditLog = None,
) -> None:
    """Decide a prepared transaction by its stored STATE.

    It is committed if STATE names exactly that transaction, and aborted otherwise (KIP-939).

    Exit code 6 when nothing is open and its outcome is unknown, 1 when it was aborted before.
    """
    at: ClusterTarget = context.obj
    try:
        prepared = PreparedTxnState(state)
    except BadPreparedTxnState as exc:
        raise typer.BadParameter(f"STATE: {exc}") from exc
    with write_audit_lines(audit_log):
        with at.open_admin() as admin:
            decision = completion.plan_completion(admin, transactional_id, prepared)
            typer.echo(_format_completion_plan(decision), err=True)
            if decision.outcome.sends_request:
                confirm(f"{decision.outcome.name.capitalize()} it?", yes=yes)
                _check_unchanged(admin, decision.description)
        result = decision.outcome.name.lower()
        if decision.outcome.sends_request:
            config = add_modes(select_role_settings("producer", at.config), mode or (), prepares=False)
            result = completion.complete_by_plan(config, decision).value
    writer = decision.description.writer
    row: Row = {
        "TransactionalId": transactional_id,
        "ProducerId": writer.producer_id,
        "ProducerEpoch": writer.epoch,
        "FoundState": decision.description.state,
        "State": str(prepared),
        "Result": result,
    }
    at.print_rows(tuple(row), [row])
    raise typer.Exit(_EXIT_BY_OUTCOME.get(decision.outcome, ExitCode.DONE))


def _check_unchanged(admin: Admin, before: TransactionDescription) -> None:
    """Refuse to end what has begun since the question. Raises: NothingOpen, as what was shown has ended."""
    now = admin.describe_transactions([before.transactional_id]).one(before.transactional_id)
    if (now.writer, now.state, now.started_ms) != (before.writer, before.state, before.started_ms):
        state = f"since it was shown, the id has become {now.state}, producer {now.writer}: nothing was done"
        raise NothingOpen(before.transactional_id, f"of producer {before.writer}", state)


app.command("resolve", short_help="Finish what the writers of a database left open.")(resolve_command)


# -------------------------------------------------------------------------------- as rows


def _format_description(each: TransactionDescription, now_ms: int) -> Row:
    open_ms = None if each.started_ms is None or not each.partitions else now_ms - each.started_ms
    return {
        "CoordinatorId": each.coordinator,
        "TransactionalId": each.transactional_id,
        "ProducerId": each.writer.producer_id,
        "ProducerEpoch": each.writer.epoch,
        "TransactionState": each.state,
        "TransactionTimeoutMs": each.timeout_ms,
        "CurrentTransactionStartTimeMs": each.started_ms,
        "TransactionDurationMs": open_ms,
        "TopicPartitions": sorted(map(str, each.partitions)),
        "Superseded": None if each.superseded is None else str(each.superseded),
        "ForcedOutcomes": [_format_forced_outcome(outcome) for outcome in each.forced_outcomes],
        "History": None if each.history is None else [_format_transition(step) for step in each.history],
    }


def _print_history(at: ClusterTarget, described: TransactionDescription) -> None:
    if described.history is None:
        print(f"\n{described.transactional_id}: its broker keeps no history.")
        return
    print(f"\nHistory of {described.transactional_id}, oldest first:")
    rows = [_format_transition(step) for step in described.history]
    at.print_rows(_HISTORY_COLUMNS, [{name: _escape(value) for name, value in row.items()} for row in rows])


def _format_transition(step: TransactionTransition) -> Row:
    kind = step.kind.name.lower() if isinstance(step.kind, TransitionKind) else step.kind
    return {
        "Time": _format_time(step.at_ms),
        "TimestampMs": step.at_ms,
        "Transition": kind,
        "State": step.state,
        "ProducerId": None if step.producer is None else step.producer.producer_id,
        "ProducerEpoch": None if step.producer is None else step.producer.epoch,
        "Partitions": step.partition_count,
        "ClientId": step.client_id,
        "Address": step.address,
    }


def _format_time(at_ms: int) -> str:
    if not 0 <= at_ms <= _LAST_TIME_MS:
        return str(at_ms)
    return datetime.fromtimestamp(at_ms / 1000, UTC).isoformat(sep=" ", timespec="milliseconds")


def _escape(value: object) -> object:
    """Return a value without what a terminal would obey: clients name themselves as they like."""
    is_harmless = not isinstance(value, str) or value.isprintable()
    return value if is_harmless else str(value).encode("unicode_escape").decode("ascii")


def _format_forced_outcome(each: ForcedOutcome) -> Row:
    return {
        "ProducerId": each.writer.producer_id,
        "ProducerEpoch": each.writer.epoch,
        "AbortCause": each.cause.name.lower() if isinstance(each.cause, AbortCause) else each.cause,
        "TimestampMs": each.at_ms,
        "TopicPartition": None if each.partition is None else str(each.partition),
    }


def _format_case(case: HangingCase, now_ms: int) -> Row:
    transaction, description = case.transaction, case.description
    since = case.open_ms if case.open_ms is not None else compute_idle_ms(transaction, now_ms)
    return {
        "Verdict": case.verdict.value,
        "Topic": transaction.partition.topic,
        "Partition": transaction.partition.partition,
        "ProducerId": transaction.writer.producer_id,
        "ProducerEpoch": transaction.writer.epoch,
        "CoordinatorEpoch": -1 if transaction.coordinator_epoch is None else transaction.coordinator_epoch,
        "StartOffset": transaction.start_offset,
        "LastTimestamp": transaction.last_timestamp_ms,
        "Duration(min)": None if since is None else since // _MINUTE_MS,
        "TransactionalId": None if description is None else description.transactional_id,
        "Why": case.finding.value,
    }


def _format_completion_plan(decision: completion.CompletionPlan) -> str:
    description, state = decision.description, decision.state
    subject = f"{description.transactional_id!r} is {description.state}"
    state_text = f"state {state}" if state else "the empty state"
    partitions = ", ".join(sorted(map(str, description.partitions))) or "no partition"
    lines = [
        f"{subject}, producer {description.writer}, open in: {partitions}.",
        f"By {state_text}: {decision.outcome.value}.",
    ]
    if decision.outcome is completion.CompletionOutcome.UNKNOWN and description.state in _RESULT_BY_STATE:
        lines.append(
            f"The last transaction of the id was {_RESULT_BY_STATE[description.state]}: this one, "
            "if none came after it."
        )
    if decision.outcome.sends_request:
        lines.append("Earlier producers of the id are fenced by this.")
    if decision.outcome is completion.CompletionOutcome.ABORT:
        lines.append("What it wrote there will never be read by read_committed consumers.")
    return "\n".join(lines)


def _format_abort_plan(plan: AbortPlan) -> str:
    transaction, description = plan.transaction, plan.case.description
    owner = (
        "no coordinator knows it"
        if description is None
        else f"of {description.transactional_id!r}, {description.state}"
    )
    subject = f"the transaction at offset {transaction.start_offset} of producer {transaction.writer}"
    lines = [
        f"{transaction.partition}: {subject}, {owner}: {plan.case.verdict.value}.",
        "What it wrote there will never be read by read_committed consumers.",
    ]
    if not plan.guarded:
        lines.append(
            "This broker does not check the start offset. It is read again immediately before the "
            "abort; a transaction that begins in between would be aborted instead."
        )
    return "\n".join(lines)


def _to_identity(producer_id: int, epoch: int) -> ProducerIdAndEpoch:
    return ProducerIdAndEpoch(ProducerId(producer_id), ProducerEpoch(epoch))
