"""`tallystick features`: finalized feature levels, like `kafka-features.sh`."""

from collections.abc import Mapping, Sequence
from typing import Annotated

import typer

from tallystick.cli.cluster_command import ClusterTarget, create_app
from tallystick.cli.settings import parse_named_values
from tallystick.cli.subjects import merge_names
from tallystick.cli.tables import Row
from tallystick.kernel.ids import INT16_MAX

app = create_app("Show and set the levels of features, such as transaction.version.")

Levels = Annotated[list[str] | None, typer.Argument(metavar="NAME=LEVEL", show_default=False)]
LevelOption = Annotated[
    list[str] | None,
    typer.Option("--feature", metavar="NAME=LEVEL", help="The same as NAME=LEVEL; repeatable."),
]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Only ask whether it could be done.")]


@app.command()
def describe(context: typer.Context) -> None:
    """Show the finalized levels."""
    at: ClusterTarget = context.obj
    with at.open_admin() as admin:
        levels = admin.describe_features()
    _print_levels(at, levels)


@app.command()
def upgrade(
    context: typer.Context, levels: Levels = None, *, feature: LevelOption = None, dry_run: DryRun = False
) -> None:
    """Raise levels, all of them or none."""
    at: ClusterTarget = context.obj
    wanted = _parse_levels(merge_names(context, levels, feature, "NAME=LEVEL"))
    with at.open_admin() as admin:
        admin.update_features(wanted, validate_only=dry_run)
    _print_levels(at, wanted)


@app.command()
def downgrade(
    context: typer.Context,
    levels: Levels = None,
    *,
    feature: LevelOption = None,
    dry_run: DryRun = False,
    unsafe: Annotated[bool, typer.Option("--unsafe", help="Even if something is lost.")] = False,
) -> None:
    """Lower levels, all of them or none. Level 0 removes a feature."""
    at: ClusterTarget = context.obj
    wanted = _parse_levels(merge_names(context, levels, feature, "NAME=LEVEL"))
    with at.open_admin() as admin:
        admin.update_features(wanted, downgrade=True, unsafe=unsafe, validate_only=dry_run)
    _print_levels(at, wanted)


def _parse_levels(texts: Sequence[str]) -> dict[str, int]:
    levels = parse_named_values(texts, "level")
    for name, level in levels.items():
        if not (level.isascii() and level.isdecimal() and int(level) <= INT16_MAX):
            raise typer.BadParameter(f"level {name}={level}: is not a level, 0 to {INT16_MAX}")
    return {name: int(level) for name, level in levels.items()}


def _print_levels(at: ClusterTarget, levels: Mapping[str, int]) -> None:
    rows: list[Row] = [{"Feature": name, "Level": level} for name, level in sorted(levels.items())]
    at.print_rows(("Feature", "Level"), rows)
