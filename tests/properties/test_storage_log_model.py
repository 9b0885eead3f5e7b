"""A log against a list: whatever is done to it, it returns what was put in [LOG-1] [LOG-6]."""

from contextlib import ExitStack
from random import Random

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule
from tests.support.effort import examples

from harness.memory_fs import MemoryFileSystem
from harness.small_units import small_units
from tallystick.kernel.errors import Reject
from tallystick.kernel.ids import LeaderEpoch, Offset, TopicPartition
from tallystick.protocol.records import BatchMeta, Codec, Record, decode_records, encode_batch, iter_headers
from tallystick.storage.disk.reserve import UnlimitedSpace
from tallystick.storage.log.loader import PriorShutdown, create_log, open_log
from tallystick.storage.log.log import AppendResult, Log, LogHooks, delete_records_before
from tallystick.storage.segments.log_segment import OpenSegmentCache
from tallystick.storage.state.validation import LogConfig

NOW = 1_700_000_000_000
TP = TopicPartition("t", 0)
CONFIG = LogConfig(segment_bytes=900, index_interval_bytes=150)


class LogAgainstList(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.fs = MemoryFileSystem()
        self.hooks = LogHooks(
            space_guard=UnlimitedSpace(),
            segment_cache=OpenSegmentCache(files_max=1),
            before_delete=self.keep_start,
        )
        self.start = 0
        self.values: list[tuple[int, bytes]] = []
        self.log: Log = create_log(self.fs, "d", TP, CONFIG, self.hooks)
        self.log.sync()
        self.fs.sync_dir("")
        self.units = ExitStack()

    @initialize(seed=st.none() | st.integers(0, 1000))
    def draw_units(self, seed: int | None) -> None:
        if seed is not None:
            self.units.enter_context(small_units(Random(seed)))

    def teardown(self) -> None:
        self.units.close()

    def keep_start(self, log: Log) -> None:
        self.start = log.log_start_offset

    @rule(
        values=st.lists(st.binary(max_size=120), min_size=1, max_size=5),
        codec=st.sampled_from([Codec.NONE, Codec.LZ4]),
        ts=st.integers(0, 5000),
    )
    def append(self, values: list[bytes], codec: Codec, ts: int) -> None:
        records = [
            Record(offset=i, timestamp_ms=NOW - ts + i, key=None, value=value, headers=())
            for i, value in enumerate(values)
        ]
        data = encode_batch(records, BatchMeta(codec=codec))
        result = self.log.append(data, now_ms=NOW, leader_epoch=LeaderEpoch(0))
        assert isinstance(result, AppendResult)
        assert result.base_offset == len(self.values)
        self.values += [(record.timestamp_ms, value) for record, value in zip(records, values, strict=True)]

    @rule()
    def roll(self) -> None:
        self.log.roll(NOW)

    @rule()
    def sync(self) -> None:
        assert self.log.sync() == len(self.values)

    @rule(at=st.integers(0, 50))
    def delete(self, at: int) -> None:
        target = Offset(min(at, self.log.reader.high_watermark))
        assert delete_records_before(self.log, target) is None
        assert self.log.log_start_offset == max(self.start, target)

    @rule(clean=st.booleans())
    def reopen(self, clean: bool) -> None:
        point, synced = self.log.recovery_point, self.log.reader.synced_end
        self.log.close(clean=clean)
        if not clean:
            self.fs.crash("prefix", len(self.values))
        ended = PriorShutdown(was_clean=clean, recovery_point=point, log_start_offset=self.start)
        self.log, _ = open_log(self.fs, "d", TP, CONFIG, self.hooks, ended)
        assert synced <= self.log.log_end_offset <= len(self.values)
        del self.values[self.log.log_end_offset :]

    @rule(at=st.integers(0, 60), max_bytes=st.integers(0, 700))
    def read(self, at: int, max_bytes: int) -> None:
        result = self.log.reader.read(at, max_bytes, upper=self.log.log_end_offset)
        if not self.log.log_start_offset <= at <= len(self.values):
            assert isinstance(result, Reject)
            return
        assert not isinstance(result, Reject)
        next_offset = None
        for position, header in iter_headers(result.data):
            assert next_offset in (None, header.base_offset)
            if next_offset is None:
                assert header.base_offset <= at <= header.last_offset
            next_offset = header.next_offset
            for record in decode_records(result.data, position):
                assert (record.timestamp_ms, record.value) == self.values[record.offset]
        assert (next_offset is None) == (at == len(self.values))

    @rule(ts=st.integers(0, 5100))
    def find_time(self, ts: int) -> None:
        wanted = NOW - ts
        found = self.log.reader.find_offset_by_timestamp(wanted)
        start = self.log.log_start_offset
        expected = next((at for at in range(start, len(self.values)) if self.values[at][0] >= wanted), None)
        assert (None if found is None else found[0]) == expected

    @invariant()
    def ends_agree(self) -> None:
        assert self.log.log_end_offset == len(self.values)
        assert self.log.reader.high_watermark <= self.log.log_end_offset


TestLogAgainstList = LogAgainstList.TestCase
TestLogAgainstList.settings = settings(
    max_examples=examples(quick=20, gate=20, full=60), stateful_step_count=40, deadline=None
)
