"""`tallystick transactions resolve`: looks up decisions, and completes their transactions in Kafka.

Decisions of writers are in their database (`--store`). Those of a Spark query (`--prefix`) are in Kafka, or
in the database of its tables or in a lake table (`--prefix` and `--store`).
"""

import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any, Final, cast

import typer

from tallystick import spark
from tallystick.admin.client import Admin
from tallystick.admin.txn.completion import find_modes
from tallystick.cli.audit import AuditLog
from tallystick.cli.cluster_command import ClusterTarget, confirm, select_role_settings
from tallystick.cli.commands.accept_mixed import (
    AcceptOption,
    ConfirmOption,
    check_options,
    run_accept_mixed,
)
from tallystick.cli.exits import ExitCode, print_error, print_failure
from tallystick.cli.settings import ModeOption, StorageOption, add_modes, parse_named_values
from tallystick.cli.tables import Row
from tallystick.client.errors import IdExpired, UnknownTopic
from tallystick.dualwrite.errors import BadStore
from tallystick.dualwrite.resolve import (
    CONTRADICTIONS,
    ExpiredIds,
    ResolvedId,
    describe_error,
    find_expired_ids,
    is_to_finish,
    leave_alone,
    resolve,
    resolve_expired,
)
from tallystick.dualwrite.rules.model import TABLE
from tallystick.dualwrite.rules.recovery import RecoveredId, Verdict
from tallystick.dualwrite.stores.base import LeaseStore, Store
from tallystick.dualwrite.stores.by_url import OTHER_KINDS, open_store
from tallystick.kernel.clock import SystemClock
from tallystick.kernel.ids import is_table_url
from tallystick.kernel.settings import BadConfig
from tallystick.spark.options.option_table import DECISIONS_TOPIC

if TYPE_CHECKING:
    from tallystick.spark.sink.driver.recovery import PrefixStatus

STILL_MS: Final = 3000
"""What is open for so long after it was shown, unchanged, is not a transaction of a writer that works."""
NAMED_MAX: Final = 10
_COLUMNS: Final = ("TransactionalId", "Database", "InDoubt", "Finding", "Verdict", "Result")
_QUERY_COLUMNS: Final = ("TransactionalId", "Found", "Result", "Offsets")
_PER_ID_SETTINGS: Final = frozenset({"transactional.id", "transaction.two.phase.commit.enable"})
_UNRESOLVED: Final = frozenset(
    {
        Verdict.COMMIT,
        Verdict.ABORT,
        Verdict.COMPARE,
        Verdict.TEAR,
        Verdict.LACK,
        Verdict.HALT,
    }
)

StoreOption = Annotated[
    str | None,
    typer.Option(
        "--store",
        metavar="URL",
        help="What decides: SQLAlchemy's URL, rocksdb:///FOLDER, zookeeper://HOSTS/ROOT, delta:/FOLDER, "
        "iceberg:CATALOG.NAMESPACE.TABLE.",
    ),
]
DecisionsOption = Annotated[
    str | None,
    typer.Option(
        "--decisions",
        metavar="TOPIC",
        help=f"With --prefix: the query's decisions.topic, if it is not {DECISIONS_TOPIC}.",
    ),
]
PrefixOption = Annotated[
    str | None,
    typer.Option(
        "--prefix", help="A Spark query's transactional.id.prefix; with --store if it writes tables."
    ),
]
ExpiredOption = Annotated[
    bool, typer.Option("--only-expired", help="Only ids whose lease has expired; no live writer is fenced.")
]
AllowedOption = Annotated[
    list[str] | None,
    typer.Option(
        "--allow-unsafe-durability",
        metavar="SETTING",
        help="A setting of the database that is known to lose nothing there, as fsync; repeatable.",
    ),
]


