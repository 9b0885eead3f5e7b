"""A partition: who waits for the log, and what releases them."""

import asyncio

import pytest

from harness.memory_fs import MemoryFileSystem
from tallystick.broker.config.topic_config import TopicConfig
from tallystick.broker.partitions.partition import Partition
from tallystick.kernel.errors import TallystickError
from tallystick.kernel.ids import (
    LeaderEpoch,
    Offset,
    ProducerEpoch,
    ProducerId,
    ProducerIdAndEpoch,
    TopicPartition,
)
from tallystick.protocol.records import (
    BatchMeta,
    ControlType,
    EndTransactionMarker,
    Record,
    encode_batch,
    encode_marker,
)
from tallystick.storage.disk.fs import StorageFailure
from tallystick.storage.disk.reserve import UnlimitedSpace
from tallystick.storage.log.loader import create_log
from tallystick.storage.log.log import AppendResult, Log, LogHooks, TxnGuard
from tallystick.storage.segments.log_segment import OpenSegmentCache
from tallystick.storage.state.producer_state import AppendOrigin
from tallystick.storage.state.validation import FlushPolicy, LogConfig
from tallystick.testing import FakeClock


class Lost(TallystickError):
    """The disk of a test is gone."""


def partition(policy: FlushPolicy) -> tuple[Partition, list[Log]]:
    fs = MemoryFileSystem()
    fs.mkdir("/data")
    hooks = LogHooks(space_guard=UnlimitedSpace(), segment_cache=OpenSegmentCache())
    log = create_log(fs, "/data/t-0", TopicPartition("t", 0), LogConfig(flush_policy=policy), hooks)
    requested: list[Log] = []
    made = Partition(
        log,
        leader_epoch=LeaderEpoch(0),
        config=TopicConfig(),
        clock=FakeClock(),
        request_sync=requested.append if policy == "ack" else None,
        offline=lambda _: None,
    )
    return made, requested


def append(to: Partition) -> AppendResult:
    record = Record(offset=0, timestamp_ms=1, key=None, value=b"v", headers=())
    result = to.append(encode_batch([record], BatchMeta()))
    assert isinstance(result, AppendResult)
    return result


def test_no_client_sees_or_learns_of_records_that_are_not_on_the_disk() -> None:
    """[PRT-1]"""

    async def play() -> None:
        made, requested = partition("ack")
        called: list[int] = []
        made.add_waiter(lambda: called.append(made.log.reader.high_watermark))
        durable = made.when_durable(append(made).last_offset)
        assert durable is not None
        assert requested == [made.log]
        assert made.log.reader.high_watermark == 0
        made.notify_waiters()
        assert not durable.done()
        made.log.sync()
        made.notify_waiters()
        assert durable.done()
        assert called[-1] == 1
        assert made.when_durable(Offset(0)) is None

    asyncio.run(play())


def test_the_last_stable_offset_never_shows_a_marker_that_is_not_on_the_disk() -> None:
    """[PRT-1] A power loss would take the decision back that a reader has seen."""

    async def play() -> None:
        made, _ = partition("ack")
        meta = BatchMeta(producer_id=42, producer_epoch=0, base_sequence=0, is_transactional=True)
        record = Record(offset=0, timestamp_ms=1, key=None, value=b"v", headers=())
        assert isinstance(made.append(encode_batch([record], meta), AppendOrigin.COORDINATOR), AppendResult)
        made.log.sync()
        made.notify_waiters()
        assert made.log.reader.last_stable_offset == 0
        marker = EndTransactionMarker(control_type=ControlType.COMMIT, coordinator_epoch=0)
        signed = ProducerIdAndEpoch(ProducerId(42), ProducerEpoch(1))
        guard = TxnGuard(transaction_version=2)
        ended = made.append(encode_marker(marker, signed, timestamp_ms=2), AppendOrigin.COORDINATOR, guard)
        assert isinstance(ended, AppendResult)
        made.notify_waiters()
        assert (made.log.log_end_offset, made.log.reader.last_stable_offset) == (2, 0)
        made.log.sync()
        made.notify_waiters()
        assert made.log.reader.last_stable_offset == 2

    asyncio.run(play())


def test_where_nothing_is_synced_appending_is_enough() -> None:
    async def play() -> None:
        made, _ = partition("os")
        called: list[int] = []
        made.add_waiter(lambda: called.append(made.log.reader.high_watermark))
        assert made.when_durable(append(made).last_offset) is None
        assert called == [1]

    asyncio.run(play())


def test_a_lost_disk_fails_all_who_wait() -> None:
    """[PRT-2]"""

    async def play() -> None:
        made, _ = partition("ack")
        waiting = [made.when_durable(append(made).last_offset) for _ in range(3)]
        made.fail(Lost("gone"))
        for future in waiting:
            assert future is not None
            with pytest.raises(Lost):
                future.result()

    asyncio.run(play())


def test_a_replay_reads_every_batch_once() -> None:
    async def play() -> None:
        made, _ = partition("os")
        for _ in range(10):
            append(made)
        pieces = list(made.iter_batches(150))
        assert len(pieces) > 1
        assert b"".join(pieces) == b"".join(made.iter_batches(1 << 20))

    asyncio.run(play())


def test_a_replay_whose_read_is_refused_fails_instead_of_taking_a_part_for_the_whole() -> None:
    async def play() -> None:
        made, _ = partition("os")
        for _ in range(10):
            append(made)
        pieces = made.iter_batches(150)
        assert next(pieces)
        made.delete_records_before(Offset(8))
        with pytest.raises(StorageFailure, match="which has 8 to 10"):
            list(pieces)
        assert b"".join(made.iter_batches(150)), "what is read anew begins where the log does"

    asyncio.run(play())
