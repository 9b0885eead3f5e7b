"""Each gauge, read from real partitions and real entries, with time by hand."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest

from harness.memory_fs import MemoryFileSystem
from tallystick.broker.config.topic_config import TopicConfig
from tallystick.broker.metrics.broker_metrics import SLICE_PARTITIONS, GaugeSources, read_gauges
from tallystick.broker.partitions.log_cleaner import count_held_back_bytes
from tallystick.broker.partitions.partition import Partition
from tallystick.broker.txn.machine.consistency import LostCommittedRecords
from tallystick.broker.txn.machine.model import (
    DecidedPhase,
    IdlePhase,
    OngoingPhase,
    TransactionResult,
    TxnEntry,
    TxnPhase,
)
from tallystick.kernel.codes import ErrorCode
from tallystick.kernel.errors import Reject
from tallystick.kernel.ids import (
    LeaderEpoch,
    Offset,
    ProducerEpoch,
    ProducerId,
    ProducerIdAndEpoch,
    TimestampMs,
    TopicPartition,
    TransactionalId,
)
from tallystick.protocol.records import (
    BatchMeta,
    ControlType,
    EndTransactionMarker,
    Record,
    encode_batch,
    encode_marker,
)
from tallystick.storage.disk.reserve import DiskReserve, UnlimitedSpace
from tallystick.storage.log.loader import create_log
from tallystick.storage.log.log import AppendResult, LogHooks, TxnGuard
from tallystick.storage.segments.log_segment import OpenSegmentCache
from tallystick.storage.state.producer_state import LATE_TRANSACTION_BUFFER_MS, AppendOrigin
from tallystick.storage.state.validation import FlushPolicy, LogConfig
from tallystick.testing import FakeClock

MAX_TIMEOUT_MS = 900_000
LATE_MS = MAX_TIMEOUT_MS + LATE_TRANSACTION_BUFFER_MS
LAG = "kafka_cluster_partition_laststableoffsetlag"
LAG_MAX = "kafka_server_replicamanager_maxlaststableoffsetlag"
DURATION = "kafka_cluster_partition_maxactivetransactionduration"
LATE = "kafka_server_replicamanager_partitionswithlatetransactionscount"
LATE_2PC = "tallystick_partitions_with_late_two_phase_transactions"
OPEN_TIME = "kafka_coordinator_transaction_transactionstatemanager_activetransactionopentimemaxms"


def ident(producer_id: int, epoch: int = 0) -> ProducerIdAndEpoch:
    return ProducerIdAndEpoch(ProducerId(producer_id), ProducerEpoch(epoch))


class Coordinator:
    """A coordinator's answers: entries that a test has put there."""

    def __init__(self) -> None:
        self.known: dict[str, TxnEntry] = {}
        self.loading = False
        self.offline_partition_count = 0
        self.reload_count = 0

    def list_entries(self) -> tuple[TxnEntry, ...] | Reject:
        if self.loading:
            return Reject(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, "the log is being read")
        return tuple(self.known.values())

    def find_by_producer_id(self, producer_id: ProducerId) -> TxnEntry | None:
        return next((e for e in self.known.values() if e.described_identity.producer_id == producer_id), None)


@dataclass
class FoundAtStart:
    """What a comparison has left."""

    hanging_transactions: Sequence[object]
    lost_records: Sequence[LostCommittedRecords]