def resolve_command(
    context: typer.Context,
    *,
    store: StoreOption = None,
    prefix: PrefixOption = None,
    decisions: DecisionsOption = None,
    retire: Annotated[
        bool, typer.Option("--retire", help="With --prefix: forget the query, accept what is lost.")
    ] = False,
    transactional_id: Annotated[
        list[str] | None,
        typer.Option("--transactional-id", "--transactionalId", help="Only this one; repeatable."),
    ] = None,
    only_expired: ExpiredOption = False,
    storage_option: StorageOption = None,
    mode: ModeOption = None,
    schema: Annotated[str | None, typer.Option(help="Database schema of the tables.")] = None,
    allowed: AllowedOption = None,
    accepts: AcceptOption = False,
    confirmed: ConfirmOption = None,
    audit_log: AuditLog = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show both sides; change nothing.")] = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
) -> None:
    """Finish what the writers of a database, or a Spark query, left open.

    Both sides are shown first. Only what is to be committed or aborted is taken over; other writers go on.
    """
    at: ClusterTarget = context.obj
    config = add_modes(select_role_settings("producer", at.config), mode or (), prepares=False)
    ids: Sequence[str] = transactional_id or ()
    if accepts:
        others = {"--prefix": prefix is not None, "--only-expired": only_expired, "--retire": retire}
        check_options(ids, confirmed=confirmed, yes=yes, others=others)
    elif confirmed is not None or audit_log is not None:
        raise BadConfig("--confirm, --audit-log: need --accept-mixed")
    if prefix is not None:
        if transactional_id or schema or allowed or only_expired:
            raise BadConfig(
                "--prefix: cannot be combined with --transactional-id, --only-expired, --schema or "
                "--allow-unsafe-durability"
            )
        find_status = _load_query_resolver(store, decisions, storage_option or ())
        if decisions is not None:
            _check_topic(at, decisions)
        find = partial(find_status, prefix, retire=retire)
        raise typer.Exit(_resolve_query(at, prefix, find, config, retire=retire, dry_run=dry_run, yes=yes))
    if store is None or retire or decisions is not None or storage_option:
        raise BadConfig(
            "give --store URL or --prefix PREFIX; --retire, --decisions and --storage-option need --prefix"
        )
    with _open_store(store, schema, allowed or ()) as opened:
        if accepts:
            code = run_accept_mixed(
                at, opened, config, ids[0], confirmed=confirmed, dry_run=dry_run, audit_log=audit_log
            )
            raise typer.Exit(code)
        if only_expired:
            results = _resolve_expired(opened, config, ids, dry_run=dry_run, yes=yes)
        else:
            results = _resolve_ids(at, opened, config, ids, dry_run=dry_run, yes=yes)
    at.print_rows(_COLUMNS, [_format_row(each) for each in results])
    raise typer.Exit(_choose_exit_code(results, dry_run=dry_run))


def _resolve_ids(
    at: ClusterTarget,
    store: Store[Any],
    config: Mapping[str, object],
    ids: Sequence[str],
    *,
    dry_run: bool,
    yes: bool,
) -> list[ResolvedId]:
    """Look at the ids, all of the store if none is named; show them before a question; finish them."""
    looks = list(resolve(store, config, ids or _list_ids(store), dry_run=True))
    if dry_run:
        return looks
    lines = [each.recovered for each in looks if each.recovered is not None]
    if not yes and any(is_to_finish(line, is_named=line.transactional_id in ids) for line in lines):
        at.print_rows(_COLUMNS, [_format_row(each) for each in looks])
    return _resolve_shown(store, config, looks, ids, yes=yes)


@contextmanager
def _open_store(url: str, schema: str | None, allowed: Collection[str]) -> Iterator[Store[Any]]:
    """Open the store of `--store`; its errors name the option."""
    if url.startswith("iceberg:"):
        raise BadConfig("--store: an Iceberg table has decisions of Spark queries; give the --prefix of one")
    if (schema is not None or allowed) and url.partition(":")[0] in OTHER_KINDS:
        raise BadConfig("--schema, --allow-unsafe-durability: for SQL databases alone")
    with ExitStack() as stack:
        try:
            opened = stack.enter_context(open_store(url, schema, allowed))
        except (BadConfig, BadStore) as exc:
            raise type(exc)(f"--store: {exc}") from exc
        yield opened


def _resolve_shown(
    store: Store[Any],
    config: Mapping[str, object],
    looks: Sequence[ResolvedId],
    ids: Sequence[str],
    *,
    yes: bool,
) -> list[ResolvedId]:
    """Finish what was shown, once it is confirmed and still as it was shown after a pause."""
    shown_ms = SystemClock().monotonic_ms()
    lines = {each.transactional_id: each.recovered for each in looks if each.recovered is not None}
    finished = {name: each for name, each in lines.items() if is_to_finish(each, is_named=name in ids)}
    if finished:
        confirm(_ask(finished.values(), len(looks) - len(finished)), yes=yes)
    again = [name for name, each in lines.items() if name in finished or each.verdict in CONTRADICTIONS]
    if again:
        _pause_until(shown_ms + STILL_MS)
    results = {each.transactional_id: each for each in looks}
    results |= {name: leave_alone(each) for name, each in lines.items() if name not in again}
    resolved = resolve(store, config, again, dry_run=False, expectations=lines) if again else ()
    results |= {each.transactional_id: each for each in resolved}
    return list(results.values())


