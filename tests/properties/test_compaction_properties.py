"""Any history of puts, deletions and transactions, cleaned at any time, against a table."""

from itertools import pairwise
from random import Random

from hypothesis import given
from hypothesis import strategies as st
from tests.support.compacted import CONFIG, Compacted

from harness.memory_fs import MemoryFileSystem, PowerLost
from harness.small_units import small_units
from tallystick.kernel.ids import ProducerEpoch, ProducerId, ProducerIdAndEpoch
from tallystick.kernel.value import replace
from tallystick.protocol.records import BatchHeader

KEYS = st.sampled_from(["a", "b", "c", "d"])
PUTS = st.lists(st.tuples(KEYS, st.one_of(st.none(), st.just("v"))), min_size=1, max_size=3)
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("put"), st.integers(0, 3), PUTS),  # 0: nobody; 3: an idempotent producer
        st.tuples(st.just("end"), st.integers(1, 2), st.booleans()),
        st.tuples(st.just("clean"), st.sampled_from([24 * 3, 24 * 5, 24 * 100]), st.booleans()),
        st.tuples(st.just("wait"), st.sampled_from([500, 1_000]), st.none()),
        st.tuples(st.just("roll"), st.none(), st.none()),
        st.tuples(st.just("crash"), st.integers(0, 60), st.none()),
    ),
    max_size=40,
)


class History:
    """Drives a log and keeps, beside it, what a reader must find."""

    def __init__(self) -> None:
        self.log = Compacted(MemoryFileSystem(), replace(CONFIG, segment_bytes=300))
        self.table: dict[str, str] = {}
        self.pending: dict[int, list[tuple[str, str | None]]] = {}
        self.sequences = {1: 0, 2: 0, 3: 0}
        self.written = 0

    def put(self, pid: int, puts: list[tuple[str, str | None]]) -> None:
        self.written += 1
        numbered = [(key, None if value is None else f"{value}{self.written}") for key, value in puts]
        if pid == 0:
            self.log.put(*numbered)
        else:
            producer = ProducerIdAndEpoch(ProducerId(pid), ProducerEpoch(0))
            self.log.put(*numbered, producer=producer, sequence=self.sequences[pid], transactional=pid < 3)
            self.sequences[pid] += len(numbered)
        if pid in (1, 2):
            self.pending.setdefault(pid, []).extend(numbered)
        else:
            self.commit(numbered)

    def commit(self, puts: list[tuple[str, str | None]]) -> None:
        for key, value in puts:
            if value is None:
                self.table.pop(key, None)
            else:
                self.table[key] = value

    def end(self, pid: int, commit: bool) -> None:
        # A transaction whose records lie under later ones of others would need the order of the log: a
        # reader applies by offset. The model keeps to one that is decided before anybody else writes.
        self.log.end(ProducerIdAndEpoch(ProducerId(pid), ProducerEpoch(0)), commit=commit)
        puts = self.pending.pop(pid, [])
        if commit:
            self.commit(puts)

    def crash(self, effect: int) -> None:
        """Power fails in a round of cleaning, or behind it."""
        log = self.log
        log.roll()
        recovery_point = log.log.recovery_point
        log.fs.crash_after = len(log.fs.effects) + effect
        try:
            log.clean()
        except PowerLost:
            log.first_dirty = 0
        log.fs.crash("prefix", seed=effect)
        log.reopen(recovery_point=recovery_point)


def runnable(history: History, step: tuple[str, object, object]) -> bool:
    """The model applies records when they are decided, so an open transaction has the log to itself."""
    kind, who, _ = step
    return not (kind == "put" and history.pending and who not in history.pending)


@given(STEPS, st.integers(0, 1000))
def test_a_reader_finds_the_same_table_whenever_the_log_is_cleaned(
    steps: list[tuple[str, object, object]], seed: int
) -> None:
    """[CLN-3] [CLN-5] The newest value of each key, no aborted record, and every producer goes on."""
    with small_units(Random(seed)):
        check_table(steps)


def check_table(steps: list[tuple[str, object, object]]) -> None:
    history = History()
    log = history.log
    for step in steps:
        if runnable(history, step):
            run(history, step)
    for pid in list(history.pending):
        history.end(pid, False)
    log.roll()
    log.clean()
    assert log.table() == history.table
    producers = {
        pid: state.next_sequence for pid, state in log.log.producer_state_manager.active_producers.items()
    }
    assert all(history.sequences[pid] == sequence for pid, sequence in producers.items())
    log.now_ms += 10_000
    log.clean_all()
    log.now_ms += 10_000
    log.clean_all()
    assert log.table() == history.table
    ends = {segment.base_offset for segment in log.log.segments[-1:]}
    closed = [(key, value) for offset, key, value in log.records() if offset < min(ends)]
    assert len({key for key, _ in closed}) == len(closed), "one record a key"
    assert all(value is not None for _, value in closed), "no tombstone after its horizon"
    in_order(log)


def run(history: History, step: tuple[str, object, object]) -> None:
    match step:
        case ("put", int(pid), list(puts)):
            history.put(pid, puts)
        case ("end", int(pid), bool(commit)):
            history.end(pid, commit)
        case ("clean", int(size), _):
            history.log.log.sync()
            history.log.clean(key_map_bytes=max(size, 24 * 5))
        case ("wait", int(ms), _):
            history.log.now_ms += ms
        case ("roll", _, _):
            history.log.roll()
        case ("crash", int(effect), _):
            history.crash(effect)


def in_order(log: Compacted) -> None:
    headers: list[BatchHeader] = [header for header, _ in log.batches()]
    for header, following in pairwise(headers):
        assert header.last_offset < following.base_offset
