"""Synchronous clients: the engines of `tallystick.client`, run on one daemon thread of the process."""
