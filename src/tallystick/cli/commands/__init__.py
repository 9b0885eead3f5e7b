"""The subcommands of `tallystick`, one module each, imported when its command is run (`cli.app`).

A command parses its options, calls the library and prints tables; it decides nothing.
"""
