"""The `tallystick` command.

`tallystick broker` has its own parser: a broker loads no terminal libraries, which take as long as the rest
of its start and stay in its memory. The other commands load no broker.
"""

import sys
from collections.abc import Sequence

from tallystick import cli


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command and return its exit code."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    if words[:1] == ["broker"]:
        return cli.run_broker(words[1:])
    return cli.run_command(words)


if __name__ == "__main__":
    sys.exit(main())
