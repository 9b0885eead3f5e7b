"""What every decoder of this layer may raise."""

from tallystick.kernel.errors import TallystickError


class DecodeError(TallystickError):
    """Bytes that are not what they claim to be. The only exception hostile input can cause."""
