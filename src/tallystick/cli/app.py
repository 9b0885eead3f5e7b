"""List of the commands, for `--help`: each has its own parser, which is loaded on use."""

from typing import Annotated

import typer

from tallystick import __version__

app = typer.Typer(name="tallystick", no_args_is_help=True, add_completion=False, rich_markup_mode=None)


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"tallystick {__version__}")
        raise typer.Exit


@app.callback()
def tallystick(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Commit a Kafka transaction and another system's transaction together, or not at all."""


@app.command(add_help_option=False)
def broker() -> None:
    """Run a broker; `tallystick broker --help` says more."""


@app.command(add_help_option=False)
def produce() -> None:
    """Send lines to a topic, one by one or as one transaction."""


@app.command(add_help_option=False)
def consume() -> None:
    """Print the records of topics, alone or in a group."""


@app.command(add_help_option=False)
def run() -> None:
    """Run a pipeline on Spark, exactly once, from a TOML file."""


@app.command(add_help_option=False)
def demo() -> None:
    """Run 336,776 flights through a pipeline and kill its parts."""


@app.command(add_help_option=False)
def transactions() -> None:
    """List transactions, find hanging ones, decide and end them."""


@app.command(add_help_option=False)
def topics() -> None:
    """List, describe, create, grow, truncate and delete topics."""


@app.command(add_help_option=False)
def groups() -> None:
    """List, describe and delete groups, and move their offsets."""


@app.command(add_help_option=False)
def configs() -> None:
    """Read and change settings of topics, brokers and groups."""


@app.command(add_help_option=False)
def acls() -> None:
    """List, grant and revoke rights, TwoPhaseCommit among them."""


@app.command(add_help_option=False)
def features() -> None:
    """Show and set levels, such as transaction.version."""


def main(words: list[str]) -> int:
    """Run a command and return its exit code."""
    try:
        app(words, prog_name="tallystick")
    except SystemExit as done:
        return done.code if isinstance(done.code, int) else int(done.code is not None)
    return 0
