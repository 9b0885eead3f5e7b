"""`tallystick configs`: settings of topics, brokers and groups, like `kafka-configs.sh`."""

from typing import Annotated, Final

import typer

from tallystick.admin.configs import ConfigResource, ResourceType
from tallystick.cli.cluster_command import ClusterTarget, create_app, report_failures
from tallystick.cli.exits import ExitCode
from tallystick.cli.settings import parse_named_values
from tallystick.cli.subjects import choose_name
from tallystick.cli.tables import Row

app = create_app("Read and change settings of topics, brokers and groups.")

_DESCRIBE_COLUMNS: Final = ("Name", "Value", "Source", "ReadOnly", "Sensitive")
_RESOURCE_TYPES: Final = {
    "topics": ResourceType.TOPIC,
    "brokers": ResourceType.BROKER,
    "groups": ResourceType.GROUP,
}

EntityType = Annotated[
    str | None, typer.Argument(metavar="TYPE", show_default=False, help="topics, brokers or groups.")
]
EntityName = Annotated[
    str | None,
    typer.Argument(metavar="NAME", show_default=False, help="Of a broker: its id; '' for all brokers."),
]
TypeOption = Annotated[str | None, typer.Option("--entity-type", metavar="TYPE", help="The same as TYPE.")]
NameOption = Annotated[str | None, typer.Option("--entity-name", help="The same as NAME.")]


@app.command()
def describe(
    context: typer.Context,
    entity_type: EntityType = None,
    entity_name: EntityName = None,
    *,
    type_option: TypeOption = None,
    name_option: NameOption = None,
    all_: Annotated[bool, typer.Option("--all", help="Also settings at their defaults.")] = False,
) -> None:
    """Show the settings in force; without --all no defaults."""
    at: ClusterTarget = context.obj
    resource = _parse_resource(context, (entity_type, type_option), (entity_name, name_option))
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
    entity_type: EntityType = None,
    entity_name: EntityName = None,
    *,
    type_option: TypeOption = None,
    name_option: NameOption = None,
    add: Annotated[
        list[str] | None, typer.Option("--add-config", metavar="NAME=VALUE", help="Set it; repeatable.")
    ] = None,
    remove: Annotated[
        list[str] | None, typer.Option("--delete-config", metavar="NAME", help="Reset it; repeatable.")
    ] = None,
) -> None:
    """Set or reset single settings."""
    at: ClusterTarget = context.obj
    resource = _parse_resource(context, (entity_type, type_option), (entity_name, name_option))
    changes: dict[str, str | None] = {**parse_named_values(add or (), "--add-config")}
    changes |= dict.fromkeys(remove or ())
    if not changes:
        raise typer.BadParameter("give --add-config or --delete-config")
    with at.open_admin() as admin:
        answers = admin.alter_configs({resource: changes})
    raise typer.Exit(report_failures({str(k): v for k, v in answers.failures.items()}) and ExitCode.FAILED)


def _parse_resource(
    context: typer.Context, kinds: tuple[str | None, str | None], names: tuple[str | None, str | None]
) -> ConfigResource:
    """Return what the arguments or their options name; one topic is taken for topics, as people say it."""
    kind = choose_name(context, *kinds, "TYPE", rest="NAME")
    resource_type = _RESOURCE_TYPES.get(f"{kind.removesuffix('s')}s")
    if resource_type is None:
        context.fail(
            f"{kind}: must be one of {', '.join(_RESOURCE_TYPES)}: {context.command_path} topics NAME"
        )
    return ConfigResource(resource_type, choose_name(context, *names, f"{kind} NAME"))
