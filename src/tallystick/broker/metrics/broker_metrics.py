"""Metrics of this broker: its counters, and one walk that reads all gauges of `metrics.families.broker`.

There is one walk over partitions and transactional ids for all gauges, not one for each: a scrape of 10,000
partitions looks at each once. The walk yields after every few hundred, and shows the state at the time it
looked; transactions come and go in between. Leader and coordinator are one process here, so a partition's
open transaction is matched with the coordinator's at that moment. Kafka's leader cannot do that, hence

* a late transaction of two-phase commit, which only its client may end, is counted separately;
* a transaction that no coordinator knows shows up immediately, not after transaction.max.timeout.ms.

A gauge is read at each scrape; a counter is a number that is incremented where the event happens. A broker
without `metrics.listener` counts too. See docs/notes/performance.md.

Source: KIP-664 "Metrics", KIP-939 "Metric Changes"; Kafka 4.3: ReplicaManager, Partition.
"""

from collections import Counter as Tally
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Final, Protocol

from tallystick.broker.partitions.partition import Partition
from tallystick.broker.partitions.topics import CONSUMER_OFFSETS_TOPIC, TRANSACTION_STATE_TOPIC
from tallystick.broker.server.authentication_counts import AuthenticationCounts
from tallystick.broker.server.listening import TlsListenerState
from tallystick.broker.server.signing_keys import SigningKeysState
from tallystick.broker.txn.machine.consistency import LostCommittedRecords
from tallystick.broker.txn.machine.model import (
    DecidedPhase,
    ForcedCause,
    OngoingPhase,
    TxnEntry,
    TxnForcedOutcome,
    TxnState,
)
from tallystick.kernel.errors import Reject
from tallystick.kernel.ids import ProducerEpoch, ProducerId, ProducerIdAndEpoch, TimestampMs
from tallystick.kernel.value import Value
from tallystick.metrics.families import broker as families
from tallystick.metrics.model import MetricFamily, MetricReading, Sample
from tallystick.storage.state.producer_state import LATE_TRANSACTION_BUFFER_MS, ProducerStateEntry

# Partitions, transactions or ids looked at before the walk yields to the loop.
SLICE_PARTITIONS: Final = 256

_DAY_S: Final = 86_400


class Counter:
    """A counter, from 0 at the start. Used on the loop."""

    __slots__ = ("_values", "family")

    def __init__(self, family: MetricFamily, *label_values: tuple[str, ...]) -> None:
        """Create a counter. `label_values`: those shown as 0 before anything was counted."""
        self.family = family
        self._values: dict[tuple[str, ...], int] = dict.fromkeys(
            label_values or ([] if family.labels else [()]), 0
        )

    def add(self, *labels: str, by: int = 1) -> None:
        """Count `by` more under these values of the labels."""
        self._values[labels] = self._values.get(labels, 0) + by

    def value(self, *labels: str) -> int:
        return self._values.get(labels, 0)

    def samples(self) -> Iterator[Sample]:
        return iter(list(self._values.items()))


# Reads gauges. It yields None after some work without a reading, so that the loop can run.
ReadingSource = Callable[[], Iterator[MetricReading | None]]


class MetricsRegistry:
    """Every metric of one broker. Owned by it, used on its loop.

    Read in steps: the loop does other work between two of them, so that a scrape of a broker with many
    partitions takes longer and blocks nothing.
    """

    def __init__(self) -> None:
        self._counters: list[Counter] = []
        self._sources: list[ReadingSource] = []

    def counter(self, family: MetricFamily, *label_values: tuple[str, ...]) -> Counter:
        """Create a counter, and include it in scrapes."""
        counter = Counter(family, *label_values)
        self._counters.append(counter)
        return counter

    def add_source(self, source: ReadingSource) -> None:
        """Read `source` at every scrape."""
        self._sources.append(source)

    def read(self) -> Iterator[MetricReading | None]:
        """Read every metric in order; None after some of a source's work, so that the loop can run."""
        for each in self._counters:
            yield each.family, each.samples()
        for source in self._sources:
            yield from source()


