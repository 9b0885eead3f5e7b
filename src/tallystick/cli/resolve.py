"""`tallystick transactions resolve`: looks up decisions, and completes their transactions in Kafka.

Decisions of writers are in their database (`--store`). Those of a Spark query (`--prefix`) are in Kafka, or
in the database of its tables (`--prefix` and `--store`).
"""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any, Final, cast

import typer

from tallystick import _lazy
from tallystick.cli.cluster_command import Exit, Target, complain, confirm, settings_of
from tallystick.cli.modes import ModeName, with_modes
from tallystick.cli.stores import open_store
from tallystick.cli.tables import Row
from tallystick.dualwrite.recovery import Verdict
from tallystick.dualwrite.resolve import Resolved, resolve, told_of
from tallystick.dualwrite.stores.base import Store
from tallystick.kernel.settings import BadConfig

if TYPE_CHECKING:
    from tallystick.spark.sink.recovery import Standing

_COLUMNS: Final = ("TransactionalId", "Database", "InDoubt", "Finding", "Verdict", "Result")
_QUERY: Final = ("TransactionalId", "Found", "Result", "Offsets")
_OF_ONE_ID: Final = frozenset({"transactional.id", "transaction.two.phase.commit.enable"})
_LEFT: Final = frozenset(
    {Verdict.COMMIT, Verdict.ABORT, Verdict.COMPARE, Verdict.TEAR, Verdict.LACK, Verdict.HALT}
)


def resolve_command(
    context: typer.Context,
    *,
    store: Annotated[
        str | None,
        typer.Option(
            "--store",
            metavar="URL",
            help="The database that decides: SQLAlchemy's URL, rocksdb:///FOLDER or zookeeper://HOSTS/ROOT.",
        ),
    ] = None,
    prefix: Annotated[
        str | None,
        typer.Option(
            "--prefix", help="A Spark query's transactional.id.prefix; with --store if it writes tables."
        ),
    ] = None,
    retire: Annotated[
        bool, typer.Option("--retire", help="With --prefix: forget the query, accept what is lost.")
    ] = False,
    transactional_id: Annotated[
        list[str] | None,
        typer.Option("--transactional-id", "--transactionalId", help="Only this one; repeatable."),
    ] = None,
    mode: ModeName = None,
    schema: Annotated[str | None, typer.Option(help="Database schema of the tables.")] = None,
    allowed: Annotated[
        list[str] | None,
        typer.Option(
            "--allow-unsafe-durability",
            metavar="SETTING",
            help="A setting of the database that is known to lose nothing there, as fsync; repeatable.",
        ),
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show both halves; change nothing.")] = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
) -> None:
    """Finish what the writers of a database, or a Spark query, left open; live ones are fenced."""
    at: Target = context.obj
    config = with_modes(settings_of("producer", at.config), mode or (), prepares=True)
    if prefix is not None:
        if transactional_id or schema or allowed:
            raise BadConfig(
                "--prefix: a Spark query has no --transactional-id, --schema or --allow-unsafe-durability"
            )
        if not dry_run:
            confirm(f"Finish what {prefix!r} left, and fence the query if it is alive?", yes=yes)
        raise typer.Exit(_resolve_query(at, config, prefix, store, retire=retire, dry_run=dry_run))
    if store is None or retire:
        raise BadConfig("--store URL or --prefix PREFIX: one is needed; --retire goes with --prefix")
    with open_store(store, schema, allowed or ()) as opened:
        ids = transactional_id or _ids_of(opened)
        if not dry_run and ids:
            confirm(f"Finish {', '.join(ids)}, and fence the writers that are alive?", yes=yes)
        results = list(resolve(opened, config, ids, dry_run=dry_run))
    at.show(_COLUMNS, [_row(each) for each in results])
    raise typer.Exit(_exit(results, dry_run=dry_run))


def _ids_of(store: Store[Any]) -> list[str]:
    try:
        return list(store.transactional_ids())
    except Exception as exc:  # of the database's driver, with no common class
        raise typer.Exit(complain(f"--store: {told_of(exc)}", Exit.FAILED)) from exc


def _resolve_query(
    at: Target, config: Mapping[str, object], prefix: str, store: str | None, *, retire: bool, dry_run: bool
) -> Exit:
    # The modes decide which ids use two-phase commit.
    client = {name: str(value) for name, value in config.items() if name not in _OF_ONE_ID}
    found: Standing = _query_resolver(store)(prefix, client, dry_run=dry_run, retire=retire)
    decision = found.decision
    first = {
        "TransactionalId": prefix,
        "Found": "no decision" if decision is None else f"decided: {decision}",
        "Result": "forgotten" if retire and decision is not None and not dry_run else "",
        "Offsets": "" if decision is None else decision.offsets or "",
    }
    lost = set(found.lost)
    decided = [
        _query_row(name, fate.value, "lost" if name in lost else "committed", dry_run=dry_run)
        for name, fate in found.fates.items()
    ]
    others = [_query_row(name, "in no decision", "aborted", dry_run=dry_run) for name in found.undecided]
    at.show(_QUERY, [first, *decided, *others])
    return Exit.HANGING if dry_run and (decided or others) else Exit.DONE


def _query_resolver(store: str | None) -> "Callable[..., Standing]":
    """Return the function that finds the query's decisions, in Kafka or in a database."""
    if store is None:
        return cast("Callable[..., Standing]", _lazy.load("tallystick.spark.sink.recovery").resolve)
    resolve_rows = _lazy.load("tallystick.spark.sink.database_context").resolve_rows
    return partial(resolve_rows, database=store)


def _query_row(name: str, found: str, result: str, *, dry_run: bool) -> Row:
    return {"TransactionalId": name, "Found": found, "Result": "" if dry_run else result, "Offsets": ""}


def _row(each: Resolved) -> Row:
    found = each.recovered
    if found is None:
        return {
            "TransactionalId": each.transactional_id,
            "Database": "",
            "InDoubt": "",
            "Finding": "",
            "Verdict": "HALT" if each.contradicts else "",
            "Result": each.failure,
        }
    return {
        "TransactionalId": each.transactional_id,
        "Database": str(found.state),
        "InDoubt": str(found.in_doubt),
        "Finding": found.finding.name,
        "Verdict": "" if found.verdict is None else found.verdict.name,
        "Result": found.did,
    }


def _exit(results: Sequence[Resolved], *, dry_run: bool) -> Exit:
    for each in results:
        if each.failure:
            complain(f"{each.transactional_id}: {each.failure}", Exit.FAILED)
    if any(each.contradicts for each in results):
        return Exit.HANGING
    if any(each.failure for each in results):
        return Exit.FAILED
    left = any(each.recovered is not None and each.recovered.verdict in _LEFT for each in results)
    return Exit.HANGING if dry_run and left else Exit.DONE
