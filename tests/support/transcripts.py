"""Scripts: blocks of commands, a line of dashes, and the transcript that a person reads and a tool writes."""

import re
from collections.abc import Callable, Mapping

# Runs one command line and gives the lines of the transcript it leads to.
Runner = Callable[[str], list[str]]


def rewritten(text: str, runner: Callable[[Mapping[str, str]], Runner]) -> str:
    """The script with the transcript as it is now.

    Args:
        runner: makes a runner from the words of the `config` lines.
    """
    parsed = blocks(text)
    run = runner(_settings([line for above in parsed for line in above]))
    out = []
    for above in parsed:
        commands = [line for line in above if line and not line.startswith(("#", "config "))]
        lines = [line for command in " ; ".join(commands).split(" ; ") if commands for line in run(command)]
        out.append("\n".join([*above, *(["----", *lines] if commands else [])]))
    return "\n\n".join(out) + "\n"


def blocks(text: str) -> list[list[str]]:
    """The comment and command lines of each block."""
    return [block.partition("\n----")[0].splitlines() for block in re.split(r"\n\n+", text.strip())]


def _settings(lines: list[str]) -> dict[str, str]:
    words = [word for line in lines if line.startswith("config ") for word in line.split()[1:]]
    return dict(word.split("=", 1) for word in words)
