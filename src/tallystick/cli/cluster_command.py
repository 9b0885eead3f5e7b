"""Base of all commands that talk to a cluster: connection options, output and exit codes.

Exit codes, so that scripts can tell (docs/adr/0030):

    0  done; for find-hanging also: nothing hangs, and every broker and partition was asked
    1  failed: the line on stderr says what may have happened
    2  wrong usage or settings; nothing was sent
    3  find-hanging: something hangs, or partition and coordinator contradict each other
    4  the answer is incomplete: stderr says which brokers or partitions could not be asked
    5  refused: it would break something and --force was not given, or it was not confirmed
    6  there is no such open transaction (any more)
  130  interrupted; a transaction was aborted
"""

import sys
from collections.abc import Callable, Mapping, Sequence
from enum import IntEnum
from pathlib import Path
from typing import Annotated, Final

import typer

from tallystick.admin.client import Admin
from tallystick.admin.errors import NothingOpen, NotSafe
from tallystick.cli.tables import OutputFormat, Row, print_rows
from tallystick.client.config import CLIENT_SETTINGS, ROLE_SETTINGS
from tallystick.client.errors import ClientError
from tallystick.kernel.errors import TallystickError
from tallystick.kernel.settings import BadConfig, read_properties
from tallystick.kernel.value import frozen


class ExitCode(IntEnum):
    """Exit code of a command."""

    DONE = 0
    FAILED = 1
    USAGE = 2
    HANGING = 3
    INCOMPLETE = 4
    REFUSED = 5
    NOTHING_OPEN = 6
    INTERRUPTED = 130


@frozen
class ClusterTarget:
    """A cluster, and the output format."""

    config: Mapping[str, object]
    output: OutputFormat

    def open_admin(self) -> Admin:
        return Admin(self.config)

    def print_rows(self, columns: Sequence[str], rows: Sequence[Row]) -> None:
        print_rows(columns, rows, self.output)


BOOTSTRAP_OPTION: Final = typer.Option(
    "--bootstrap-server", "--bootstrap-servers", metavar="HOST:PORT", help="Brokers to ask first."
)
COMMAND_CONFIG_OPTION: Final = typer.Option(
    "--command-config", metavar="FILE", help="Settings of the client."
)
SHARED_OPTIONS: Final = (
    "--bootstrap-server",
    "--bootstrap-servers",
    "--command-config",
    "--output",
    "--timeout-ms",
)

# Typer's help lists only a command's own options.
_SHARED_HELP: Final = (
    "And: --bootstrap-server HOST:PORT, --command-config FILE, --output table|json, --timeout-ms MS."
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
    """Read the options that may stand before (or after) every subcommand."""
    config = build_config(bootstrap_server, command_config)
    if timeout_ms is not None:
        config["default.api.timeout.ms"] = timeout_ms
        config["request.timeout.ms"] = min(timeout_ms, int(str(config.get("request.timeout.ms", 30_000))))
    context.obj = ClusterTarget(config, output)


def create_app(about: str) -> typer.Typer:
    """Create a command with subcommands, all of which have the options of `target`."""
    app = typer.Typer(
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
            config |= read_properties(command_config.read_text(), str(command_config))
        except (OSError, UnicodeDecodeError) as exc:
            raise BadConfig(f"--command-config: {command_config}: {exc}") from exc
    if bootstrap_server is not None:
        config["bootstrap.servers"] = bootstrap_server
    return config


def select_role_settings(role: str, config: Mapping[str, object]) -> dict[str, object]:
    """Drop the settings that only other roles have: one file may serve all of them."""
    others = {name for other in ROLE_SETTINGS.values() for name in other} - ROLE_SETTINGS[role].keys()
    return {name: value for name, value in config.items() if name not in others or name in CLIENT_SETTINGS}


def run(app: typer.Typer, name: str, words: Sequence[str]) -> int:
    """Run a command of `app` and return its exit code. An error is one line on stderr."""
    if app.info.callback is read_shared_options:
        for each in app.registered_commands:
            each.epilog = _SHARED_HELP
    try:
        app(_move_shared_first(words), prog_name=f"tallystick {name}")
    except SystemExit as done:
        return done.code if isinstance(done.code, int) else int(done.code is not None)
    except BadConfig as exc:
        named = str(exc).replace("bootstrap.servers:", "--bootstrap-server (bootstrap.servers):")
        return print_error(named.replace("\n", "\n  "), ExitCode.USAGE)
    except NotSafe as exc:
        return print_error(f"refused, {exc.subject}: {exc.why} (--force does it)", ExitCode.REFUSED)
    except NothingOpen as exc:
        return print_error(exc.what(), ExitCode.NOTHING_OPEN)
    except TallystickError as exc:
        return print_error(str(exc), ExitCode.FAILED)
    except OSError as exc:  # of stdin and stdout: errors of a connection are ClientErrors
        return print_error(str(exc), ExitCode.FAILED)
    return ExitCode.DONE


def _move_shared_first(words: Sequence[str]) -> list[str]:
    """Move the shared options to the front, before the subcommand, where Typer expects them.

    Users write them anywhere.
    """
    shared, others = [], []
    rest = iter(words)
    for word in rest:
        name, equals, _ = word.partition("=")
        if word == "--":
            others += [word, *rest]
        elif name not in SHARED_OPTIONS:
            others.append(word)
        else:
            shared += [word] if equals else [word, *(value for value in (next(rest, None),) if value)]
    return [*shared, *others]


def print_error(text: str, code: ExitCode) -> ExitCode:
    """Print one line on stderr, and return the exit code."""
    print(f"tallystick: {text}", file=sys.stderr)
    return code


def report_failures(failures: Mapping[str, ClientError]) -> ExitCode:
    """Print the failures, and return the exit code [ADM-2]."""
    for what, failure in failures.items():
        print_error(f"{what}: {failure.what()}", ExitCode.INCOMPLETE)
    return ExitCode.INCOMPLETE if failures else ExitCode.DONE


def confirm(question: str, *, yes: bool, ask: Callable[[str], bool] = typer.confirm) -> None:
    """Continue only after a confirmation. Without a terminal `--yes` is needed."""
    if yes:
        return
    if not sys.stdin.isatty():
        print_error("not confirmed: there is no terminal to ask; --yes does it", ExitCode.REFUSED)
        raise typer.Exit(ExitCode.REFUSED)
    if not ask(question):
        raise typer.Exit(print_error("not confirmed", ExitCode.REFUSED))