class BrokerMetrics:
    """The registry, and the counters that other components add to. Created by the broker."""

    def __init__(self) -> None:
        self.registry = MetricsRegistry()
        self.verification_failures: Counter = self.registry.counter(families.VERIFICATION_FAILURES)
        self.forced_outcomes: Counter = self.registry.counter(
            families.FORCED, *((cause.name.lower(),) for cause in ForcedCause)
        )
        self.deletions_refused: Counter = self.registry.counter(families.DELETIONS_REFUSED)

    def count_forced_outcome(self, outcome: TxnForcedOutcome) -> None:
        """Count a transaction that was ended, and not by its client."""
        self.forced_outcomes.add(outcome.cause.name.lower())


class CoordinatorGauges(Protocol):
    """The parts of either coordinator that metrics read."""

    @property
    def offline_partition_count(self) -> int: ...

    @property
    def reload_count(self) -> int: ...


class TxnCoordinatorGauges(CoordinatorGauges, Protocol):
    """The parts of the transaction coordinator that the walk reads."""

    def list_entries(self) -> tuple[TxnEntry, ...] | Reject:
        """Return every transactional id; a Reject while they are being loaded."""
        ...

    def find_by_producer_id(self, producer_id: ProducerId) -> TxnEntry | None:
        """Return the entry whose open or decided transaction has this producer id."""
        ...


class UncleanStartGauges(Protocol):
    """The parts of the comparison at the start that the walk reads."""

    @property
    def hanging_transactions(self) -> Sequence[object]: ...

    @property
    def lost_records(self) -> Sequence[LostCommittedRecords]: ...


class ReserveGauges(Protocol):
    """The parts of the reserve that the walk reads."""

    @property
    def reserved_bytes(self) -> int: ...

    @property
    def size_bytes(self) -> int: ...


class AuthorizerGauges(Protocol):
    """The parts of the authorizer that the walk reads."""

    @property
    def allowed(self) -> int: ...

    @property
    def denied(self) -> int: ...

    @property
    def acl_count(self) -> int: ...


class GaugeSources(Value, kw_only=True):
    """Sources of the gauges.

    held_back      bytes that retention would delete from a partition if no transaction were open
    authorizer     None if there is none
    unclean_start  None after a clean stop, or where nothing can have been lost
    """

    now_ms: Callable[[], TimestampMs]
    transaction_max_timeout_ms: Callable[[], int]
    partitions: Callable[[], list[Partition]]
    transactions: TxnCoordinatorGauges
    groups: CoordinatorGauges
    held_back: Callable[[Partition], int]
    reserve: ReserveGauges
    unclean_start: UncleanStartGauges | None = None
    authorizer: AuthorizerGauges | None = None
    topics_to_delete: Callable[[], int] = lambda: 0
    tls_listeners: Callable[[], Sequence[TlsListenerState]] = lambda: ()
    signing_keys: Callable[[], Sequence[SigningKeysState]] = lambda: ()
    authentications: Callable[[], Mapping[str, AuthenticationCounts]] = dict


def read_gauges(sources: GaugeSources) -> Iterator[MetricReading | None]:
    """Read all gauges in one walk; a `Source` of the registry."""
    yield from _read_coordinator_gauges(sources)
    walk = _PartitionWalk(sources)
    for number, partition in enumerate(sources.partitions(), 1):
        yield from walk.add_partition(partition)
        if number % SLICE_PARTITIONS == 0:
            yield None
    yield from walk.iter_readings()
    comparison, reserve = sources.unclean_start, sources.reserve
    losses = () if comparison is None else comparison.lost_records
    yield families.OFFLINE, [((), sources.transactions.offline_partition_count)]
    yield families.OFFSETS_OFFLINE, [((), sources.groups.offline_partition_count)]
    reloads = {
        TRANSACTION_STATE_TOPIC: sources.transactions.reload_count,
        CONSUMER_OFFSETS_TOPIC: sources.groups.reload_count,
    }
    yield families.RELOADS, [((topic,), count) for topic, count in reloads.items()]
    yield families.HANGING_AT_START, [((), 0 if comparison is None else len(comparison.hanging_transactions))]
    yield families.LOST_AT_START, [((), sum(loss.last_offset - loss.first_offset + 1 for loss in losses))]
    yield families.RESERVE, [((), reserve.reserved_bytes)]
    yield families.RESERVE_MISSING, [((), max(0, reserve.size_bytes - reserve.reserved_bytes))]
    yield families.TOPICS_TO_DELETE, [((), sources.topics_to_delete())]
    yield from _read_listener_gauges(sources)
    acl = sources.authorizer
    yield families.ACLS, [((), 0 if acl is None else acl.acl_count)]
    allowed, denied = (0, 0) if acl is None else (acl.allowed, acl.denied)
    yield families.AUTHORIZATIONS, [(("allowed",), allowed), (("denied",), denied)]


