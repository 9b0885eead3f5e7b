"""`tallystick profile`: named settings of clusters, so that commands need not repeat them."""

from pathlib import Path
from typing import Annotated, Final

import typer

from tallystick.cli.cluster_command import confirm, select_role_settings
from tallystick.cli.exits import ExitCode, print_error
from tallystick.cli.profiles import Profile, Profiles, change_profiles, locate_profiles, read_profiles
from tallystick.cli.settings import parse_named_values
from tallystick.cli.tables import OutputFormat, Row, print_rows
from tallystick.client.settings.config import AdminConfig
from tallystick.kernel.settings import BadConfig

app = typer.Typer(add_completion=False, no_args_is_help=True, rich_markup_mode=None)

_LIST_COLUMNS: Final = ("Profile", "InUse", "BootstrapServers", "CommandConfig")
_BOOTSTRAP: Final = "bootstrap.servers"

Name = Annotated[str, typer.Argument(metavar="NAME", show_default=False)]
Output = Annotated[OutputFormat, typer.Option("--output", help="For people or for programs.")]


@app.callback()
def profile_commands() -> None:
    """Name clusters and their settings, and choose the one that commands use."""


@app.command("list")
def list_(output: Output = OutputFormat.TABLE) -> None:
    """List the profiles."""
    profiles = read_profiles()
    rows: list[Row] = [
        {
            "Profile": name,
            "InUse": name == profiles.in_use,
            "BootstrapServers": each.settings.get(_BOOTSTRAP),
            "CommandConfig": each.command_config,
        }
        for name, each in sorted(profiles.by_name.items())
    ]
    print_rows(_LIST_COLUMNS, rows, output)


@app.command()
def create(
    name: Name,
    *,
    bootstrap_server: Annotated[
        str | None,
        typer.Option(
            "--bootstrap-server", "--bootstrap-servers", metavar="HOST:PORT", help="Brokers to ask first."
        ),
    ] = None,
    command_config: Annotated[
        Path | None, typer.Option("--command-config", metavar="FILE", help="A file with client settings.")
    ] = None,
    setting: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="NAME=VALUE", help="A setting of the client; repeatable."),
    ] = None,
) -> None:
    """Create a profile; the first one is used from then on.

    A password is better kept in a file of your own, which --command-config names, than given on a command
    line. The file is read when the profile is used.
    """
    texts = parse_named_values(setting or (), "--set")
    if bootstrap_server is not None:
        texts[_BOOTSTRAP] = bootstrap_server
    file = None if command_config is None else command_config.expanduser().absolute()
    created = Profile.build(texts, file)
    settings = created.read_settings()
    if _BOOTSTRAP not in settings:
        raise BadConfig(
            f"profile {name!r}: which cluster? Give --bootstrap-server HOST:PORT, or a --command-config FILE "
            f"with {_BOOTSTRAP}"
        )
    AdminConfig.parse(select_role_settings("admin", settings))
    _print_in_use(change_profiles(lambda profiles: profiles.add(name, created)))


@app.command()
def use(name: Name) -> None:
    """Use a profile wherever no other cluster is named."""
    _print_in_use(change_profiles(lambda profiles: profiles.use(name)))


@app.command()
def show(
    name: Annotated[str | None, typer.Argument(metavar="NAME", show_default=False)] = None,
    output: Output = OutputFormat.TABLE,
) -> None:
    """Show a profile's settings, but no passwords; without a NAME those of the one in use."""
    profiles = read_profiles()
    wanted = name or profiles.in_use
    if wanted is None:
        raise BadConfig("no profile is in use: tallystick profile use NAME")
    profile = profiles.find(wanted)
    settings = {"command-config": profile.command_config} if profile.command_config is not None else {}
    rows: list[Row] = [
        {"Name": key, "Value": str(value)} for key, value in {**settings, **profile.settings}.items()
    ]
    print_rows(("Name", "Value"), rows, output)


@app.command()
def delete(name: Name, yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False) -> None:
    """Delete a profile. The file that it names stays."""
    read_profiles().find(name)
    confirm(f"Delete profile {name}?", yes=yes)
    _print_in_use(change_profiles(lambda profiles: profiles.remove(name)))


def _print_in_use(profiles: Profiles) -> None:
    text = "no profile is in use" if profiles.in_use is None else f"profile {profiles.in_use} is in use"
    print_error(f"{text} ({locate_profiles()})", ExitCode.DONE)