@dataclass
class World:
    """Partitions of topic `t`, a coordinator, a clock."""

    clock: FakeClock = field(default_factory=FakeClock)
    coordinator: Coordinator = field(default_factory=Coordinator)
    groups: Coordinator = field(default_factory=Coordinator)
    partitions: list[Partition] = field(default_factory=list)
    unclean_start: FoundAtStart | None = None

    def __post_init__(self) -> None:
        self.fs = MemoryFileSystem()
        self.fs.mkdir("/data")
        self.reserve = DiskReserve(self.fs, "/data", 1 << 21)

    def partition(self, flush_policy: FlushPolicy = "os", **settings: Any) -> Partition:
        name = TopicPartition("t", len(self.partitions))
        config = LogConfig(flush_policy=flush_policy, **settings)
        hooks = LogHooks(space_guard=UnlimitedSpace(), segment_cache=OpenSegmentCache())
        made = Partition(
            create_log(self.fs, f"/data/{name}", name, config, hooks),
            leader_epoch=LeaderEpoch(0),
            config=TopicConfig(),
            clock=self.clock,
            request_sync=None,
            offline=lambda _: None,
        )
        self.partitions.append(made)
        return made

    def write(self, to: Partition, identity: ProducerIdAndEpoch | None = None, sequence: int = 0) -> int:
        """One record, in the transaction of `identity` if there is one; its offset."""
        record = Record(0, self.clock.now_ms(), None, b"v" * 100, ())
        meta = BatchMeta()
        if identity is not None:
            meta = BatchMeta(
                producer_id=identity.producer_id,
                producer_epoch=identity.epoch,
                base_sequence=sequence,
                is_transactional=True,
            )
        done = to.append(encode_batch([record], meta))
        assert isinstance(done, AppendResult)
        return done.base_offset

    def mark(self, to: Partition, identity: ProducerIdAndEpoch) -> None:
        marker = EndTransactionMarker(control_type=ControlType.COMMIT, coordinator_epoch=0)
        batch = encode_marker(marker, identity, timestamp_ms=self.clock.now_ms())
        done = to.append(batch, AppendOrigin.COORDINATOR, TxnGuard(transaction_version=2))
        assert isinstance(done, AppendResult)

    def enter(
        self, name: str, phase: TxnPhase, client: ProducerIdAndEpoch, timeout_ms: int | None = 60_000
    ) -> TxnEntry:
        entry = TxnEntry(
            transactional_id=TransactionalId(name),
            phase=phase,
            client=client,
            previous_identity=None,
            timeout_ms=timeout_ms,
            transaction_version=2,
            updated_ms=self.clock.now_ms(),
        )
        self.coordinator.known[name] = entry
        return entry

    def open(
        self, name: str, writer: ProducerIdAndEpoch, *partitions: Partition, two_phase: bool = False
    ) -> None:
        """A transaction at the coordinator and, with a record, in each partition."""
        phase = OngoingPhase(
            writer=writer,
            partitions=frozenset(p.topic_partition for p in partitions),
            started_ms=self.clock.now_ms(),
            timeout_ms=None if two_phase else 60_000,
        )
        self.enter(name, phase, writer)
        for partition in partitions:
            self.write(partition, writer)

    def read(self) -> Mapping[str, dict[tuple[str, ...], float]]:
        observed = GaugeSources(
            now_ms=self.clock.now_ms,
            transaction_max_timeout_ms=lambda: MAX_TIMEOUT_MS,
            partitions=lambda: self.partitions,
            transactions=self.coordinator,
            groups=self.groups,
            held_back=lambda partition: count_held_back_bytes(partition.log, self.clock.now_ms()),
            reserve=self.reserve,
            unclean_start=self.unclean_start,
        )
        readings = [reading for reading in read_gauges(observed) if reading is not None]
        return {family.name: dict(samples) for family, samples in readings}

    def value(self, name: str, *labels: str) -> float:
        return self.read()[name][labels]


@pytest.fixture
def world() -> World:
    return World()


def test_last_stable_offset_lag_is_the_high_watermark_minus_the_last_stable_offset(world: World) -> None:
    """KIP-664: "LastStableOffsetLag"; Kafka's gauge takes the high watermark for the log end."""
    held, other = world.partition(), world.partition()
    world.write(held)
    world.open("a", ident(1), held)
    for _ in range(4):
        world.write(held)
        world.write(other)
    assert (world.value(LAG, "t", "0"), world.value(LAG, "t", "1")) == (5, 0)
    assert world.value(LAG_MAX) == 5
    world.mark(held, ident(1, 1))
    assert world.value(LAG, "t", "0") == 0
    assert world.value(LAG_MAX) == 0


def test_a_lag_counts_nothing_above_the_high_watermark(world: World) -> None:
    held = world.partition(flush_policy="ack")
    world.open("a", ident(1), held)
    world.write(held)
    assert world.value(LAG, "t", "0") == 0
    held.log.sync()
    assert world.value(LAG, "t", "0") == 2


def test_duration_is_of_the_oldest_transaction_in_the_partition_by_the_coordinators_clock(
    world: World,
) -> None:
    """KIP-664: "the maximum duration of any open transaction"."""
    one, two = world.partition(), world.partition()
    world.open("a", ident(1), one)
    world.clock.advance(1_000)
    world.open("b", ident(2), one, two)
    world.clock.advance(500)
    world.write(one, ident(1), sequence=1)
    assert (world.value(DURATION, "t", "0"), world.value(DURATION, "t", "1")) == (1_500, 500)
    assert world.value(OPEN_TIME) == 1_500
    world.mark(one, ident(1, 1))
    assert world.value(DURATION, "t", "0") == 500


def test_an_unknown_transaction_is_as_old_as_its_first_record_that_is_remembered(world: World) -> None:
    one = world.partition()
    world.write(one, ident(1))
    world.clock.advance(700)
    for sequence in range(1, 7):
        world.write(one, ident(1), sequence)
    world.clock.advance(50)
    assert world.value(DURATION, "t", "0") == 50  # the leader remembers five batches
    assert world.value("tallystick_hanging_transactions") == 1


