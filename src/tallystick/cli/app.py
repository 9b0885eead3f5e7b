"""The `tallystick` command and its table of commands. Each is loaded on use, and `broker` by `main`."""

import logging
import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from io import TextIOWrapper
from typing import Annotated, Any, Final

import typer
from typer.core import TyperCommand, TyperGroup

from tallystick import __version__, _lazy
from tallystick.admin.errors import NothingOpen, NotSafe
from tallystick.cli.command_help import COMPLETE_VARIABLE, PROGRAM, complete_help, explain
from tallystick.cli.examples import format_examples
from tallystick.cli.exits import ExitCode, print_error
from tallystick.client.errors import AuthenticationFailed, TimedOut
from tallystick.kernel.errors import TallystickError
from tallystick.kernel.settings import BadConfig

# What `tallystick --help` says of each command. Its module has the name, and a Typer called `app`.
COMMANDS: Final = {
    "broker": "Run a broker; `tallystick broker --help` says more.",
    "produce": "Send lines to a topic, one by one or as one transaction.",
    "consume": "Print the records of topics, alone or in a group.",
    "run": "Run a pipeline on Spark, exactly once, from a TOML file.",
    "demo": "Run 336,776 flights through a pipeline and kill its parts.",
    "transactions": "List transactions, find hanging ones, decide and end them.",
    "topics": "List, describe, create, grow, truncate and delete topics.",
    "groups": "List, describe and delete groups, and move their offsets.",
    "lake": "Remove files that given-up batches left in a lake table.",
    "configs": "Read and change settings of topics, brokers and groups.",
    "acls": "List, grant and revoke rights, TwoPhaseCommit among them.",
    "users": "List, create and delete users that log in with SCRAM.",
    "console": "Show both sides of every transaction in a browser.",
    "top": "Show the same in a terminal, or once as a text.",
    "doctor": "Say what works on a cluster: login, modes, rights.",
    "features": "Show and set levels, such as transaction.version.",
    "profile": "Name clusters, and choose the one that commands use.",
    "completion": "Print what makes bash, zsh or fish complete words.",
}

_NO_BROKERS: Final = "bootstrap.servers: must name at least one HOST:PORT"
_NO_CLUSTER: Final = (
    "which cluster? Give --bootstrap-server HOST:PORT, set TALLYSTICK_BOOTSTRAP_SERVER, or use a profile: "
    "tallystick profile create NAME --bootstrap-server HOST:PORT"
)
_SERVING: Final = ("console", "demo", "run")
"""Commands that go on after a failed login, which nothing but the log tells immediately."""


class LazyGroup(TyperGroup):
    """A group that imports the module of a command when the command is run, and not for its help."""

    def __init__(self, **attributes: Any) -> None:
        """Create a group with a placeholder, a name and a line of help, for each command."""
        super().__init__(**attributes)
        self.commands = {name: TyperCommand(name=name, help=text) for name, text in COMMANDS.items()}
        self.epilog = format_examples("")

    def resolve_command(self, ctx: Any, args: list[str]) -> tuple[str | None, Any, list[str]]:
        """Find the command that the first word names, and load it."""
        name, placeholder, arguments = super().resolve_command(ctx, args)
        if placeholder is None or name == "broker":  # whose parser is its own
            return name, placeholder, arguments
        command = typer.main.get_command(_lazy.load(f"tallystick.cli.commands.{name}").app)
        command.name = name
        complete_help(command, ctx, str(name))
        return name, command, arguments

    def invoke(self, ctx: Any) -> Any:
        """Run a command; what it says of a bad value is in our words."""
        try:
            return super().invoke(ctx)
        except typer.BadParameter as exc:
            exc.message = explain(exc)
            if exc.param is None and exc.param_hint is None:  # of the call, and of no value in it
                (exc.ctx or ctx).fail(exc.message)
            raise


app = typer.Typer(
    name=PROGRAM,
    cls=LazyGroup,
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["--help", "-h"]},
)


def _print_version(enabled: bool) -> None:
    if enabled:
        typer.echo(f"tallystick {__version__}")
        raise typer.Exit


@app.callback()
def tallystick(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Commit a Kafka transaction and another system's transaction together, or not at all."""


class _SaidOnce(logging.Filter):
    """Keeps apart what the log and the error of a command say: no cause is told twice.

    Drops a failed login, with whose words the command ends, and notes what the log has told.
    """

    def __init__(self) -> None:
        super().__init__()
        self._texts: list[str] = []

    def filter(self, record: logging.LogRecord) -> bool:
        args = record.args if isinstance(record.args, tuple) else ()
        if any(isinstance(each, AuthenticationFailed) for each in args):
            return False
        if record.levelno >= logging.WARNING:
            self._texts.append(record.getMessage())
        return True

    def format_error(self, error: Exception) -> str:
        """Return the text of an error, without the last attempt's if the log has told of it."""
        if isinstance(error, TimedOut) and error.last and any(error.last in text for text in self._texts):
            error.last = ""
        return str(error)


@contextmanager
def _saying_once(words: Sequence[str]) -> Iterator[_SaidOnce]:
    """Keep out of the log what the error of the command will say."""
    log, said_once = logging.getLogger("tallystick.client"), _SaidOnce()
    if words[:1] and words[0] not in _SERVING:
        log.addFilter(said_once)
    try:
        yield said_once
    finally:
        log.removeFilter(said_once)


def run_command(words: Sequence[str]) -> int:
    """Run a command and return its exit code. An error is one line on stderr."""
    if COMPLETE_VARIABLE in os.environ:
        _lazy.load("typer.completion").completion_init()
    if isinstance(sys.stdout, TextIOWrapper):
        # Clients name themselves in any script; stderr writes what a terminal lacks in this way by itself.
        sys.stdout.reconfigure(errors="backslashreplace")
    # Python keeps other bytes as lone surrogates, which no request and no file can have.
    for number, word in enumerate(words, 1):
        if word.encode(errors="replace") != word.encode(errors="surrogateescape"):
            return print_error(f"argument {number} is not UTF-8", ExitCode.USAGE)
    with _saying_once(words) as said_once:
        return _run(words, said_once)


def _run(words: Sequence[str], said_once: _SaidOnce) -> int:
    try:
        app(words, prog_name=PROGRAM)
    except SystemExit as exc:
        return exc.code if isinstance(exc.code, int) else int(exc.code is not None)
    except _lazy.MissingLibrary as exc:
        return print_error(str(exc), ExitCode.USAGE)
    except BadConfig as exc:
        text = str(exc).replace(_NO_BROKERS, _NO_CLUSTER)
        text = text.replace("bootstrap.servers:", "--bootstrap-server (bootstrap.servers):")
        return print_error(text.replace("\n", "\n  "), ExitCode.USAGE)
    except NotSafe as exc:
        return print_error(f"refused, {exc.subject}: {exc.why} (--force does it anyway)", ExitCode.REFUSED)
    except NothingOpen as exc:
        return print_error(exc.what(), ExitCode.NOTHING_OPEN)
    except (TallystickError, OSError) as exc:  # OSError of stdin and stdout: a connection's is a ClientError
        return print_error(said_once.format_error(exc), ExitCode.FAILED)
    return ExitCode.DONE
