"""`tallystick configs`: settings of topics, brokers and groups, like `kafka-configs.sh`."""

from collections.abc import Sequence
from typing import Annotated, Final

import typer

from tallystick.admin.configs import ConfigResource, ResourceType
from tallystick.cli.cluster_command import Exit, Target, commands, incomplete, run
from tallystick.cli.settings import named_values
from tallystick.cli.tables import Row

app = commands("Read and change settings of topics, brokers and groups.")

_DESCRIBE: Final = ("Name", "Value", "Source", "ReadOnly", "Sensitive")
_KINDS: Final = {"topics": ResourceType.TOPIC, "brokers": ResourceType.BROKER, "groups": ResourceType.GROUP}

EntityType = Annotated[str, typer.Option("--entity-type", help="topics, brokers or groups.")]
EntityName = Annotated[str, typer.Option("--entity-name", help="Of brokers: the id; empty for all of them.")]


@app.command()
def describe(
    context: typer.Context,
    entity_type: EntityType,
    entity_name: EntityName,
    all_: Annotated[bool, typer.Option("--all", help="Also what has its default.")] = False,
) -> None:
    """Show the settings in force; without --all no defaults."""
    at: Target = context.obj
    resource = _resource(entity_type, entity_name)
    with at.admin() as admin:
        found = admin.describe_configs([resource]).one(resource)
    rows: list[Row] = [
        {
            "Name": each.name,
            "Value": each.value,
            "Source": each.source.name.lower(),
            "ReadOnly": each.read_only,
            "Sensitive": each.sensitive,
        }
        for each in sorted(found.values(), key=lambda each: each.name)
        if all_ or not each.is_default
    ]
    at.show(_DESCRIBE, rows)


@app.command()
def alter(
    context: typer.Context,
    entity_type: EntityType,
    entity_name: EntityName,
    add: Annotated[list[str] | None, typer.Option("--add-config", help="NAME=VALUE; repeatable.")] = None,
    remove: Annotated[list[str] | None, typer.Option("--delete-config", help="NAME; repeatable.")] = None,
) -> None:
    """Set or reset single settings."""
    at: Target = context.obj
    changes: dict[str, str | None] = {**named_values(add or (), "--add-config")}
    changes |= dict.fromkeys(remove or ())
    if not changes:
        raise typer.BadParameter("give --add-config or --delete-config")
    with at.admin() as admin:
        answers = admin.alter_configs({_resource(entity_type, entity_name): changes})
    raise typer.Exit(incomplete({str(k): v for k, v in answers.failures.items()}) and Exit.FAILED)


def _resource(kind: str, name: str) -> ConfigResource:
    if kind not in _KINDS:
        raise typer.BadParameter(f"--entity-type {kind}: is none of {', '.join(_KINDS)}")
    return ConfigResource(_KINDS[kind], name)


def main(words: Sequence[str]) -> int:
    """Run `tallystick configs WORDS` and return its exit code."""
    return run(app, "configs", words)
