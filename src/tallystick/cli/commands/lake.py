"""`tallystick lake`: looks after tables of a lake that decide batches."""

from typing import Annotated, Final

import typer

from tallystick.cli.cluster_command import confirm
from tallystick.cli.exits import ExitCode
from tallystick.cli.settings import StorageOption, parse_named_values
from tallystick.cli.tables import OutputFormat, Row, print_rows
from tallystick.kernel.clock import SystemClock
from tallystick.lake.names import StorageOptions, format_writer_key, parse_table_url
from tallystick.lake.opening import LakeLocation, open_table
from tallystick.lake.orphans import ORPHAN_AGE_MS, OrphanReport
from tallystick.lake.sweeping import look_for_orphans, remove_orphans
from tallystick.spark.protocol.transactional_ids import DATABASE_SUFFIX

app = typer.Typer(add_completion=False, no_args_is_help=True, rich_markup_mode=None)

_COLUMNS: Final = ("File", "Bytes", "State", "Result")
_HOUR_MS: Final = 60 * 60 * 1000


@app.callback()
def lake() -> None:
    """Look after tables of a lake whose commits are decisions."""


@app.command(name="vacuum-orphans")
def vacuum_orphans(
    table: Annotated[str, typer.Argument(metavar="TABLE", help="Its URL, like delta:/lake/delays.")],
    *,
    prefix: Annotated[
        list[str] | None,
        typer.Option(help="Only files of this query's transactional.id.prefix. Repeatable."),
    ] = None,
    transactional_id: Annotated[
        list[str] | None,
        typer.Option(
            "--transactional-id", "--transactionalId", help="Only files of this dual writer's id. Repeatable."
        ),
    ] = None,
    older_than: Annotated[
        int, typer.Option(metavar="HOURS", min=0, help="Keep files that were written later than this ago.")
    ] = ORPHAN_AGE_MS // _HOUR_MS,
    storage_option: StorageOption = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show the files; remove none.")] = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    output: Annotated[OutputFormat, typer.Option(help="For people or for programs.")] = OutputFormat.TABLE,
) -> None:
    """Remove data files that attempts have left and that no commit will ever name.

    Files of a batch that may still be decided are kept: their query, or their dual writer's id, has not been
    claimed again since. So are files of another table in the same folder, and those of other writers, which
    the table's own VACUUM looks after.
    """
    options = parse_named_values(storage_option or (), "--storage-option", strip=False)
    location = LakeLocation(url=parse_table_url(table), storage_options=StorageOptions.build(options))
    opened = open_table(location)
    keys = [each + DATABASE_SUFFIX for each in prefix or ()]
    keys += map(format_writer_key, transactional_id or ())
    written_before_ms = SystemClock().now_ms() - older_than * _HOUR_MS if older_than else None
    report = look_for_orphans(opened, keys or None, written_before_ms=written_before_ms)
    if report.orphans and not dry_run:
        size_bytes = sum(report.orphans.values())
        confirm(f"Remove {len(report.orphans)} files, {size_bytes} bytes, from {table}?", yes=yes)
        remove_orphans(opened, report)
    print_rows(_COLUMNS, _describe(report, dry_run=dry_run), output)
    raise typer.Exit(ExitCode.HANGING if dry_run and report.orphans else ExitCode.DONE)


def _describe(report: OrphanReport, *, dry_run: bool) -> list[Row]:
    orphans: list[Row] = [
        {"File": path, "Bytes": size, "State": "orphan", "Result": "" if dry_run else "removed"}
        for path, size in report.orphans.items()
    ]
    others: list[Row] = [
        {"File": path, "Bytes": None, "State": state, "Result": "kept"}
        for paths, state in (
            (report.live, "of the last claim: may still be decided"),
            (report.young, "orphan, written within --older-than"),
            (report.ownerless, "of a prefix or id that the table's log no longer tells of"),
            (report.foreign, "of another table in this folder"),
            (report.unplaced, "perhaps of another table: the table's log does not tell of its owner"),
        )
        for path in paths
    ]
    return [*orphans, *others]
