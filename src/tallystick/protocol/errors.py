"""What can be wrong with bytes or values at the edge of the wire."""

from tallystick.kernel.errors import TallystickError


class DecodeError(TallystickError):
    """Bytes that are not what they claim to be. The only exception hostile input can cause."""


class EncodeError(TallystickError):
    """A value that the wire has no room for: a string too long, a number out of range. Our fault."""


class UnsupportedField(EncodeError):
    """A field holds something that the version cannot carry, and that must not be dropped.

    Losing `keep_prepared_txn` silently would turn "keep" into "abort".
    """


class UnsupportedVersion(TallystickError):
    """A message was to be encoded or decoded at a version it does not have."""
