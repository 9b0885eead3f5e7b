"""What a fetch may see, over all small inputs."""

from itertools import product

from tallystick.broker.partitions.visibility import (
    RESPONSE_BYTES_MIN,
    ByteBudget,
    IsolationLevel,
    check_leader_epoch,
    find_readable_end,
    limit_response_bytes,
)
from tallystick.kernel.codes import ErrorCode


def test_nothing_unsynced_and_nothing_undecided_is_read() -> None:
    """[FET-1]"""
    for high_watermark, stable in product(range(4), repeat=2):
        assert find_readable_end(IsolationLevel.READ_UNCOMMITTED, high_watermark, stable) == high_watermark
        committed = find_readable_end(IsolationLevel.READ_COMMITTED, high_watermark, stable)
        assert committed == min(high_watermark, stable)


def test_epochs_older_are_fenced_newer_are_unknown_none_is_not_checked() -> None:
    assert check_leader_epoch(-1, 3) is None
    assert check_leader_epoch(3, 3) is None
    older, newer = check_leader_epoch(2, 3), check_leader_epoch(4, 3)
    assert older is not None
    assert older.code is ErrorCode.FENCED_LEADER_EPOCH
    assert newer is not None
    assert newer.code is ErrorCode.UNKNOWN_LEADER_EPOCH


def test_the_first_batch_passes_whatever_its_size_and_then_limits_hold() -> None:
    budget = ByteBudget(10)
    assert budget.is_first
    assert budget.limit_partition(100) == 10
    budget.consume(50)
    assert not budget.is_first
    assert budget.limit_partition(100) == 0
    assert budget.is_spent


def test_an_empty_partition_does_not_use_up_the_first_batch() -> None:
    budget = ByteBudget(10)
    budget.consume(0)
    assert budget.is_first
    assert not budget.is_spent


def test_readers_who_stop_never_take_all_the_room_and_never_all_of_anothers_answer() -> None:
    """[FET-2]"""
    room, asked, unread = 256 << 20, 50 << 20, 0
    assert limit_response_bytes(asked, 0, room) == asked
    for stopped in range(1000):
        given = limit_response_bytes(asked, unread, room)
        assert RESPONSE_BYTES_MIN <= given <= asked
        unread += given
        assert unread <= room + (stopped + 1) * RESPONSE_BYTES_MIN
    assert limit_response_bytes(10, unread, room) == 10
