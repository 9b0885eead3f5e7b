"""A partition's producer state against a model that keeps the whole log and looks things up in it."""

from dataclasses import dataclass, field

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from tallystick.kernel.codes import ErrorCode
from tallystick.kernel.errors import Reject
from tallystick.kernel.ids import INT32_MAX
from tallystick.protocol.records.batch import BatchHeader
from tallystick.protocol.records.control import ControlType, EndTransactionMarker
from tallystick.storage.checkpoints.snapshots import decode_snapshot, encode_snapshot
from tallystick.storage.state.producer_state import AppendOrigin, DuplicateBatch, ProducerStateManager

TRANSACTIONAL = 0x10
PIDS = st.integers(1, 3)
EPOCHS = st.integers(0, 2)


@dataclass
class Entry:
    """One batch or marker in the model's log."""

    header: BatchHeader
    offset: int
    marker: EndTransactionMarker | None = None


@dataclass
class Model:
    """The rules as they are told, each answered by a walk over the log."""

    log: list[Entry] = field(default_factory=list)

    def of(self, pid: int) -> list[Entry]:
        return [entry for entry in self.log if entry.header.producer_id == pid]

    def cached(self, pid: int) -> list[Entry]:
        """The last five data batches of the current epoch, since that epoch began."""
        found: list[Entry] = []
        epoch: int | None = None
        for entry in self.of(pid):
            if entry.header.producer_epoch != epoch:
                epoch, found = entry.header.producer_epoch, []
            if entry.marker is None:
                found.append(entry)
        return found[-5:]

    def open_since(self, pid: int) -> int | None:
        first: int | None = None
        for entry in self.of(pid):
            if entry.marker is not None:
                first = None
            elif first is None and entry.header.is_transactional:
                first = entry.offset
        return first

    def unstable(self, high_watermark: int) -> int | None:
        candidates = [first for pid in (1, 2, 3) if (first := self.open_since(pid)) is not None]
        for at, entry in enumerate(self.log):
            if entry.marker is not None and entry.offset >= high_watermark:
                before = Model(self.log[:at]).open_since(entry.header.producer_id)
                candidates += [] if before is None else [before]
        return min(candidates, default=None)

    def repeatable(self, pid: int, *, transactional: bool) -> list[Entry]:
        """What a repetition is recognised among: of a transaction, within the one that is open [PRD-9]."""
        opened = self.open_since(pid)
        if not transactional:
            return self.cached(pid)
        return [entry for entry in self.cached(pid) if opened is not None and entry.offset >= opened]

    def verdict(self, header: BatchHeader) -> object:
        entries = self.of(header.producer_id)
        if not entries:
            return "accept"
        last = entries[-1].header
        for entry in self.repeatable(header.producer_id, transactional=header.is_transactional):
            same = (entry.header.producer_epoch, entry.header.base_sequence, entry.header.last_sequence)
            if same == (header.producer_epoch, header.base_sequence, header.last_sequence):
                return (entry.offset, entry.offset + entry.header.last_offset_delta)
        if header.producer_epoch < last.producer_epoch:
            return ErrorCode.INVALID_PRODUCER_EPOCH
        cached = self.cached(header.producer_id) if header.producer_epoch == last.producer_epoch else []
        expected = (cached[-1].header.last_sequence + 1) % 2**31 if cached else 0
        if header.base_sequence != expected:
            return ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
        is_part = header.is_transactional and header.producer_epoch == last.producer_epoch
        if self.open_since(header.producer_id) is not None and not is_part:
            return ErrorCode.INVALID_TXN_STATE
        return "accept"


