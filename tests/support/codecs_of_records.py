"""Selects which half of the record codec is used: the compiled one, or Python."""

from collections.abc import Iterator
from contextlib import contextmanager

from tallystick.protocol.records import native

EXTENSION = native.codec


@contextmanager
def codec(chosen: native.Extension | None) -> Iterator[None]:
    """Use the extension, or Python for None, inside the block."""
    before, native.codec = native.codec, chosen
    try:
        yield
    finally:
        native.codec = before
