"""The `tallystick` command.

`tallystick broker` has its own parser here: a broker starts in less time than importing the terminal
libraries of the other commands takes.
"""

import sys
from collections.abc import Callable, Sequence
from typing import Final, cast

from tallystick import _lazy
from tallystick.cli import broker

# Commands with a parser of their own, by the module whose `main` runs them.
COMMAND_MODULES: Final = {
    "acls": "tallystick.cli.acls",
    "configs": "tallystick.cli.configs",
    "consume": "tallystick.cli.consume",
    "demo": "tallystick.cli.demo",
    "features": "tallystick.cli.features",
    "groups": "tallystick.cli.groups",
    "produce": "tallystick.cli.produce",
    "run": "tallystick.cli.run",
    "topics": "tallystick.cli.topics",
    "transactions": "tallystick.cli.transactions",
}


# Exit.USAGE, without loading its module.
_USAGE: Final = 2


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command and return its exit code."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    if words[:1] == ["broker"]:
        return broker.main(words[1:])
    own = COMMAND_MODULES.get(words[0]) if words else None
    try:
        command = cast(Callable[[list[str]], int], _lazy.load(own or "tallystick.cli.app").main)
        return command(words if own is None else words[1:])
    except _lazy.MissingLibrary as exc:
        print(f"tallystick: {exc}", file=sys.stderr)
        return _USAGE


if __name__ == "__main__":
    sys.exit(main())
