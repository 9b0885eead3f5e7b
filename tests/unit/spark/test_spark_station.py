"""What a process keeps belongs to the options it was made for."""

import gc
from typing import Any, cast
from weakref import ref

import pytest

from tallystick.kernel.ids import ProducerEpoch, ProducerId, ProducerIdAndEpoch
from tallystick.kernel.value import replace
from tallystick.spark.options.sink_options import SinkOptions
from tallystick.spark.protocol.committable import BatchLease, MicroBatch, build_empty_vote
from tallystick.spark.protocol.coordinator import SinkCoordinator
from tallystick.spark.protocol.decide import NewCheckpoint, NewPrefix
from tallystick.spark.protocol.repetition import RepetitionRules
from tallystick.spark.sink.driver.context import SinkContext, get_sink_context

OPTIONS = SinkOptions(prefix="p", client={"bootstrap.servers": "127.0.0.1:9"}, topic="a", checkpoint="/c")


@pytest.mark.parametrize(
    "other", [{"topic": "b"}, {"on_new_checkpoint": NewCheckpoint.RESTART}, {"checkpoint": "/d"}], ids=str
)
def test_a_query_with_other_options_does_not_have_the_old_ones(other: dict[str, Any]) -> None:
    """A worker outlives queries: rows must not go to the topic of the one before."""
    changed = replace(OPTIONS, **other)
    assert get_sink_context(OPTIONS) is get_sink_context(OPTIONS)
    assert get_sink_context(changed).options == changed


def test_a_process_keeps_the_last_few_and_a_user_of_one_keeps_it() -> None:
    """A loop over tables with a prefix each would run out of sockets else."""
    used = get_sink_context(OPTIONS)
    others = [ref(get_sink_context(replace(OPTIONS, prefix=f"p{n}"))) for n in range(40)]
    gc.collect()
    assert others[-1]() is not None
    assert others[0]() is None
    assert get_sink_context(OPTIONS) is not used
    assert used.is_usable


class Coordinator:
    """Knows the rules that each batch is judged by."""

    def __init__(self) -> None:
        self.rules: list[RepetitionRules] = []

    async def commit(self, votes: object, offsets: str | None, rules: RepetitionRules) -> None:
        self.rules.append(rules)


def test_only_one_batch_may_have_been_decided_for_other_sinks() -> None:
    """onNewPrefix=adopt that is never taken back must not hide a second sink, which would get nothing."""
    context = SinkContext(replace(OPTIONS, on_new_prefix=NewPrefix.ADOPT))
    context.coordinator = cast(SinkCoordinator, coordinator := Coordinator())
    owner = ProducerIdAndEpoch(ProducerId(1), ProducerEpoch(0))
    lease = BatchLease(nonce="n", coordinator=owner, transaction_version=2)
    for batch_id, sink in ((4, "b"), (4, "b"), (4, "c"), (5, "b")):
        context.commit([replace(build_empty_vote(lease), job=MicroBatch("q", batch_id), sinks=(sink,))])
    context.close()
    assert [each.accepts_other_sinks for each in coordinator.rules] == [True, True, False, False]