def _ask(finished: Collection[RecoveredId], left_count: int) -> str:
    """Return the question: what becomes of how many ids, and of which."""
    actions = {
        Verdict.COMMIT: "commit",
        Verdict.ABORT: "abort",
        Verdict.COMPARE: "commit or abort",
    }
    parts = []
    for verdict, action in actions.items():
        names = [each.transactional_id for each in finished if each.verdict is verdict]
        if names:
            more = f" and {len(names) - NAMED_MAX} more" if len(names) > NAMED_MAX else ""
            parts.append(f"{action} {len(names)} ({', '.join(names[:NAMED_MAX])}{more})")
    if left_count:
        parts.append(f"leave {left_count} alone")
    text = ", ".join(parts)
    return f"{text[:1].upper()}{text[1:]}?"


def _resolve_expired(
    store: Store[Any], config: Mapping[str, object], ids: Sequence[str], *, dry_run: bool, yes: bool
) -> list[ResolvedId]:
    leases = _as_leases(store)
    expired = _find_expired_ids(leases, ids)
    if not dry_run and expired.leases:
        confirm(f"Finish {', '.join(expired.ids)}, whose leases have expired?", yes=yes)
    return list(resolve_expired(leases, config, expired.leases, dry_run=dry_run))


def _list_ids(store: Store[Any]) -> list[str]:
    try:
        return list(store.transactional_ids())
    except Exception as exc:  # of the database's driver, with no common class
        text = f"--store: {describe_error(exc)}"
        if TABLE in text:
            text += "; is it the right database? One that a writer has used has this table"
        raise typer.Exit(print_error(text, ExitCode.FAILED)) from exc


def _as_leases(store: Store[Any]) -> LeaseStore[Any]:
    """Return the store. Raises: BadConfig if it keeps no leases."""
    if not hasattr(store, "read_leases"):
        raise BadConfig(f"--only-expired: {type(store).__name__} keeps no leases; name the ids instead")
    return cast(LeaseStore[Any], store)


def _find_expired_ids(store: LeaseStore[Any], ids: Sequence[str]) -> ExpiredIds:
    """Find the ids, and print how many others are left alone."""
    try:
        expired = find_expired_ids(store, ids)
    except Exception as exc:  # of the database's driver, with no common class
        raise typer.Exit(print_error(f"--store: {describe_error(exc)}", ExitCode.FAILED)) from exc
    typer.echo(
        f"Expired: {len(expired.leases)}. Left alone: {expired.held_count} held or given back, "
        f"{expired.unleased_count} without a lease.",
        err=True,
    )
    return expired


def _resolve_query(
    at: ClusterTarget,
    prefix: str,
    find_status: "Callable[..., PrefixStatus]",
    config: Mapping[str, object],
    *,
    retire: bool,
    dry_run: bool,
    yes: bool,
) -> ExitCode:
    """Show what a query left, and finish it once it is confirmed and still as it was shown."""
    shown_ms = SystemClock().monotonic_ms()
    look = partial(find_status, _select_client_settings(config), dry_run=True)
    status = look()
    is_left = bool(status.outcomes or status.undecided_ids)
    if dry_run or not (is_left or retire):
        _print_query(at, prefix, status, retire=retire, dry_run=True)
        return ExitCode.HANGING if is_left else ExitCode.DONE
    if not yes:
        _print_query(at, prefix, status, retire=retire, dry_run=True)
    forgets = f", forget {prefix!r}" if retire else ""
    confirm(
        f"Commit {len(status.outcomes)}, abort {len(status.undecided_ids)}{forgets}, and fence the query?",
        yes=yes,
    )
    _pause_until(shown_ms + STILL_MS)
    if look() != status:
        text = f"{prefix}: it has changed since it was shown: the query is alive. Nothing was done"
        return print_error(text, ExitCode.HANGING)
    never_expires = _has_unexpiring(at, [*status.outcomes, *status.undecided_ids])
    client = _select_client_settings(find_modes(config, never_expires=never_expires))
    _print_query(at, prefix, find_status(client, dry_run=False), retire=retire, dry_run=False)
    return ExitCode.DONE


