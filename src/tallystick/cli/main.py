"""The `tallystick` command.

`tallystick broker` has its own parser: a broker loads no terminal libraries, which take as long as the rest
of its start and stay in its memory. The other commands load no broker.
"""

import sys
from collections.abc import Sequence

from tallystick import cli
from tallystick.cli.exits import ExitCode, open_closed_streams, print_error


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command and return its exit code."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    has_output = open_closed_streams()
    if not (has_output or words[:1] == ["broker"]):
        return print_error("stdout is closed: there is nowhere to answer", ExitCode.FAILED)
    if words[:1] == ["broker"]:
        return cli.run_broker(words[1:])
    return cli.run_command(words)


if __name__ == "__main__":
    sys.exit(main())