_COUNTS: Final = {
    families.AUTHENTICATIONS: "successful",
    families.FAILED_AUTHENTICATIONS: "failed",
    families.REAUTHENTICATIONS: "successful_renewals",
    families.FAILED_REAUTHENTICATIONS: "failed_renewals",
    families.NO_REAUTHENTICATION: "no_reauth",
    families.EXPIRED_KILLED: "expired",
}


def _read_listener_gauges(sources: GaugeSources) -> Iterator[MetricReading]:
    listeners = sources.tls_listeners()
    yield families.TLS_RELOAD_FAILED, [((each.name,), each.is_reload_failed) for each in listeners]
    yield families.TLS_VALID_UNTIL, [((each.name,), each.valid_until_s) for each in listeners]
    now_s = sources.now_ms() / 1000
    yield (
        families.TLS_DAYS_LEFT,
        [((each.name,), (each.valid_until_s - now_s) / _DAY_S) for each in listeners],
    )
    yield families.TLS_RELOADS, [((each.name,), each.reload_count) for each in listeners]
    yield families.TLS_FAILED_HANDSHAKES, [((each.name,), each.failed_handshakes) for each in listeners]
    keys = sources.signing_keys()
    yield families.JWKS_FETCH_FAILED, [((each.name,), each.is_fetch_failed) for each in keys]
    yield families.JWKS_FETCHES, [((each.name,), each.fetch_count) for each in keys]
    counts = sources.authentications().items()
    for family, attribute in _COUNTS.items():
        yield family, [((name,), getattr(count, attribute)) for name, count in counts]


def _read_coordinator_gauges(sources: GaugeSources) -> Iterator[MetricReading | None]:
    entries = sources.transactions.list_entries()
    if isinstance(entries, Reject):
        return  # better no value than a wrong one
    now_ms = sources.now_ms()
    states: Tally[str] = Tally({state.label: 0 for state in TxnState if state not in _MEMORY_ONLY_STATES})
    open_ms = in_doubt_ms = unmarked_ms = in_doubt = kept_count = 0
    for number, entry in enumerate(entries, 1):
        states[entry.state.label] += 1
        match entry.phase:
            case OngoingPhase(started_ms=started_ms):
                open_ms = max(open_ms, now_ms - started_ms)
                kept_count += entry.is_kept
                if entry.is_two_phase:
                    in_doubt += 1
                    in_doubt_ms = max(in_doubt_ms, now_ms - started_ms)
            case DecidedPhase():
                unmarked_ms = max(unmarked_ms, now_ms - entry.updated_ms)
            case _:
                pass
        if number % SLICE_PARTITIONS == 0:
            yield None
    yield families.TRANSACTIONAL_IDS, [((state,), count) for state, count in states.items()]
    for family, value in (
        (families.OPEN_TIME_MAX, open_ms),
        (families.IN_DOUBT, in_doubt),
        (families.IN_DOUBT_OPEN_TIME_MAX, in_doubt_ms),
        (families.OLDEST_IN_DOUBT, in_doubt_ms / 1000),
        (families.KEPT, kept_count),
        (families.UNMARKED_TIME_MAX, unmarked_ms),
    ):
        yield family, [((), value)]


_MEMORY_ONLY_STATES: Final = frozenset({TxnState.DEAD, TxnState.PREPARE_EPOCH_FENCE})


