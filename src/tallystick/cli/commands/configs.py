"""`tallystick configs`: settings of topics, brokers and groups, like `kafka-configs.sh`."""

from typing import Annotated, Final

import typer

from tallystick.admin.configs import ConfigResource, ResourceType
from tallystick.cli.cluster_command import ClusterTarget, create_app, report_failures
from tallystick.cli.exits import ExitCode
from tallystick.cli.settings import parse_named_values
from tallystick.cli.tables import Row

app = create_app("Read and change settings of topics, brokers and groups.")

_DESCRIBE_COLUMNS: Final = ("Name", "Value", "Source", "ReadOnly", "Sensitive")
_RESOURCE_TYPES: Final = {
    "topics": ResourceType.TOPIC,
    "brokers": ResourceType.BROKER,
    "groups": ResourceType.GROUP,
}

EntityType = Annotated[str, typer.Option("--entity-type", help="topics, brokers or groups.")]
EntityName = Annotated[str, typer.Option("--entity-name", help="Of a broker: its id; empty for all brokers.")]


@app.command()
def describe(
    context: typer.Context,
    entity_type: EntityType,
    entity_name: EntityName,
    all_: Annotated[bool, typer.Option("--all", help="Also settings at their defaults.")] = False,
) -> None:
    """Show the settings in force; without --all no defaults."""
    at: ClusterTarget = context.obj
    resource = _parse_resource(entity_type, entity_name)
    with at.open_admin() as admin:
        settings = admin.describe_configs([resource]).one(resource)
    rows: list[Row] = [
        {
            "Name": each.name,
            "Value": each.value,
            "Source": each.source.name.lower(),
            "ReadOnly": each.read_only,
            "Sensitive": each.sensitive,
        }
        for each in sorted(settings.values(), key=lambda each: each.name)
        if all_ or not each.is_default
    ]
    at.print_rows(_DESCRIBE_COLUMNS, rows)


@app.command()
def alter(
    context: typer.Context,
    entity_type: EntityType,
    entity_name: EntityName,
    add: Annotated[list[str] | None, typer.Option("--add-config", help="NAME=VALUE; repeatable.")] = None,
    remove: Annotated[list[str] | None, typer.Option("--delete-config", help="NAME; repeatable.")] = None,
) -> None:
    """Set or reset single settings."""
    at: ClusterTarget = context.obj
    changes: dict[str, str | None] = {**parse_named_values(add or (), "--add-config")}
    changes |= dict.fromkeys(remove or ())
    if not changes:
        raise typer.BadParameter("give --add-config or --delete-config")
    with at.open_admin() as admin:
        answers = admin.alter_configs({_parse_resource(entity_type, entity_name): changes})
    raise typer.Exit(report_failures({str(k): v for k, v in answers.failures.items()}) and ExitCode.FAILED)


def _parse_resource(kind: str, name: str) -> ConfigResource:
    if kind not in _RESOURCE_TYPES:
        raise typer.BadParameter(f"--entity-type {kind}: must be one of {', '.join(_RESOURCE_TYPES)}")
    return ConfigResource(_RESOURCE_TYPES[kind], name)