class ProducerStateMachine(RuleBasedStateMachine):
    """Appends of all kinds, restarts and an advancing high watermark."""

    def __init__(self) -> None:
        super().__init__()
        self.states = ProducerStateManager()
        self.model = Model()
        self.end = 0
        self.high_watermark = 0

    def expected_sequence(self, pid: int) -> int:
        state = self.states.active_producers.get(pid)
        return state.next_sequence if state else 0

    @rule(
        pid=PIDS,
        epoch=EPOCHS,
        count=st.sampled_from([1, 2, 3, 2**28]),  # the sequences of what is remembered do not meet
        shift=st.sampled_from([0, 0, 0, 0, 1, -1, -3, -(2**28)]),
        transactional=st.booleans(),
        from_zero=st.booleans(),
    )
    def produce(
        self, pid: int, epoch: int, count: int, shift: int, transactional: bool, from_zero: bool
    ) -> None:
        sequence = 0 if from_zero else (self.expected_sequence(pid) + shift) & INT32_MAX
        attributes = TRANSACTIONAL if transactional else 0
        header = BatchHeader(
            self.end, 99, 0, 2, 0, attributes, count - 1, 0, self.end, pid, epoch, sequence, count
        )
        answer = self.states.check_batch(header)
        verdict = self.model.verdict(header)
        match answer:
            case Reject(code=code):
                assert verdict == code
            case DuplicateBatch(base_offset=base, last_offset=last):
                assert verdict == (base, last)
            case _:
                assert verdict == "accept"
                self.append(Entry(header, self.end))

    @rule(pid=PIDS, data=st.data())
    def repeat(self, pid: int, data: st.DataObject) -> None:
        """[PRD-2] Each of the last five is recognised; of a transaction that has ended none is [PRD-9]."""
        cached = self.model.cached(pid)
        if cached:
            entry = data.draw(st.sampled_from(cached))
            answer = self.states.check_batch(entry.header)
            if entry in self.model.repeatable(pid, transactional=entry.header.is_transactional):
                assert isinstance(answer, DuplicateBatch)
                assert answer.base_offset == entry.offset
            else:
                assert isinstance(answer, Reject)
                assert answer.code is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER

    @rule(
        pid=PIDS, epoch=EPOCHS, coordinator=st.integers(0, 2), commit=st.booleans(), version=st.integers(0, 2)
    )
    def end_transaction(self, pid: int, epoch: int, coordinator: int, commit: bool, version: int) -> None:
        header = BatchHeader(self.end, 99, 0, 2, 0, 0x30, 0, 0, self.end, pid, epoch, -1, 1)
        marker = EndTransactionMarker(control_type=ControlType(int(commit)), coordinator_epoch=coordinator)
        entries = self.model.of(pid)
        refused = False
        if entries:
            current = entries[-1].header.producer_epoch
            repeated = version < 2 or self.model.open_since(pid) is None
            markers = [entry.marker.coordinator_epoch for entry in entries if entry.marker]
            refused = epoch < current or (epoch == current and not repeated)
            refused = refused or bool(markers and coordinator < markers[-1])
        answer = self.states.check_marker(header, marker, version)
        assert isinstance(answer, Reject) is refused
        if not refused:
            self.append(Entry(header, self.end, marker))

    def append(self, entry: Entry) -> None:
        before = self.model.open_since(entry.header.producer_id)
        self.model.log.append(entry)
        if entry.marker is None:
            self.states.apply_batch(entry.header, entry.offset, entry.header.max_timestamp)
        else:
            ended = self.states.apply_marker(entry.header, entry.marker, entry.offset, entry.offset)
            assert (ended.first_offset if ended else None) == before
            if ended:
                still_open = [first for pid in (1, 2, 3) if (first := self.model.open_since(pid)) is not None]
                assert ended.last_stable_offset == min(still_open, default=entry.offset + 1)
        self.end = entry.offset + entry.header.last_offset_delta + 1

    @rule(data=st.data())
    def advance(self, data: st.DataObject) -> None:
        self.high_watermark = data.draw(st.integers(self.high_watermark, self.end))
        self.states.on_high_watermark_updated(self.high_watermark)

    @rule(at=st.floats(0, 1))
    def restart(self, at: float) -> None:
        """[PRD-6] A snapshot of any moment, the log behind it applied and the log before it recalled."""
        cut = int(at * len(self.model.log))
        before = replayed(self.model.log[:cut])
        stored = decode_snapshot(encode_snapshot(before.take_snapshot()))
        states = ProducerStateManager.from_snapshot(stored)
        states.restore_cached_batches(entry.header for entry in self.model.log[:cut])
        apply_all(states, self.model.log[cut:])
        states.on_high_watermark_updated(self.end)
        self.high_watermark = self.end
        assert sequences(states) == sequences(self.states)
        self.states.on_high_watermark_updated(self.end)
        assert states.first_unstable_offset == self.states.first_unstable_offset
        self.states = states

    @invariant()
    def stable_as_told(self) -> None:
        """[PRD-4]"""
        assert self.states.first_unstable_offset == self.model.unstable(self.high_watermark)

    @invariant()
    def replay_equals_live(self) -> None:
        """[PRD-1]"""
        again = replayed(self.model.log)
        assert sequences(again) == sequences(self.states)
        assert list(again.iter_open_transactions()) == list(self.states.iter_open_transactions())


def apply_all(states: ProducerStateManager, log: list[Entry]) -> None:
    for entry in log:
        if entry.marker is None:
            assert states.check_batch(entry.header, AppendOrigin.REPLICATION)
            states.apply_batch(entry.header, entry.offset, entry.header.max_timestamp)
        else:
            states.apply_marker(entry.header, entry.marker, entry.offset, entry.offset)


def replayed(log: list[Entry]) -> ProducerStateManager:
    states = ProducerStateManager()
    apply_all(states, log)
    return states


def sequences(states: ProducerStateManager) -> object:
    """All that later answers depend on. Timestamps are left out: a snapshot has one for entry and batch."""
    return {
        pid: (
            state.epoch,
            state.next_sequence,
            state.coordinator_epoch,
            state.current_txn_first_offset,
            [batch[:4] for batch in state.batches],
        )
        for pid, state in states.active_producers.items()
    }


TestProducerStates = ProducerStateMachine.TestCase
TestProducerStates.settings = settings(stateful_step_count=40, deadline=None)
