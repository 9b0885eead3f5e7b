"""A compacted log on an in-memory disk, and rounds of cleaning run over it step by step."""

from dataclasses import dataclass, field

from harness.memory_fs import MemoryFileSystem
from tallystick.kernel.errors import Reject
from tallystick.kernel.ids import LeaderEpoch, ProducerEpoch, ProducerId, ProducerIdAndEpoch, TopicPartition
from tallystick.protocol.records import (
    BatchHeader,
    BatchMeta,
    ControlType,
    EndTransactionMarker,
    Record,
    decode_records,
    encode_batch,
    encode_marker,
    iter_headers,
)
from tallystick.storage.compaction.cleaner import CleanedGroup, CleaningRequest, RoundSummary, clean_log
from tallystick.storage.compaction.swap import SegmentSwap
from tallystick.storage.disk.reserve import UnlimitedSpace
from tallystick.storage.log.loader import PriorShutdown, create_log, open_log
from tallystick.storage.log.log import Log, LogHooks, TxnGuard
from tallystick.storage.segments.log_segment import OpenSegmentCache, SegmentReader
from tallystick.storage.state.producer_state import AppendOrigin
from tallystick.storage.state.validation import LogConfig

DIRECTORY = "data/t-0"
PARTITION = TopicPartition("t", 0)
CONFIG = LogConfig(
    segment_bytes=400,
    cleanup_policy=frozenset({"compact"}),
    delete_retention_ms=1_000,
    index_interval_bytes=100,
)
HOOKS = LogHooks(space_guard=UnlimitedSpace(), segment_cache=OpenSegmentCache())
NO_PRODUCER = ProducerIdAndEpoch(ProducerId(-1), ProducerEpoch(-1))

Put = tuple[str, str | None]


