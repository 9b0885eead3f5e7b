"""`tallystick features`: finalized feature levels, like `kafka-features.sh`."""

from collections.abc import Mapping, Sequence
from typing import Annotated

import typer

from tallystick.cli.cluster_command import Target, commands, run
from tallystick.cli.settings import named_values
from tallystick.cli.tables import Row
from tallystick.kernel.ids import INT16_MAX

app = commands("Show and set the levels of features, such as transaction.version.")

Levels = Annotated[list[str], typer.Option("--feature", metavar="NAME=LEVEL", help="Repeatable.")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Only ask whether it could be done.")]


@app.command()
def describe(context: typer.Context) -> None:
    """Show the finalized levels."""
    at: Target = context.obj
    with at.admin() as admin:
        levels = admin.describe_features()
    _show(at, levels)


@app.command()
def upgrade(context: typer.Context, feature: Levels, dry_run: DryRun = False) -> None:
    """Raise levels, all of them or none."""
    at: Target = context.obj
    levels = _levels(feature)
    with at.admin() as admin:
        admin.update_features(levels, validate_only=dry_run)
    _show(at, levels)


@app.command()
def downgrade(
    context: typer.Context,
    feature: Levels,
    dry_run: DryRun = False,
    unsafe: Annotated[bool, typer.Option("--unsafe", help="Even if something is lost.")] = False,
) -> None:
    """Lower levels, all of them or none. Level 0 removes a feature."""
    at: Target = context.obj
    levels = _levels(feature)
    with at.admin() as admin:
        admin.update_features(levels, downgrade=True, unsafe=unsafe, validate_only=dry_run)
    _show(at, levels)


def _levels(texts: Sequence[str]) -> dict[str, int]:
    named = named_values(texts, "--feature")
    for name, level in named.items():
        if not (level.isascii() and level.isdecimal() and int(level) <= INT16_MAX):
            raise typer.BadParameter(f"--feature {name}={level}: is not a level, 0 to {INT16_MAX}")
    return {name: int(level) for name, level in named.items()}


def _show(at: Target, levels: Mapping[str, int]) -> None:
    rows: list[Row] = [{"Feature": name, "Level": level} for name, level in sorted(levels.items())]
    at.show(("Feature", "Level"), rows)


def main(words: Sequence[str]) -> int:
    """Run `tallystick features WORDS` and return its exit code."""
    return run(app, "features", words)
