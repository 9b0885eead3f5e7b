"""Additions to typer's help and errors: names for values, examples at the end, plain words."""

import re
from typing import Any, Final

import typer

from tallystick.cli.examples import format_examples

PROGRAM: Final = "tallystick"
COMPLETE_VARIABLE: Final = f"_{PROGRAM.upper()}_COMPLETE"
"""Set by a shell that asks for completions, as typer's scripts do."""

_CHOICES: Final = re.compile(r"[<\[](?:list\[)?([^<>\[\]|]+(?:\|[^<>\[\]|]+)+)")


def complete_help(command: Any, context: Any, path: str) -> None:
    """Name the values of a command's options, and add its examples; the same for its subcommands.

    Args:
        path: how it is called, without the program's name.
    """
    for param in command.params:
        _name_value(param, context)
    command.epilog = format_examples(path)
    for name, subcommand in getattr(command, "commands", {}).items():
        complete_help(subcommand, context, f"{path} {name}".lstrip())


def _name_value(param: Any, context: Any) -> None:
    """Say `--partition PARTITION` and `ID`, where typer says `--partition <int range>` and `ID <str>`."""
    if param.param_type_name == "argument":
        param.display_type = lambda ctx: ""
        param.hidden = not param.help  # the usage line has it
    elif param.metavar is None and not param.is_flag:
        name, _ = param.get_help_record(context) or ("", "")
        choices = _CHOICES.search(name)
        param.metavar = choices[1] if choices else param.opts[0].rpartition("-")[2].upper()


def explain(error: typer.BadParameter) -> str:
    """Say what is wrong with a value in words, where typer passes on its validator's."""
    errors = getattr(error.__cause__, "errors", None)
    if errors is None:
        return error.message
    first = errors()[0]
    limits, given = first.get("ctx", {}), first.get("input")
    match first["type"]:
        case "int_parsing" | "int_from_float" | "int_type" | "int_parsing_size":
            return f"{given!r} is not a whole number"
        case "greater_than_equal":
            return f"{given} is below {limits['ge']}"
        case "less_than_equal":
            return f"{given} is above {limits['le']}"
        case "value_error":
            return str(limits["error"])
        case _:
            return error.message
