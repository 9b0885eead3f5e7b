"""`tallystick transactions resolve --accept-mixed`: accepts that a transaction has ended in two ways.

Nothing is repaired by it, so what is lost is shown first, as far as it can be learned, and the id has to be
typed. Without a terminal `--confirm ID` stands for the typing: `--yes` is also what a script or a habit adds
to every command, and says nothing about which transaction was looked at.
"""

import logging
import sys
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from tallystick.admin.client import Admin
from tallystick.admin.model import TransactionDescription
from tallystick.admin.txn.written import FIND_LIMIT_S, WrittenRecords, WrittenSpec, find_written
from tallystick.cli.audit import write_audit_lines
from tallystick.cli.cluster_command import ClusterTarget, select_role_settings
from tallystick.cli.exits import ExitCode, print_error, print_failure
from tallystick.cli.tables import Row
from tallystick.client.blocking.thread import engine_thread
from tallystick.client.errors import ClientError
from tallystick.dualwrite.resolve import accept_mixed, describe_error, resolve
from tallystick.dualwrite.rules.model import StoredState
from tallystick.dualwrite.rules.recovery import Finding, RecoveredId, Verdict
from tallystick.dualwrite.stores.base import Store
from tallystick.kernel.ids import INT16_MAX
from tallystick.kernel.settings import BadConfig

_COLUMNS: Final = ("TransactionalId", "Half", "Transaction", "Outcome", "Partition", "Offsets", "Records")
KEYS_MAX: Final = 10

AcceptOption = Annotated[
    bool,
    typer.Option(
        "--accept-mixed",
        "--accept-torn",
        help="With --transactional-id: show what one broken transaction has lost, and accept it.",
    ),
]
ConfirmOption = Annotated[
    str | None,
    typer.Option("--confirm", metavar="ID", help="With --accept-mixed: the id, instead of typing it."),
]

_LOSSES: Final[Mapping[Finding, str]] = {
    Finding.FORCED: "the records: the rows are in the database, and no reader of committed records will "
    "ever see what is aborted above",
    Finding.OVERRULED: "the records, if they are aborted above: the rows are in the database, and no reader "
    "of committed records will ever see them",
    Finding.BEHIND: "the rows: readers have the records that are committed above, and the database does not "
    "have what belongs to them",
    Finding.UNKNOWN_HERE: "what is open above: it will be aborted. If another database has committed it, its "
    "rows stay without their records",
}
_REPAIRS: Final[Mapping[Finding, str]] = {
    Finding.FORCED: "send those records again, or take the rows back",
    Finding.OVERRULED: "send those records again, or take the rows back",
    Finding.BEHIND: "write those rows again, or make up for the records",
    Finding.UNKNOWN_HERE: "be sure that no other database has written under the id",
}
_REFUSALS: Final[Mapping[Verdict | None, tuple[str, ExitCode]]] = {
    Verdict.HALT: ("neither commit nor abort is right, and accepting it would hide that", ExitCode.REFUSED),
    Verdict.COMMIT: ("nothing is broken: without --accept-mixed it is committed", ExitCode.REFUSED),
    Verdict.ABORT: ("nothing is broken: without --accept-mixed it is aborted", ExitCode.REFUSED),
    Verdict.COMPARE: ("the cluster does not show how it ended to this user", ExitCode.REFUSED),
    Verdict.NOTHING: ("nothing is broken", ExitCode.NOTHING_OPEN),
    Verdict.ALLOW: ("nothing is broken that could be proven", ExitCode.NOTHING_OPEN),
}


def check_options(
    ids: Sequence[str], *, confirmed: str | None, yes: bool, others: Mapping[str, bool]
) -> None:
    """Check what goes together with `--accept-mixed`. Raises: BadConfig."""
    wrong = [name for name, is_given in others.items() if is_given]
    if wrong:
        raise BadConfig(f"--accept-mixed: cannot be combined with {', '.join(wrong)}")
    if len(ids) != 1:
        raise BadConfig("--accept-mixed: name one transaction with --transactional-id ID")
    if yes:
        raise BadConfig("--accept-mixed: --yes does not confirm a loss; give --confirm ID")
    if confirmed is not None and confirmed != ids[0]:
        raise BadConfig(f"--confirm {confirmed}: is not the id of --transactional-id, {ids[0]}")


def run_accept_mixed(
    at: ClusterTarget,
    store: Store[Any],
    config: Mapping[str, object],
    transactional_id: str,
    *,
    confirmed: str | None,
    dry_run: bool,
    audit_log: Path | None,
) -> ExitCode:
    """Show what is lost, have it confirmed, and accept it."""
    (look,) = resolve(store, config, [transactional_id], dry_run=True)
    line = look.recovered
    if line is None:
        return print_failure(transactional_id, look.failure, ExitCode.FAILED)
    text = f"{line.finding.value} [{line.finding.name}]"
    if line.finding not in _LOSSES:
        why, code = _REFUSALS[line.verdict]
        return print_failure(transactional_id, f"{text}: {why}; nothing was done", code)
    _show_loss(at, store, line)
    if dry_run:
        return ExitCode.HANGING
    if not _is_confirmed(transactional_id, confirmed):
        return print_error("not confirmed; nothing was done", ExitCode.REFUSED)
    # The recovery logs what it accepts, which was shown; a handler keeps it from being printed again.
    logging.getLogger("tallystick.dualwrite").addHandler(logging.NullHandler())
    with write_audit_lines(audit_log):
        result = accept_mixed(store, config, transactional_id, line)
    if result.failure:
        code = ExitCode.HANGING if result.is_contradiction else ExitCode.FAILED
        return print_failure(transactional_id, result.failure, code)
    action = "" if result.recovered is None else result.recovered.action
    ending = f": {action}" if line.finding is Finding.UNKNOWN_HERE else ""
    typer.echo(f"{transactional_id}: accepted{ending}; its writers can go on.", err=True)
    return ExitCode.DONE


