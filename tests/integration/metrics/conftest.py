"""The spans of one test."""

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.support.traces import Traces


@pytest.fixture
def traces() -> Iterator["Traces"]:
    from tests.support.traces import traced  # needs the extra otel

    with traced() as traces:
        yield traces
