"""The command line: `tallystick` and its subcommands."""

from typing import TYPE_CHECKING

from tallystick import _lazy

if TYPE_CHECKING:
    from tallystick.cli.app import run_command
    from tallystick.cli.commands.broker import main as run_broker

__all__ = ["run_broker", "run_command"]

if not TYPE_CHECKING:
    __getattr__ = _lazy.attributes(
        __name__,
        {
            "run_broker": "tallystick.cli.commands.broker:main",
            "run_command": "tallystick.cli.app:run_command",
        },
    )
