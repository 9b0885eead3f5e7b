"""What a process keeps belongs to the options it was made for."""

import pytest

from tallystick.kernel.value import replace
from tallystick.spark.deciding import NewCheckpoint
from tallystick.spark.sink_options import SinkOptions
from tallystick.spark.station import station

OPTIONS = SinkOptions(prefix="p", client={"bootstrap.servers": "127.0.0.1:9"}, topic="a", checkpoint="/c")


@pytest.mark.parametrize(
    "other", [{"topic": "b"}, {"on_new": NewCheckpoint.RESTART}, {"checkpoint": "/d"}], ids=str
)
def test_a_query_with_other_options_does_not_have_the_old_ones(other: dict[str, object]) -> None:
    """A worker outlives queries: rows must not go to the topic of the one before."""
    changed = replace(OPTIONS, **other)
    assert station(OPTIONS) is station(OPTIONS)
    assert station(changed).options == changed
