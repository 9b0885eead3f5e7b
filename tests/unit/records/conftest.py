"""Golden batches of tests/vectors/records."""

from collections.abc import Callable
from pathlib import Path

import pytest

VECTORS = Path(__file__).parents[2] / "vectors" / "records"


@pytest.fixture
def vector() -> Callable[[str], bytes]:
    """The bytes of a .hex file: digits, with comments from # to the end of the line."""

    def read(name: str) -> bytes:
        lines = (VECTORS / f"{name}.hex").read_text().splitlines()
        return bytes.fromhex("".join(line.split("#")[0] for line in lines))

    return read