class _PartitionWalk:
    """Totals of the partitions looked at so far."""

    def __init__(self, of: GaugeSources) -> None:
        self._sources = of
        self._is_coordinator_loaded = not isinstance(of.transactions.list_entries(), Reject)
        self._late_ms = of.transaction_max_timeout_ms() + LATE_TRANSACTION_BUFFER_MS
        self._lags: list[Sample] = []
        self._durations: list[Sample] = []
        self._late_count = self._late_two_phase_count = self._hanging_count = 0
        self._producer_ids = self._lag_max = 0
        self._held_back = self._held_back_partitions = 0

    def add_partition(self, partition: Partition) -> Iterator[None]:
        """Add a partition. Cost: constant where no transaction is open, else linear in those."""
        log = partition.log
        labels = (log.topic_partition.topic, str(log.topic_partition.partition))
        producers = log.producer_state_manager
        self._producer_ids += len(producers.active_producers)
        lag = log.reader.high_watermark - log.reader.last_stable_offset
        self._lags.append((labels, lag))
        self._lag_max = max(self._lag_max, lag)
        if producers.first_undecided_offset is None:
            self._durations.append((labels, 0))
            return
        held_back = self._sources.held_back(partition)
        self._held_back += held_back
        self._held_back_partitions += held_back > 0
        yield from self._add_open_transactions(partition, labels)

    def _add_open_transactions(self, partition: Partition, labels: tuple[str, ...]) -> Iterator[None]:
        producers, now_ms = partition.log.producer_state_manager, self._sources.now_ms()
        oldest_ms, late, late_two_phase = 0, False, False
        # Copied: between two slices transactions may end, and the dictionary must not change meanwhile.
        transactions = iter(list(producers.iter_open_transactions()))
        while some := list(islice(transactions, SLICE_PARTITIONS)):
            for first_offset, producer_id in some:
                state = producers.active_producers.get(producer_id)
                if state is None or state.current_txn_first_offset != first_offset:
                    continue
                entry = self._find_coordinator_entry(partition, state)
                self._hanging_count += self._is_coordinator_loaded and entry is None
                started_ms = _find_start_ms(entry, state)
                if started_ms >= 0:
                    oldest_ms = max(oldest_ms, now_ms - started_ms)
                if 0 < state.last_timestamp_ms < now_ms - self._late_ms:
                    two_phase = entry is not None and entry.is_two_phase
                    late, late_two_phase = late or not two_phase, late_two_phase or two_phase
            yield None
        self._durations.append((labels, oldest_ms))
        self._late_count += late
        self._late_two_phase_count += late_two_phase

    def _find_coordinator_entry(self, partition: Partition, state: ProducerStateEntry) -> TxnEntry | None:
        """Return the coordinator's entry for a transaction open here; None: it has no such transaction."""
        writer = ProducerIdAndEpoch(ProducerId(state.producer_id), ProducerEpoch(state.epoch))
        entry = self._sources.transactions.find_by_producer_id(writer.producer_id)
        return (
            entry
            if entry is not None and entry.is_current_transaction(writer, partition.topic_partition)
            else None
        )

    def iter_readings(self) -> Iterator[MetricReading]:
        yield families.PARTITIONS, [((), len(self._lags))]
        yield families.PRODUCER_IDS, [((), self._producer_ids)]
        yield families.LSO_LAG, self._lags
        yield families.OPEN_DURATION, self._durations
        yield families.LSO_LAG_MAX, [((), self._lag_max)]
        yield families.LATE, [((), self._late_count)]
        yield families.LATE_TWO_PHASE, [((), self._late_two_phase_count)]
        if self._is_coordinator_loaded:
            yield families.HANGING, [((), self._hanging_count)]
        yield families.HELD_BACK, [((), self._held_back)]
        yield families.HELD_BACK_PARTITIONS, [((), self._held_back_partitions)]


def _find_start_ms(entry: TxnEntry | None, state: ProducerStateEntry) -> int:
    """Return when a transaction began, by the coordinator's clock; below 0 where batches have no time.

    Without an entry, it is the time of its first batch that is still remembered: the age is no less than
    that.
    """
    if entry is not None and isinstance(entry.phase, OngoingPhase | DecidedPhase):
        return entry.phase.started_ms
    first_offset = state.current_txn_first_offset or 0
    times = [b.timestamp_ms for b in state.batches if b.first_offset >= first_offset and b.timestamp_ms >= 0]
    return times[0] if times else state.last_timestamp_ms
