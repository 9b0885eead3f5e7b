"""Names of what a command is about: an argument, or the option that Kafka's tools have for it."""

from collections.abc import Sequence

import typer


def merge_names(
    context: typer.Context, names: Sequence[str] | None, option: Sequence[str] | None, word: str
) -> list[str]:
    """Return the names of an argument and of its option, each once.

    Args:
        word: what a name stands for, as the usage line has it.
    Raises: UsageError if there is none, with a call as it should be.
    """
    merged = unite_names(names, option)
    if not merged:
        context.fail(f"give at least one {word}: {context.command_path} {word}...")
    return merged


def unite_names(names: Sequence[str] | None, option: Sequence[str] | None) -> list[str]:
    """Return the names of an argument and of its option, each once, of which there may be none."""
    return list(dict.fromkeys((*(names or ()), *(option or ()))))


def choose_name(
    context: typer.Context, name: str | None, option: str | None, word: str, *, rest: str = ""
) -> str:
    """Return the one name that is given, as an argument or as an option.

    Args:
        rest: what follows the name in a call.
    Raises: UsageError if there is none, with a call as it should be, or if there are two.
    """
    if name is not None and option is not None:
        context.fail(f"{word} is given twice, as {name!r} and as {option!r}")
    chosen = name if name is not None else option
    if chosen is None:
        context.fail(f"give the {word}: {' '.join(filter(None, (context.command_path, word, rest)))}")
    return chosen
