"""Scripts: blocks of commands, a line of dashes, and the transcript that a tool writes and people read."""

import re
from collections.abc import Callable, Mapping

# Runs one command line and returns the lines of its transcript.
Runner = Callable[[str], list[str]]


def rewritten(text: str, runner: Callable[[Mapping[str, str]], Runner]) -> str:
    """Return the script with a new transcript.

    Args:
        text: the script.
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
    """Return the comment and command lines of each block."""
    return [block.partition("\n----")[0].splitlines() for block in re.split(r"\n\n+", text.strip())]


def _settings(lines: list[str]) -> dict[str, str]:
    words = [word for line in lines if line.startswith("config ") for word in line.split()[1:]]
    return dict(word.split("=", 1) for word in words)
