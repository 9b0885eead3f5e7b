"""Which of the offsets in a decision are those of a source."""

import pytest

from tallystick.kernel.ids import TopicPartition
from tallystick.spark.options.source_options import Assigned, ConsumerStrategy, Matching, Subscribed
from tallystick.spark.protocol.committable import Decision, JobChecksums
from tallystick.spark.source.planner import UnknownOffsets
from tallystick.spark.source.start_offsets import select_decided_end

A, B = '{"a":{"0":5,"1":6}}', '{"b":{"0":1}}'
FILES = '{"logOffset":3}'


def decision(*lines: str) -> Decision:
    return Decision(
        nonce="n",
        participants=(),
        transaction_version=2,
        decided_ms=0,
        query_id="q",
        batches=(JobChecksums(4, ()),),
        offsets="\n".join(lines) or None,
    )


@pytest.mark.parametrize(
    ("lines", "topics"),
    [
        ((A,), Subscribed(("a",))),
        ((B, A), Subscribed(("a", "added.later"))),
        ((FILES, "-", A, B), Matching("[ac]")),
        ((A, A), Assigned((TopicPartition("a", 1),))),
    ],
)
def test_a_source_has_the_offsets_of_its_topics(lines: tuple[str, ...], topics: ConsumerStrategy) -> None:
    assert select_decided_end(decision(*lines), topics) == {"a": {"0": 5, "1": 6}}


@pytest.mark.parametrize(
    ("lines", "why"),
    [
        ((), "could not read its checkpoint"),
        ((B, FILES), "None are of the topics"),
        ((A, '{"a":{"0":7}}'), "Several of them are of the topics"),
    ],
)
def test_a_source_without_offsets_of_its_own_begins_nowhere(lines: tuple[str, ...], why: str) -> None:
    """Two sources of one topic: nobody knows which one this is."""
    with pytest.raises(UnknownOffsets, match=why):
        select_decided_end(decision(*lines), Subscribed(("a",)))
