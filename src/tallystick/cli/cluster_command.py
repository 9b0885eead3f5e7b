"""Base of all commands that talk to a cluster: connection options and output."""

import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Final, TypeVar

import typer
from typer.core import TyperCommand

from tallystick.admin.client import Admin
from tallystick.cli.exits import ExitCode, print_error, print_failure
from tallystick.cli.tables import OutputFormat, Row, print_rows
from tallystick.client.errors import ClientError
from tallystick.client.settings.config import CLIENT_SETTINGS, ROLE_SETTINGS
from tallystick.kernel.settings import BadConfig, read_properties
from tallystick.kernel.value import Value

F = TypeVar("F", bound=Callable[..., Any])


class ClusterTarget(Value):
    """A cluster, and the output format."""

    config: Mapping[str, object]
    output: OutputFormat

    def open_admin(self) -> Admin:
        return Admin(self.config)

    def print_rows(self, columns: Sequence[str], rows: Sequence[Row], *, failed: bool = False) -> None:
        """Print rows; of none because something has failed, no head of a table either."""
        if rows or not failed or self.output is OutputFormat.JSON:
            print_rows(columns, rows, self.output)


BOOTSTRAP_OPTION: Final = typer.Option(
    "--bootstrap-server", "--bootstrap-servers", metavar="HOST:PORT", help="Brokers to ask first."
)
COMMAND_CONFIG_OPTION: Final = typer.Option(
    "--command-config", metavar="FILE", help="Settings of the client."
)


def read_shared_options(
    context: typer.Context,
    bootstrap_server: Annotated[str | None, BOOTSTRAP_OPTION] = None,
    command_config: Annotated[Path | None, COMMAND_CONFIG_OPTION] = None,
    output: Annotated[
        OutputFormat, typer.Option("--output", help="For people or for programs.")
    ] = OutputFormat.TABLE,
    timeout_ms: Annotated[
        int | None, typer.Option("--timeout-ms", metavar="MS", help="Instead of default.api.timeout.ms.")
    ] = None,
) -> None:
    """Read the options that may stand before or after every subcommand."""
    config = build_config(bootstrap_server, command_config)
    if timeout_ms is not None:
        config["default.api.timeout.ms"] = timeout_ms
        config["request.timeout.ms"] = min(timeout_ms, int(str(config.get("request.timeout.ms", 30_000))))
    context.obj = ClusterTarget(config, output)


class ClusterCommand(TyperCommand):
    """A subcommand that takes its group's options too, because users write them anywhere."""

    def get_params(self, ctx: Any) -> list[Any]:
        return [*super().get_params(ctx), *ctx.parent.command.params]

    def invoke(self, ctx: Any) -> Any:
        """Run the group's callback once more with what was given here, then this command."""
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


def build_config(bootstrap_server: str | None, command_config: Path | None) -> dict[str, object]:
    """Build the client's configuration of the cluster.

    Raises: BadConfig.
    """
    config: dict[str, object] = {"client.id": "tallystick-cli"}
    if command_config is not None:
        try:
            config |= read_properties(command_config.read_text("utf-8"), str(command_config))
        except (OSError, UnicodeDecodeError) as exc:
            why = exc.strerror if isinstance(exc, OSError) else f"is not UTF-8: {exc}"
            raise BadConfig(f"--command-config: {command_config}: {why}") from exc
    if bootstrap_server is not None:
        config["bootstrap.servers"] = bootstrap_server
    return config


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
