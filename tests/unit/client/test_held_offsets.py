"""What a consumer logs while an open transaction holds the offsets of its group."""

import pytest

from tallystick.client.consumer.offset_requests import HELD_MS, HeldOffsetWarning
from tallystick.client.errors import BrokerRefused
from tallystick.client.offsets import split_offset_fetch_response
from tallystick.kernel.codes import ErrorCode
from tallystick.kernel.ids import GroupId
from tallystick.protocol.messages.groups.offset_fetch import (
    OffsetFetchResponse,
    OffsetFetchResponsePartition,
    OffsetFetchResponseTopic,
)


def refuse(code: ErrorCode) -> list[BrokerRefused]:
    partition = OffsetFetchResponsePartition(
        partition_index=0, committed_offset=-1, metadata="", error_code=code
    )
    answer = OffsetFetchResponse(
        topics=(OffsetFetchResponseTopic(name="t", partitions=(partition,)),), error_code=0
    )
    return list(split_offset_fetch_response(answer, "g")[1].values())


HELD = refuse(ErrorCode.UNSTABLE_OFFSET_COMMIT)


def test_offsets_that_stay_held_are_logged_once_and_with_a_way_out(caplog: pytest.LogCaptureFixture) -> None:
    """[CLI-36] The call itself ends after default.api.timeout.ms, which is a minute."""
    now_ms = 5000
    warning = HeldOffsetWarning(GroupId("g"), lambda: now_ms)
    for _ in range(2):
        warning.note(HELD)
    assert not caplog.records
    now_ms += HELD_MS - 1
    warning.note(HELD)
    assert not caplog.records
    now_ms += 1
    for _ in range(2):
        warning.note(HELD)
    (line,) = caplog.messages
    for part in ("group 'g'", "t-0", "transactions list", "__consumer_offsets", "resolve"):
        assert part in line
    assert "__consumer_offsets" in HELD[0].what()


def test_offsets_that_are_held_for_a_moment_are_not_logged(caplog: pytest.LogCaptureFixture) -> None:
    now_ms = 0
    warning = HeldOffsetWarning(GroupId("g"), lambda: now_ms)
    for answer in (HELD, [], HELD, refuse(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS), HELD):
        warning.note(answer)
        now_ms += HELD_MS - 1
    assert not caplog.records
