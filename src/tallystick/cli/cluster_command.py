"""Base of all commands that talk to a cluster: connection options and output."""

import sys
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import Annotated, Any, TypeVar

import typer
from typer.core import TyperCommand

from tallystick.admin.client import Admin
from tallystick.cli.connection import (
    BootstrapServer,
    ClusterOptions,
    CommandConfig,
    ProfileName,
    build_config,
    check_hosts,
    limit_calls,
)
from tallystick.cli.exits import ExitCode, print_error, print_failure
from tallystick.cli.tables import OutputFormat, Row, print_rows
from tallystick.client.errors import ClientError
from tallystick.client.settings.config import CLIENT_SETTINGS, ROLE_SETTINGS
from tallystick.kernel.ids import INT32_MAX

F = TypeVar("F", bound=Callable[..., Any])


class ClusterTarget:
    """A cluster, and the output format."""

    def __init__(
        self,
        options: ClusterOptions,
        output: OutputFormat = OutputFormat.TABLE,
        timeout_ms: int | None = None,
    ) -> None:
        """Say which cluster; nothing is read before its settings are needed."""
        self._options, self.output, self._timeout_ms = options, output, timeout_ms

    @cached_property
    def config(self) -> Mapping[str, object]:
        """Settings of its clients. Raises: BadConfig."""
        config = build_config(self._options)
        if self._timeout_ms is not None:
            limit_calls(config, self._timeout_ms)
        return config

    def open_admin(self) -> Admin:
        """Open a client for administration. Raises: BadConfig."""
        check_hosts(self.config)
        return Admin(select_role_settings("admin", self.config))

    def print_rows(self, columns: Sequence[str], rows: Sequence[Row], *, failed: bool = False) -> None:
        """Print rows; of none because something has failed, no head of a table either."""
        if rows or not failed or self.output is OutputFormat.JSON:
            print_rows(columns, rows, self.output)


def read_shared_options(
    context: typer.Context,
    *,
    bootstrap_server: BootstrapServer = None,
    command_config: CommandConfig = None,
    profile: ProfileName = None,
    output: Annotated[
        OutputFormat, typer.Option("--output", help="For people or for programs.")
    ] = OutputFormat.TABLE,
    timeout_ms: Annotated[
        int | None,
        typer.Option("--timeout-ms", min=1, max=INT32_MAX, help="How long to wait; 10 seconds by default."),
    ] = None,
) -> None:
    """Read the options that may stand before or after every subcommand."""
    if context.invoked_subcommand is not None:
        return  # which reads them again, with those that stand behind it
    options = ClusterOptions(bootstrap_server, command_config, profile)
    context.obj = ClusterTarget(options, output, timeout_ms)


class ClusterCommand(TyperCommand):
    """A subcommand that takes its group's options too, because users write them anywhere."""

    def get_params(self, ctx: Any) -> list[Any]:
        return [*super().get_params(ctx), *ctx.parent.command.params]

    def invoke(self, ctx: Any) -> Any:
        """Run the group's callback with what was given there and here, then this command."""
        group = ctx.parent.command
        shared = {option.name: ctx.params.pop(option.name) for option in group.params}
        overrides = {
            name: value
            for name, value in shared.items()
            if ctx.get_parameter_source(name).name == "COMMANDLINE"
        }
        group.callback(**{**ctx.parent.params, **overrides})
        return super().invoke(ctx)


class ClusterApp(typer.Typer):
    """A command whose subcommands have the options of `read_shared_options`."""

    def command(self, name: str | None = None, **options: Any) -> Callable[[F], F]:
        return super().command(name, cls=ClusterCommand, **options)


def create_app(about: str) -> ClusterApp:
    """Create a command with subcommands."""
    app = ClusterApp(
        no_args_is_help=True, add_completion=False, rich_markup_mode=None, callback=read_shared_options
    )
    app.info.help = about
    return app


def select_role_settings(role: str, config: Mapping[str, object]) -> dict[str, object]:
    """Drop the settings that only other roles have: one file may serve all of them."""
    others = {name for other in ROLE_SETTINGS.values() for name in other} - ROLE_SETTINGS[role].keys()
    return {name: value for name, value in config.items() if name not in others or name in CLIENT_SETTINGS}


def report_failures(failures: Mapping[str, ClientError]) -> ExitCode:
    """Print the failures, and return the exit code [ADM-2]."""
    for subject, failure in failures.items():
        print_failure(subject, failure.what(), ExitCode.INCOMPLETE)
    return ExitCode.INCOMPLETE if failures else ExitCode.DONE


def confirm(question: str, *, yes: bool, ask: Callable[[str], bool] = typer.confirm) -> None:
    """Continue only after a confirmation. Without a terminal `--yes` is needed."""
    if yes:
        return
    if not sys.stdin.isatty():
        print_error("not confirmed: there is no terminal to ask on; use --yes to confirm", ExitCode.REFUSED)
        raise typer.Exit(ExitCode.REFUSED)
    if not ask(question):
        raise typer.Exit(print_error("not confirmed", ExitCode.REFUSED))
