"""The command line: `tallystick` and its subcommands."""

from typing import TYPE_CHECKING

from tallystick import _lazy

if TYPE_CHECKING:
    from tallystick.cli.app import run_command

__all__ = ["run_command"]

if not TYPE_CHECKING:
    __getattr__ = _lazy.attributes(__name__, {"run_command": "tallystick.cli.app:run_command"})