def test_late_is_silent_for_longer_than_any_timeout_and_five_minutes(world: World) -> None:
    """KIP-664: "we will add 5 minutes of padding before a transaction is counted"."""
    one, two = world.partition(), world.partition()
    world.open("a", ident(1), one, two)
    world.clock.advance(LATE_MS)
    assert world.value(LATE) == 0
    world.clock.advance(1)
    assert world.value(LATE) == 2
    world.write(two, ident(1), sequence=1)
    assert world.value(LATE) == 1


def test_two_phase_transactions_are_late_in_a_count_of_their_own(world: World) -> None:
    """KIP-939: a prepared transaction may wait for as long as its client's database does."""
    one, two = world.partition(), world.partition()
    world.open("doubt", ident(1), one, two, two_phase=True)
    world.clock.advance(LATE_MS + 1)
    assert (world.value(LATE), world.value(LATE_2PC)) == (0, 2)


def test_a_late_transaction_behind_one_of_two_phase_commit_is_not_hidden_by_it(world: World) -> None:
    one = world.partition()
    world.open("doubt", ident(1), one, two_phase=True)
    world.open("plain", ident(2), one)
    world.clock.advance(LATE_MS + 1)
    assert (world.value(LATE), world.value(LATE_2PC)) == (1, 1)


@pytest.mark.parametrize("case", ["unknown producer", "other epoch", "other partition", "idle", "rightful"])
def test_hanging_is_open_in_a_partition_and_not_at_the_coordinator(world: World, case: str) -> None:
    one, two = world.partition(), world.partition()
    world.write(one, ident(1, 3))
    match case:
        case "unknown producer":
            world.open("a", ident(9), two)
        case "other epoch":
            world.open("a", ident(1, 4), two)
            world.coordinator.known["a"] = world.enter(
                "a",
                OngoingPhase(
                    writer=ident(1, 4),
                    partitions=frozenset({one.topic_partition, two.topic_partition}),
                    started_ms=world.clock.now_ms(),
                    timeout_ms=1,
                ),
                ident(1, 4),
            )
        case "other partition":
            world.open("a", ident(1, 3), two)
        case "idle":
            world.enter("a", IdlePhase(outcome=TransactionResult.ABORT), ident(1, 4))
        case "rightful":
            partitions = frozenset({one.topic_partition})
            phase = OngoingPhase(
                writer=ident(1, 3), partitions=partitions, started_ms=TimestampMs(1), timeout_ms=1
            )
            world.enter("a", phase, ident(1, 3))
    assert world.value("tallystick_hanging_transactions") == (case != "rightful")


@pytest.mark.parametrize("marker_epoch", [0, 1])
def test_a_decided_transaction_whose_marker_is_under_way_does_not_hang(
    world: World, marker_epoch: int
) -> None:
    """The marker's epoch is the data's, or from transaction version 2 on the next."""
    one = world.partition()
    world.open("a", ident(1), one)
    phase = DecidedPhase(
        outcome=TransactionResult.COMMIT,
        marker_identity=ident(1, marker_epoch),
        partitions=frozenset({one.topic_partition}),
        started_ms=world.clock.now_ms(),
        timeout_ms=60_000,
    )
    world.enter("a", phase, ident(1, 1))
    world.clock.advance(250)
    assert world.value("tallystick_hanging_transactions") == 0
    assert world.value("tallystick_decided_transaction_time_max_ms") == 250
    assert world.value(OPEN_TIME) == 0
    assert world.value("tallystick_transactional_ids", "PrepareCommit") == 1


def test_while_ids_are_loaded_the_coordinators_gauges_are_absent_and_nothing_hangs(world: World) -> None:
    one = world.partition()
    world.write(one, ident(1))
    world.coordinator.loading = True
    shown = world.read()
    assert not {"tallystick_hanging_transactions", "tallystick_transactional_ids", OPEN_TIME} & shown.keys()
    assert shown[LAG] == {("t", "0"): 1}


def test_in_doubt_kept_and_states_are_counted_apart(world: World) -> None:
    one = world.partition()
    world.open("plain", ident(1), one)
    world.clock.advance(10)
    world.open("doubt", ident(2), one, two_phase=True)
    world.open("kept", ident(3), one, two_phase=True)
    world.enter("kept", world.coordinator.known["kept"].phase, ident(3, 1))
    world.enter("new", IdlePhase(), ident(4))
    world.enter("done", IdlePhase(outcome=TransactionResult.COMMIT), ident(5))
    world.clock.advance(5)
    assert world.read()["tallystick_transactional_ids"] == {
        ("Empty",): 1,
        ("Ongoing",): 3,
        ("PrepareCommit",): 0,
        ("PrepareAbort",): 0,
        ("CompleteCommit",): 1,
        ("CompleteAbort",): 0,
    }
    assert world.value("tallystick_in_doubt_transactions") == 2
    assert world.value("tallystick_in_doubt_transaction_open_time_max_ms") == 5
    assert world.value("tallystick_oldest_in_doubt_seconds") == 0.005
    assert world.value("tallystick_kept_transactions") == 1
    assert world.value(OPEN_TIME) == 15


