"""NAME=VALUE on the command line."""

from collections.abc import Iterable

import typer


def named_values(texts: Iterable[str], option: str) -> dict[str, str]:
    """Values by name. Raises: BadParameter, which names every text that is not NAME=VALUE."""
    parts = {text: text.partition("=") for text in texts}
    wrong = [text for text, (name, equals, _) in parts.items() if not name or not equals]
    if wrong:
        raise typer.BadParameter(f"{option} {', '.join(wrong)}: is not NAME=VALUE")
    return {name.strip(): value.strip() for name, _, value in parts.values()}
