"""Asynchronous clients: the engines of `tallystick.client`, run on the caller's own loop."""
