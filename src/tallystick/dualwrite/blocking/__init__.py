"""The dual-write API for threads. Every module is generated from its twin in `tallystick.dualwrite.aio`.

Public names are in `tallystick.dualwrite`. To change a module, change the twin and run `make format`.
"""
