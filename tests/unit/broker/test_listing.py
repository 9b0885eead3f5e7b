"""An answer that is encoded entry by entry is the same bytes as one encoded at once."""

import pytest

from tallystick.broker.listing import SLICE_ENTRIES, Listed
from tallystick.protocol import encode
from tallystick.protocol.messages.describe_groups import DescribedGroup, DescribeGroupsResponse
from tallystick.protocol.messages.metadata import (
    MetadataResponse,
    MetadataResponseBroker,
    MetadataResponseTopic,
)

BROKER = MetadataResponseBroker(node_id=1, host="h", port=1)


def metadata(topics: tuple[MetadataResponseTopic, ...]) -> MetadataResponse:
    return MetadataResponse(brokers=(BROKER,), cluster_id="c", controller_id=1, topics=topics)


def topic(number: int) -> MetadataResponseTopic:
    return MetadataResponseTopic(name=f"t{number}", is_internal=bool(number % 2))


@pytest.mark.parametrize("count", [0, 1, 2, SLICE_ENTRIES, SLICE_ENTRIES + 1, 126, 127, 128, 300])
@pytest.mark.parametrize("version", range(14))
def test_slices_of_metadata_are_the_bytes_of_the_whole(version: int, count: int) -> None:
    listed = Listed(metadata, range(count), topic)
    assert b"".join(listed.slices(version)) == encode(listed.whole(), version)


@pytest.mark.parametrize("version", range(7))
def test_slices_of_a_list_at_the_end_are_the_bytes_of_the_whole(version: int) -> None:
    def group(number: int) -> DescribedGroup:
        return DescribedGroup(group_id=f"g{number}", group_state="Dead", protocol_type="", protocol_data="")

    listed = Listed(lambda groups: DescribeGroupsResponse(groups=groups), range(200), group)
    assert b"".join(listed.slices(version)) == encode(listed.whole(), version)


def test_no_slice_holds_more_entries_than_one_go() -> None:
    made: list[int] = []

    def counting(number: int) -> MetadataResponseTopic:
        made.append(number)
        return topic(number)

    before = 0
    for _ in Listed(metadata, range(1000), counting).slices(12):
        assert len(made) - before <= SLICE_ENTRIES
        before = len(made)
    assert made == list(range(1000))
