"""Errors of encoding and decoding."""

from tallystick.kernel.errors import TallystickError


class DecodeError(TallystickError):
    """Malformed bytes. The only exception that hostile input can cause."""


class EncodeError(TallystickError):
    """A value that does not fit the wire format: a string too long, a number out of range. A bug of ours."""


class UnsupportedField(EncodeError):
    """A field holds a value that the version cannot carry and that must not be dropped.

    Losing `keep_prepared_txn` silently would turn "keep" into "abort".
    """


class UnsupportedVersion(TallystickError):
    """A message has no such version to encode or decode."""
