"""`tallystick completion`: prints a script that makes a shell complete commands and options."""

from enum import StrEnum
from typing import Annotated

import typer
from typer.completion import get_completion_script  # type: ignore[attr-defined]

from tallystick.cli.command_help import COMPLETE_VARIABLE, PROGRAM

app = typer.Typer(add_completion=False, rich_markup_mode=None)


class Shell(StrEnum):
    """A shell that can complete commands."""

    BASH = "bash"
    ZSH = "zsh"
    FISH = "fish"


@app.command()
def completion(
    shell: Annotated[Shell, typer.Argument(metavar="bash|zsh|fish", show_default=False)],
) -> None:
    """Print a script that makes a shell complete commands and options.

    Let the shell read it when it starts: in ~/.bashrc or, below compinit, in ~/.zshrc as in the first
    example, for fish as in the second.
    """
    typer.echo(get_completion_script(prog_name=PROGRAM, complete_var=COMPLETE_VARIABLE, shell=shell.value))
