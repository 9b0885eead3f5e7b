"""The command line: `tallystick` and its subcommands."""