@dataclass
class Compacted:
    """A log with the operations of a test; every record's timestamp is `now_ms`."""

    fs: MemoryFileSystem = field(default_factory=MemoryFileSystem)
    config: LogConfig = CONFIG
    now_ms: int = 1_000_000
    first_dirty: int = 0
    log: Log = field(init=False)

    def __post_init__(self) -> None:
        self.log = create_log(self.fs, DIRECTORY, PARTITION, self.config, HOOKS)
        self.log.sync()
        self.fs.sync_dir("data")
        self.fs.sync_dir("")

    def put(
        self,
        *puts: Put,
        producer: ProducerIdAndEpoch = NO_PRODUCER,
        sequence: int = -1,
        transactional: bool = False,
    ) -> int:
        """Append one batch of keys and values, and return its base offset."""
        records = [
            Record(
                offset=number,
                timestamp_ms=self.now_ms,
                key=key.encode(),
                value=None if value is None else value.encode(),
                headers=(),
            )
            for number, (key, value) in enumerate(puts)
        ]
        meta = BatchMeta(
            producer_id=producer.producer_id,
            producer_epoch=producer.epoch,
            base_sequence=sequence,
            is_transactional=transactional,
        )
        return self.append(encode_batch(records, meta), AppendOrigin.CLIENT)

    def end(self, producer: ProducerIdAndEpoch, *, commit: bool) -> int:
        kind = ControlType.COMMIT if commit else ControlType.ABORT
        marker = EndTransactionMarker(control_type=kind, coordinator_epoch=0)
        return self.append(
            encode_marker(marker, producer, timestamp_ms=self.now_ms), AppendOrigin.COORDINATOR
        )

    def append(self, batch: bytes, origin: AppendOrigin) -> int:
        result = self.log.append(
            batch,
            origin=origin,
            now_ms=self.now_ms,
            leader_epoch=LeaderEpoch(0),
            guard=TxnGuard(transaction_version=1),
        )
        assert not isinstance(result, Reject), result
        return result.base_offset

    def roll(self) -> None:
        """Close the last segment, so that everything so far can be cleaned."""
        self.log.sync()
        self.log.roll(self.now_ms)
        self.log.sync()

    # -- cleaning ------------------------------------------------------------------------------------

    def request(self, *, key_map_bytes: int = 100_000) -> CleaningRequest:
        log = self.log
        closed = log.segments[:-1]
        ends = [segment.base_offset for segment in log.segments[1:]]
        stable = log.reader.last_stable_offset
        return CleaningRequest(
            directory=DIRECTORY,
            segments=tuple(
                (segment.base_offset, end, segment.size)
                for segment, end in zip(closed, ends, strict=True)
                if end <= stable
            ),
            first_dirty_offset=self.first_dirty,
            segment_bytes=self.config.segment_bytes,
            index_interval_bytes=self.config.index_interval_bytes,
            delete_retention_ms=self.config.delete_retention_ms,
            now_ms=self.now_ms,
            key_map_bytes=key_map_bytes,
            producers=tuple(
                (state.producer_id, state.last_data_offset, state.epoch)
                for state in log.producer_state_manager.active_producers.values()
            ),
        )

    def clean(self, *, key_map_bytes: int = 100_000) -> RoundSummary:
        """Clean one whole round, and install its segments as the broker does."""
        request = self.request(key_map_bytes=key_map_bytes)
        if all(end <= self.first_dirty for _, end, _ in request.segments):
            return RoundSummary(
                end_offset=self.first_dirty, bytes_read=0, bytes_written=0, keys=0, key_map_full=False
            )
        for step in clean_log(self.fs, request):
            if isinstance(step, RoundSummary):
                self.first_dirty = step.end_offset
                return step
            self.swap(step)
        raise AssertionError("a round ends with RoundDone")

    def clean_all(self) -> RoundSummary:
        """Clean one round from the start of the log, as after a lost checkpoint."""
        self.first_dirty = 0
        return self.clean()

    def swap(self, group: CleanedGroup) -> None:
        swap = SegmentSwap(self.log, group)
        assert swap.is_current()
        for step in swap.iter_steps():
            step.run()
        swap.remove_old_files()

    def reopen(self, *, clean_stop: bool = False, recovery_point: int = 0) -> None:
        ended = PriorShutdown(was_clean=clean_stop, recovery_point=recovery_point)
        self.log, _ = open_log(self.fs, DIRECTORY, PARTITION, self.config, HOOKS, ended)

    # -- reading -----------------------------------------------------------------------------------------

    def batches(self) -> list[tuple[BatchHeader, list[Record]]]:
        """Return every batch of the log, from start to end, as a reader finds them."""
        found = []
        offset = self.log.segments[0].base_offset
        while offset < self.log.log_end_offset:
            result = self.log.reader.read(offset, 1 << 20, upper=self.log.log_end_offset)
            assert not isinstance(result, Reject), result
            if not result.data:
                break
            for at, header in iter_headers(result.data):
                found.append((header, list(decode_records(result.data, at))))
                offset = header.next_offset
        return found

    def records(self) -> list[tuple[int, str, str | None]]:
        """Return offset, key and value of every data record, aborted ones too."""
        return [
            (
                record.offset,
                (record.key or b"").decode(),
                None if record.value is None else record.value.decode(),
            )
            for header, records in self.batches()
            if not header.is_control
            for record in records
        ]

    def table(self) -> dict[str, str]:
        """Return the newest value of each key, as a reader of all committed records ends up with."""
        end = self.log.log_end_offset
        aborted = self.log.reader.collect_aborted_txns(0, end)
        found: dict[str, str] = {}
        for header, records in self.batches():
            if header.is_control:
                continue
            dropped = header.is_transactional and any(
                txn.producer_id == header.producer_id
                and txn.first_offset <= header.base_offset < txn.last_offset
                for txn in aborted
            )
            for record in [] if dropped else records:
                key = (record.key or b"").decode()
                if record.value is None:
                    found.pop(key, None)
                else:
                    found[key] = record.value.decode()
        return found


def find_segment_end(segment: SegmentReader) -> int:
    """Return the offset after the last batch of a segment."""
    ends = [last_offset + 1 for _, _, _, last_offset in segment.iter_batch_spans(0)]
    return max(ends, default=segment.base_offset)