def test_a_clock_that_steps_back_makes_no_negative_age(world: World) -> None:
    one = world.partition()
    world.open("a", ident(1), one)
    world.clock.advance(-1_000)
    assert (world.value(OPEN_TIME), world.value(DURATION, "t", "0")) == (0, 0)


def test_producer_ids_and_partitions_are_counted(world: World) -> None:
    one, two = world.partition(), world.partition()
    world.open("a", ident(1), one, two)
    world.open("b", ident(2), two)
    assert world.value("kafka_server_replicamanager_produceridcount") == 3
    assert world.value("kafka_server_replicamanager_partitioncount") == 2


def test_what_retention_would_delete_but_for_an_open_transaction(world: World) -> None:
    """[RET-1]"""
    one = world.partition(retention_ms=1_000, segment_bytes=200)
    world.write(one)
    world.open("a", ident(1), one)
    for _ in range(4):
        world.write(one)
    assert world.value("tallystick_retention_held_back_bytes") == 0
    world.clock.advance(1_001)
    segments = [segment.size for segment in one.log.segments]
    assert len(segments) == 6
    # The first one has expired, and goes; all that follow have, and stay.
    assert world.value("tallystick_retention_held_back_bytes") == sum(segments[1:])
    assert world.value("tallystick_retention_held_back_partitions") == 1
    world.mark(one, ident(1, 1))
    assert world.value("tallystick_retention_held_back_bytes") == 0


def test_what_an_unclean_start_found_stays_in_sight(world: World) -> None:
    names = ("tallystick_start_hanging_transactions", "tallystick_start_lost_offsets")
    assert [world.value(name) for name in names] == [0, 0]
    losses = [
        LostCommittedRecords(
            partition=TopicPartition("t", 0), first_offset=first, last_offset=last, transactional_ids=()
        )
        for first, last in ((Offset(7), Offset(9)), (Offset(3), Offset(3)))
    ]
    world.unclean_start = FoundAtStart(["one"], losses)
    assert [world.value(name) for name in names] == [1, 4]


def test_partitions_that_are_read_back_are_counted(world: World) -> None:
    world.coordinator.offline_partition_count, world.coordinator.reload_count = 2, 3
    world.groups.offline_partition_count, world.groups.reload_count = 4, 5
    assert world.value("tallystick_transaction_log_offline_partitions") == 2
    assert world.value("tallystick_offsets_log_offline_partitions") == 4
    reloads = "tallystick_coordinator_reloads_total"
    assert (world.value(reloads, "__transaction_state"), world.value(reloads, "__consumer_offsets")) == (3, 5)


def test_the_reserve_shows_what_it_holds_and_lacks(world: World) -> None:
    """[RSV-1]"""
    assert world.value("tallystick_reserve_missing_bytes") == 1 << 21
    assert world.reserve.restore()
    assert (world.value("tallystick_reserve_bytes"), world.value("tallystick_reserve_missing_bytes")) == (
        1 << 21,
        0,
    )
    world.reserve.release(1)
    assert world.value("tallystick_reserve_missing_bytes") == 1 << 20


def test_the_walk_pauses_and_what_ends_meanwhile_does_it_no_harm(world: World) -> None:
    one = world.partition()
    world.open("a", ident(1), *(world.partition() for _ in range(3)))
    for producer_id in range(10, 10 + SLICE_PARTITIONS + 1):
        world.open(f"id-{producer_id}", ident(producer_id), one)
    observed = GaugeSources(
        now_ms=world.clock.now_ms,
        transaction_max_timeout_ms=lambda: MAX_TIMEOUT_MS,
        partitions=lambda: world.partitions,
        transactions=world.coordinator,
        groups=world.groups,
        held_back=lambda _: 0,
        reserve=world.reserve,
    )
    shown = {}
    for pauses, reading in enumerate(read_gauges(observed)):
        if reading is None and pauses < SLICE_PARTITIONS:
            for identity in (ident(10 + pauses), ident(10 + SLICE_PARTITIONS)):
                if (
                    one.log.producer_state_manager.active_producers[
                        identity.producer_id
                    ].current_txn_first_offset
                    is not None
                ):
                    world.mark(one, ProducerIdAndEpoch(identity.producer_id, ProducerEpoch(1)))
        elif reading is not None:
            shown[reading[0].name] = dict(reading[1])
    assert shown["kafka_server_replicamanager_partitioncount"] == {(): 4}
    assert shown["tallystick_hanging_transactions"] == {(): 0}