def _is_confirmed(transactional_id: str, confirmed: str | None) -> bool:
    if confirmed is not None:
        return True  # `check_options` has compared it
    if not sys.stdin.isatty():
        print_error("there is no terminal to ask on: give the id once more as --confirm ID", ExitCode.REFUSED)
        return False
    answer: str = typer.prompt(
        "Type the transactional id to accept this", default="", show_default=False, err=True
    )
    return answer.strip() == transactional_id


def _show_loss(at: ClusterTarget, store: Store[Any], line: RecoveredId) -> None:
    """Print both halves, and what accepting means."""
    name = line.transactional_id
    row = store.read_state(name) or StoredState(transactional_id=name, owner="")
    records, unread = _find_records(at, line, row)
    rows = [_format_database(line, row), *_format_records(name, records)]
    at.print_rows(_COLUMNS, rows)
    texts = [f"{name}: {line.finding.value} [{line.finding.name}].", f"Lost: {_LOSSES[line.finding]}."]
    keys = _find_keys(store, row) if line.verdict is Verdict.TEAR else ()
    if keys:
        more = f" and {len(keys) - KEYS_MAX} more" if len(keys) > KEYS_MAX else ""
        texts.append(f"Its idempotency keys: {', '.join(keys[:KEYS_MAX])}{more}.")
    if not records.ranges and not unread:
        texts.append("No partition knows its producer any more, so that its records cannot be told.")
    texts += [f"Not read: {place}: {why}" for place, why in {**records.gaps, **unread}.items()]
    texts.append(
        f"Accepting repairs nothing: {_REPAIRS[line.finding]} first. After it recovery never mentions this "
        "transaction again."
    )
    for text in texts:
        typer.echo(text, err=True)


def _find_records(
    at: ClusterTarget, line: RecoveredId, row: StoredState
) -> tuple[WrittenRecords, dict[str, str]]:
    """Find the records that the loss is about. If they cannot be found, the loss can still be accepted."""
    nothing = WrittenRecords(ranges=(), gaps={})
    config = select_role_settings("admin", at.config)
    try:
        with Admin(config) as admin:
            described = admin.describe_transactions([line.transactional_id]).one(line.transactional_id)
        spec = _choose_spec(line, row, described)
        if spec is None:
            return nothing, {}
        return engine_thread().run(find_written(config, spec), FIND_LIMIT_S, "find what was written"), {}
    except (ClientError, TimeoutError) as exc:
        return nothing, {"records": str(exc)}


def _choose_spec(
    line: RecoveredId, row: StoredState, described: TransactionDescription
) -> WrittenSpec | None:
    """Choose whose records to look for: those of the row, of what is open, or of what came after the row."""
    if line.finding is Finding.BEHIND:
        producer_id: int = described.writer.producer_id
        is_same = line.state.producer_id == producer_id
        first = (line.state.epoch or 0) + 1 if is_same else 0
        since_ms = row.started_at_ms
        return WrittenSpec(producer_id=producer_id, epoch_min=first, epoch_max=INT16_MAX, since_ms=since_ms)
    state = line.in_doubt if line.finding is Finding.UNKNOWN_HERE else line.state
    if state.producer_id is None or state.epoch is None:
        return None
    since_ms = described.started_ms if line.finding is Finding.UNKNOWN_HERE else row.started_at_ms
    return WrittenSpec(
        producer_id=state.producer_id, epoch_min=state.epoch, epoch_max=state.epoch, since_ms=since_ms
    )


def _format_database(line: RecoveredId, row: StoredState) -> Row:
    started = ""
    if row.started_at_ms is not None:
        started = f", begun {datetime.fromtimestamp(row.started_at_ms / 1000, UTC):%Y-%m-%d %H:%M:%SZ}"
    return {
        "TransactionalId": line.transactional_id,
        "Half": "database",
        "Transaction": str(line.state) or "none",
        "Outcome": f"committed{started}" if line.state else "nothing recorded",
        "Partition": "",
        "Offsets": "",
        "Records": "",
    }


def _format_records(transactional_id: str, records: WrittenRecords) -> list[Row]:
    return [
        {
            "TransactionalId": transactional_id,
            "Half": "Kafka",
            "Transaction": f"{each.producer_id}:{each.epoch}",
            "Outcome": each.outcome,
            "Partition": str(each.partition),
            "Offsets": f"{each.first_offset}-{each.last_offset}",
            "Records": each.record_count,
        }
        for each in records.ranges
    ]


def _find_keys(store: Store[Any], row: StoredState) -> list[str]:
    """Return the idempotency keys of the row's transaction, in a store that has them."""
    find = getattr(store, "find_idempotency_keys", None)
    if find is None:
        return []
    try:
        return [str(each) for each in find(row)]
    except Exception as exc:  # of the database's driver, with no common class
        return [f"not read ({describe_error(exc)})"]