def _has_unexpiring(at: ClusterTarget, ids: Sequence[str]) -> bool:
    """Return whether one of the ids has, or may have, a transaction that was begun under two-phase commit."""
    if not ids:
        return False
    with Admin(select_role_settings("admin", at.config)) as admin:
        answers = admin.describe_transactions(ids)
    # An id that the cluster has forgotten has nothing open.
    is_unknown = any(not isinstance(failure, IdExpired) for failure in answers.failures.values())
    return is_unknown or any(each.in_doubt for each in answers.found.values())


def _select_client_settings(config: Mapping[str, object]) -> dict[str, str]:
    """Return the settings of a query's clients; its modes decide which ids use two-phase commit."""
    return {name: str(value) for name, value in config.items() if name not in _PER_ID_SETTINGS}


def _pause_until(end_ms: int) -> None:
    """Wait until the monotonic clock shows a time."""
    time.sleep(max(0, end_ms - SystemClock().monotonic_ms()) / 1000)


def _print_query(
    at: ClusterTarget, prefix: str, status: "PrefixStatus", *, retire: bool, dry_run: bool
) -> None:
    decision = status.decision
    first = {
        "TransactionalId": prefix,
        "Found": "no decision" if decision is None else f"decided: {decision}",
        "Result": "forgotten" if retire and decision is not None and not dry_run else "",
        "Offsets": "" if decision is None else decision.offsets or "",
    }
    lost_ids = set(status.lost_ids)
    decided = [
        _format_query_row(name, fate.value, "lost" if name in lost_ids else "committed", dry_run=dry_run)
        for name, fate in status.outcomes.items()
    ]
    others = [
        _format_query_row(name, "in no decision", "aborted", dry_run=dry_run) for name in status.undecided_ids
    ]
    at.print_rows(_QUERY_COLUMNS, [first, *decided, *others])


def _load_query_resolver(
    store: str | None, decisions: str | None, options: Sequence[str]
) -> "Callable[..., PrefixStatus]":
    """Return the function that finds a query's decisions: in Kafka, in a database, in a lake table."""
    storage_options = parse_named_values(options, "--storage-option", strip=False)
    if options and not is_table_url(store or ""):
        raise BadConfig("--storage-option: is for a lake table, which --store names")
    if store is None:
        return partial(spark.resolve, decisions=decisions or DECISIONS_TOPIC)
    if decisions is not None:
        raise BadConfig("--decisions: with --store the store decides, and no topic does")
    return partial(spark.resolve_rows, database=store, storage_options=storage_options)


def _check_topic(at: ClusterTarget, topic: str) -> None:
    """Refuse a topic that does not exist: under a mistyped name, what is decided would be aborted."""
    with Admin(select_role_settings("admin", at.config)) as admin:
        try:
            admin.describe_topics([topic]).one(topic)
        except UnknownTopic as exc:
            raise BadConfig(f"--decisions: the cluster has no topic {topic!r}. Nothing was done") from exc


def _format_query_row(name: str, finding: str, result: str, *, dry_run: bool) -> Row:
    return {"TransactionalId": name, "Found": finding, "Result": "" if dry_run else result, "Offsets": ""}


def _format_row(each: ResolvedId) -> Row:
    recovered = each.recovered
    if recovered is None:
        return {
            "TransactionalId": each.transactional_id,
            "Database": "",
            "InDoubt": "",
            "Finding": "",
            "Verdict": "HALT" if each.is_contradiction else "",
            "Result": each.failure,
        }
    reason = CONTRADICTIONS.get(recovered.verdict or Verdict.NOTHING)
    return {
        "TransactionalId": each.transactional_id,
        "Database": str(recovered.state),
        "InDoubt": str(recovered.in_doubt),
        "Finding": recovered.finding.name,
        "Verdict": "" if recovered.verdict is None else recovered.verdict.name,
        "Result": recovered.action if reason is None else f"left alone: {reason}",
    }


def _choose_exit_code(results: Sequence[ResolvedId], *, dry_run: bool) -> ExitCode:
    for each in results:
        if each.failure:
            print_failure(each.transactional_id, each.failure, ExitCode.FAILED)
    if any(each.is_contradiction for each in results):
        return ExitCode.HANGING
    if any(each.failure for each in results):
        return ExitCode.FAILED
    unresolved = any(each.recovered is not None and each.recovered.verdict in _UNRESOLVED for each in results)
    return ExitCode.HANGING if dry_run and unresolved else ExitCode.DONE
