"""Descriptors are shared out so that the broker's own never lack, however many clients connect."""

import pytest
from tests.support.memory_broker import memory_broker, on_a_loop

from tallystick.broker.partitions.descriptors import (
    CONNECTIONS_MIN,
    DESCRIPTORS_PER_PARTITION,
    FIXED_DESCRIPTORS,
    UNLIMITED,
    DescriptorBudget,
)
from tallystick.kernel.ids import INT32_MAX


@pytest.mark.parametrize("limit", [256, 300, 1024, 4096, 1 << 20])
@pytest.mark.parametrize("partitions", [0, 5, 100])
def test_everything_together_stays_below_the_limit(limit: int, partitions: int) -> None:
    shares = DescriptorBudget(limit)
    if partitions > shares.partitions_max:
        return
    used = (
        FIXED_DESCRIPTORS
        + shares.open_segments_max
        + DESCRIPTORS_PER_PARTITION * partitions
        + shares.limit_connections(partitions)
    )
    assert used <= limit


@pytest.mark.parametrize("limit", [256, 1024, 1 << 20])
def test_as_many_partitions_as_may_be_made_leave_connections(limit: int) -> None:
    shares = DescriptorBudget(limit)
    assert shares.limit_connections(shares.partitions_max) >= CONNECTIONS_MIN


@pytest.mark.parametrize("limit", [0, 10, 64])
def test_a_tiny_limit_still_allows_one_of_each(limit: int) -> None:
    shares = DescriptorBudget(limit)
    assert min(shares.partitions_max, shares.limit_connections(10), shares.open_segments_max) == 1


def test_without_a_limit_nothing_is_bounded() -> None:
    assert UNLIMITED.limit_connections(0) == INT32_MAX


@on_a_loop
async def test_max_partitions_is_bounded_by_the_descriptors_and_by_its_setting() -> None:
    async with memory_broker(max_partitions="1000", descriptors=DescriptorBudget(512)) as memory:
        assert memory.broker.config.max_partitions == DescriptorBudget(512).partitions_max < 1000
    async with memory_broker(max_partitions="7", descriptors=DescriptorBudget(512)) as memory:
        assert memory.broker.config.max_partitions == 7
