"""Tests of what has a compiled half run with it and without it."""

from collections.abc import Iterator

import pytest
from tests.support.codecs_of_records import EXTENSION, codec


@pytest.fixture(scope="module", params=["extension", "python"])
def either_codec(request: pytest.FixtureRequest) -> Iterator[None]:
    """The compiled record codec, then the one in Python."""
    if request.param == "extension" and EXTENSION is None:
        pytest.skip("the extension is not compiled")
    with codec(EXTENSION if request.param == "extension" else None):
        yield
