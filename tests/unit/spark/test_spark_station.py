"""What a process keeps belongs to the options it was made for."""

import gc
from weakref import ref

import pytest

from tallystick.kernel.value import replace
from tallystick.spark.options.sink_options import SinkOptions
from tallystick.spark.protocol.decide import NewCheckpoint
from tallystick.spark.sink.context import get_sink_context

OPTIONS = SinkOptions(prefix="p", client={"bootstrap.servers": "127.0.0.1:9"}, topic="a", checkpoint="/c")


@pytest.mark.parametrize(
    "other", [{"topic": "b"}, {"on_new_checkpoint": NewCheckpoint.RESTART}, {"checkpoint": "/d"}], ids=str
)
def test_a_query_with_other_options_does_not_have_the_old_ones(other: dict[str, object]) -> None:
    """A worker outlives queries: rows must not go to the topic of the one before."""
    changed = replace(OPTIONS, **other)
    assert get_sink_context(OPTIONS) is get_sink_context(OPTIONS)
    assert get_sink_context(changed).options == changed


def test_a_process_keeps_the_last_few_and_whoever_uses_one_keeps_it() -> None:
    """A loop over tables with a prefix each would run out of sockets else."""
    used = get_sink_context(OPTIONS)
    others = [ref(get_sink_context(replace(OPTIONS, prefix=f"p{n}"))) for n in range(40)]
    gc.collect()
    assert others[-1]() is not None
    assert others[0]() is None
    assert get_sink_context(OPTIONS) is not used
    assert used.is_usable
