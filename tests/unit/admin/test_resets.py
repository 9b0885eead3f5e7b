"""What becomes of an offset's leader epoch and metadata when a group is moved."""

import pytest

from tallystick.admin.resets import plan_offset
from tallystick.client.offsets import OffsetAndMetadata

NOTED = OffsetAndMetadata(5, leader_epoch=2, metadata="a note")


@pytest.mark.parametrize(
    ("now", "offset", "then"),
    [(None, 5, OffsetAndMetadata(5)), (NOTED, 5, NOTED), (NOTED, 4, OffsetAndMetadata(4))],
    ids=["first", "stays", "moves"],
)
def test_an_offset_that_stays_stays_whole(
    now: OffsetAndMetadata | None, offset: int, then: OffsetAndMetadata
) -> None:
    plan = plan_offset(now, offset)
    assert (plan.current, plan.target) == (now, then)
