"""The writers in processes of their own that the console watches."""

from collections.abc import Iterator

import pytest
from tests.support.dual_write_lives import Lives


@pytest.fixture(scope="module")
def lives() -> Iterator[Lives]:
    with Lives() as running:
        yield running
