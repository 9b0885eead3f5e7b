"""Coordinators decide by nothing whose CRC is wrong: a partition with one flipped bit is not served."""

from pathlib import Path

import pytest
from tests.support.damaged_directory import (
    COMMITTED_OFFSET,
    GROUP,
    PREPARED,
    broker_on,
    find,
    make_directories,
)
from tests.support.memory_broker import MemoryBroker, Turn, on_a_loop
from tests.support.txn_requests import init

from tallystick.kernel.codes import ErrorCode
from tallystick.protocol.messages.groups.offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopic,
)
from tallystick.storage.disk.fs import CorruptLog

LOG = "00000000000000000000.log"


async def keep(desk: MemoryBroker) -> tuple[int, int]:
    """Ask for the transaction in doubt; return the error code and its producer id."""
    answer = await desk.ask(init(PREPARED, enable_2pc=True, keep_prepared_txn=True), 6)
    return answer.error_code, answer.ongoing_txn_producer_id


async def fetch_offset(desk: MemoryBroker) -> tuple[int, list[int]]:
    while desk.broker.groups.list_groups() == desk.broker.groups._runtime.refusals.loading:
        await Turn()
    wanted = OffsetFetchRequestTopic(name="t", partition_indexes=(0,))
    request = OffsetFetchRequest(groups=(OffsetFetchRequestGroup(group_id=GROUP, topics=(wanted,)),))
    (group,) = (await desk.ask(request, 8)).groups
    return group.error_code, [each.committed_offset for topic in group.topics for each in topic.partitions]


def flip_state(file: Path) -> int:
    """Make Ongoing of the last record PrepareAbort; return where its batch begins."""
    data = bytearray(file.read_bytes())
    name = data.rindex(PREPARED.encode()) + len(PREPARED)
    state = name + (2 if data[name] & 0x80 else 1) + 16
    assert data[state] == 1
    data[state] ^= 2
    file.write_bytes(data)
    return find_batch(data, state)


def flip_offset(file: Path) -> int:
    """Make the committed offset another one; return where its batch begins."""
    data = bytearray(file.read_bytes())
    at = data.rindex(COMMITTED_OFFSET.to_bytes(8, "big"))
    data[at + 6] ^= 4
    file.write_bytes(data)
    return find_batch(data, at)


def find_batch(data: bytes | bytearray, at: int) -> int:
    start = 0
    while (end := start + 12 + int.from_bytes(data[start + 8 : start + 12], "big")) <= at:
        start = end
    return start


@on_a_loop
async def test_a_state_of_one_flipped_bit_is_not_believed(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    directory = (await make_directories(tmp_path))["clean"]
    file = directory / "__transaction_state-0" / LOG
    at = flip_state(file)
    damaged = file.read_bytes()
    async with broker_on(directory) as desk:
        assert await keep(desk) == (ErrorCode.COORDINATOR_NOT_AVAILABLE, -1)
        assert await fetch_offset(desk) == (0, [COMMITTED_OFFSET])
        assert find(desk, "t").log.reader.last_stable_offset < find(desk, "t").log.log_end_offset
        assert file.read_bytes() == damaged
    (error,) = (each for each in caplog.records if each.levelname == "ERROR")
    assert (
        "__transaction_state-0 is damaged and is not served until the broker restarts:"
        f" {file}: corrupt at byte {at}" in error.getMessage()
    )
    assert error.exc_info is None


@on_a_loop
async def test_an_offset_of_one_flipped_bit_is_not_believed(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    directory = (await make_directories(tmp_path))["clean"]
    file = directory / "__consumer_offsets-0" / LOG
    at = flip_offset(file)
    async with broker_on(directory) as desk:
        assert await fetch_offset(desk) == (ErrorCode.COORDINATOR_NOT_AVAILABLE, [])
        assert desk.broker.groups.list_groups() == ()
        code, ongoing = await keep(desk)
        assert (code, ongoing) != (0, -1)
        assert code == 0
    assert f"{file}: corrupt at byte {at}" in caplog.text


@pytest.mark.parametrize(
    ("topic", "flip"), [("__transaction_state", flip_state), ("__consumer_offsets", flip_offset)]
)
@on_a_loop
async def test_after_a_kill_the_start_is_refused_with_the_file_and_the_byte(
    topic: str, flip: "object", tmp_path: Path
) -> None:
    directory = (await make_directories(tmp_path))["killed"]
    file = directory / f"{topic}-0" / LOG
    at = flip(file)  # type: ignore[operator]
    with pytest.raises(CorruptLog) as caught:
        async with broker_on(directory):
            pass
    assert (caught.value.file, caught.value.position) == (str(file), at)


@on_a_loop
async def test_what_is_restored_is_served_again(tmp_path: Path) -> None:
    directory = (await make_directories(tmp_path))["clean"]
    file = directory / "__transaction_state-0" / LOG
    sound = file.read_bytes()
    flip_state(file)
    async with broker_on(directory) as desk:
        assert (await keep(desk))[0] == ErrorCode.COORDINATOR_NOT_AVAILABLE
    file.write_bytes(sound)
    async with broker_on(directory) as desk:
        code, ongoing = await keep(desk)
        assert code == 0
        assert ongoing >= 0
