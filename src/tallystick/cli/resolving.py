"""`tallystick transactions resolve`: ask the database what was decided, and finish it in Kafka."""

from collections.abc import Callable, Sequence
from typing import Annotated, Any, Final

import typer

from tallystick import _lazy
from tallystick.cli.connecting import Exit, Target, complain, confirm, settings_of
from tallystick.cli.modes import ModeName, with_modes
from tallystick.cli.tables import Row
from tallystick.dualwrite.recovery import Verdict
from tallystick.dualwrite.resolving import Resolved, resolve, told_of
from tallystick.dualwrite.stores.base import Store
from tallystick.kernel.settings import BadConfig

_COLUMNS: Final = ("TransactionalId", "Database", "InDoubt", "Finding", "Verdict", "Result")
_LEFT: Final = frozenset({Verdict.COMMIT, Verdict.ABORT, Verdict.COMPARE, Verdict.TEAR, Verdict.HALT})


def resolve_command(
    context: typer.Context,
    *,
    store: Annotated[
        str, typer.Option("--store", metavar="URL", help="SQLAlchemy's URL of the writers' database.")
    ],
    transactional_id: Annotated[
        list[str] | None,
        typer.Option("--transactional-id", "--transactionalId", help="Only this one; repeatable."),
    ] = None,
    mode: ModeName = None,
    schema: Annotated[str | None, typer.Option(help="Database schema of the tables.")] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show both halves; change nothing.")] = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
) -> None:
    """Finish what the writers of a database have left open; writers that are alive are fenced."""
    at: Target = context.obj
    opened, close = open_store(store, schema)
    try:
        ids = transactional_id or _ids_of(opened)
        if not dry_run and ids:
            confirm(f"Finish {', '.join(ids)}, and fence the writers that are alive?", yes=yes)
        config = with_modes(settings_of("producer", at.config), mode or (), prepares=True)
        results = list(resolve(opened, config, ids, dry_run=dry_run))
    finally:
        close()
    at.show(_COLUMNS, [_row(each) for each in results])
    raise typer.Exit(_exit(results, dry_run=dry_run))


def _ids_of(store: Store[Any]) -> list[str]:
    try:
        return list(store.transactional_ids())
    except Exception as exc:  # of the database's driver, and of no one class
        raise typer.Exit(complain(f"--store: {told_of(exc)}", Exit.FAILED)) from exc


def open_store(url: str, schema: str | None = None) -> tuple[Store[Any], Callable[[], None]]:
    """A store, and what closes it. Raises: BadConfig for a URL that is none."""
    try:
        create_engine = _lazy.load("sqlalchemy").create_engine
        sql = _lazy.load("tallystick.dualwrite.stores.sql")
    except ImportError as exc:
        raise BadConfig(f"--store: {exc}; install tallystick[sql]") from exc
    try:
        engine = create_engine(url)
    except Exception as exc:  # SQLAlchemy's, or of the driver that the URL names, which may have a password
        raise BadConfig(f"--store: {type(exc).__name__}: {_without(url, str(exc))}") from exc
    return sql.SqlStore(engine, schema=schema), engine.dispose


def _without(url: str, told: str) -> str:
    return " ".join(told.replace(url, "the URL").split())


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
