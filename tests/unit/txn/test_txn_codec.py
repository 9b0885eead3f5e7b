"""Records of `__transaction_state`: what Kafka writes is read, and what we write is read back."""

from collections import Counter
from pathlib import Path
from random import Random
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from tests.support.txn_words import ident

from tallystick.broker.txn import codec
from tallystick.broker.txn.codec import (
    check_version_downgrade,
    decode_batches,
    decode_record,
    encode_batch_of,
    encode_record,
    iter_known_records,
    partition_for,
    peek_completion,
    peek_state_and_producer_id,
)
from tallystick.broker.txn.machine.commands import EntryRemoved, EntryStored, TxnRecord
from tallystick.broker.txn.machine.model import (
    FORCED_OUTCOMES_MAX,
    DecidedPhase,
    ForcedCause,
    IdlePhase,
    OngoingPhase,
    TransactionResult,
    TxnEntry,
    TxnForcedOutcome,
    TxnPhase,
)
from tallystick.kernel.check import InvariantBroken
from tallystick.kernel.codes import ErrorCode
from tallystick.kernel.ids import (
    INT16_MAX,
    INT32_MAX,
    INT64_MAX,
    Offset,
    ProducerEpoch,
    ProducerId,
    ProducerIdAndEpoch,
    TimestampMs,
    TopicPartition,
    TransactionalId,
)
from tallystick.kernel.value import replace
from tallystick.protocol import DecodeError, decode_prefix, encode
from tallystick.protocol.messages.txn.stored_transactions import SupersededPair, TransactionLogValue
from tallystick.protocol.records import BatchMeta, Record, encode_batch

VECTORS = Path(__file__).parents[2] / "vectors" / "stored_transactions" / "kafka_log.hex"
STORIES = {
    name.rpartition("-")[0] + f"-{number}": bytes.fromhex(value)
    for number, (name, value) in enumerate(
        line.split() for line in VECTORS.read_text().splitlines() if not line.startswith("#")
    )
}
KEY = next(iter(STORIES.values()))
START = 1_700_000_000_000
MAX = INT16_MAX

T = TransactionalId("pay-7")
ORDERS_0, ORDERS_3 = TopicPartition("orders", 0), TopicPartition("orders", 3)


def at(ms: int) -> TimestampMs:
    return TimestampMs(START + ms)


def entry(phase: TxnPhase, client: ProducerIdAndEpoch, ms: int, **more: Any) -> TxnEntry:
    stands = TxnEntry(
        transactional_id=T,
        phase=phase,
        client=client,
        previous_identity=None,
        timeout_ms=60_000,
        transaction_version=2,
        updated_ms=at(ms),
    )
    return replace(stands, **more)


def ongoing(
    writer: ProducerIdAndEpoch, ms: int, *partitions: TopicPartition, timeout_ms: int | None = 60_000
) -> OngoingPhase:
    return OngoingPhase(
        writer=writer, partitions=frozenset(partitions), started_ms=at(ms), timeout_ms=timeout_ms
    )


def decided(
    outcome: TransactionResult, marker: ProducerIdAndEpoch, ms: int, *partitions: TopicPartition
) -> DecidedPhase:
    return DecidedPhase(
        outcome=outcome,
        marker_identity=marker,
        partitions=frozenset(partitions),
        started_ms=at(ms),
        timeout_ms=60_000,
    )


COMMIT, ABORT = TransactionResult.COMMIT, TransactionResult.ABORT
WRITTEN_BY_KAFKA: dict[str, TxnEntry] = {
    "v2-Empty-1": entry(IdlePhase(), ident(42, 0), 0, transaction_version=0),
    "v2-Ongoing-2": entry(ongoing(ident(42, 0), 1, ORDERS_3), ident(42, 0), 1),
    "v2-Ongoing-3": entry(ongoing(ident(42, 0), 1, ORDERS_3, ORDERS_0), ident(42, 0), 2),
    "v2-PrepareCommit-4": entry(
        decided(COMMIT, ident(42, 1), 1, ORDERS_0, ORDERS_3), ident(42, 1), 3, previous_identity=ident(42, 0)
    ),
    "v2-CompleteCommit-5": entry(
        IdlePhase(outcome=COMMIT, started_ms=at(1)), ident(42, 1), 4, previous_identity=ident(42, 0)
    ),
    "v2-Ongoing-6": entry(ongoing(ident(42, 1), 5, ORDERS_0), ident(42, 1), 5),
    "v2-PrepareAbort-7": entry(
        decided(ABORT, ident(42, 2), 5, ORDERS_0), ident(42, 2), 6, previous_identity=ident(42, 1)
    ),
    "v2-CompleteAbort-8": entry(
        IdlePhase(outcome=ABORT, started_ms=at(5)), ident(42, 2), 7, previous_identity=ident(42, 1)
    ),
    "v2-Empty-9": entry(IdlePhase(), ident(42, 3), 8),
    "rotated-Empty-10": entry(IdlePhase(), ident(42, MAX - 1), 9, transaction_version=0),
    "rotated-Ongoing-11": entry(ongoing(ident(42, MAX - 1), 10, ORDERS_0), ident(42, MAX - 1), 10),
    "rotated-PrepareCommit-12": entry(
        decided(COMMIT, ident(42, MAX), 10, ORDERS_0), ident(43, 0), 11, previous_identity=ident(42, MAX - 1)
    ),
    "rotated-CompleteCommit-13": entry(
        IdlePhase(outcome=COMMIT, started_ms=at(10)), ident(43, 0), 12, previous_identity=ident(42, MAX - 1)
    ),
    "rotated-Ongoing-14": entry(ongoing(ident(43, 0), 13, ORDERS_0), ident(43, 0), 13),
    "v1-Empty-15": entry(IdlePhase(), ident(42, 7), 14, transaction_version=0),
    "v1-Ongoing-16": entry(ongoing(ident(42, 7), 15, ORDERS_0), ident(42, 7), 15, transaction_version=0),
    "v1-PrepareCommit-17": entry(
        decided(COMMIT, ident(42, 7), 15, ORDERS_0), ident(42, 7), 16, transaction_version=0
    ),
    "v1-CompleteCommit-18": entry(
        IdlePhase(outcome=COMMIT, started_ms=at(15)), ident(42, 7), 17, transaction_version=0
    ),
    "v0-Empty-19": entry(IdlePhase(), ident(42, 7), 18, transaction_version=0),
    "v0-Ongoing-20": entry(ongoing(ident(42, 7), 19, ORDERS_0), ident(42, 7), 19, transaction_version=0),
    "v0-PrepareAbort-21": entry(
        decided(ABORT, ident(42, 7), 19, ORDERS_0), ident(42, 7), 20, transaction_version=0
    ),
    "v0-CompleteAbort-22": entry(
        IdlePhase(outcome=ABORT, started_ms=at(19)), ident(42, 7), 21, transaction_version=0
    ),
    "2pc-Empty-23": entry(IdlePhase(), ident(42, 7), 22, timeout_ms=None, transaction_version=0),
    "2pc-Ongoing-24": entry(
        ongoing(ident(42, 7), 23, ORDERS_0, timeout_ms=None), ident(42, 7), 23, timeout_ms=None
    ),
    "worn-Empty-26": entry(IdlePhase(), ident(43, 0), 24, transaction_version=0),
}


# ---- Kafka's records


def test_every_vector_is_checked() -> None:
    assert set(STORIES) - set(WRITTEN_BY_KAFKA) == {"-0", "never-25"}


@pytest.mark.parametrize("name", WRITTEN_BY_KAFKA)
def test_what_kafka_writes_is_read_as_kafka_means_it(name: str) -> None:
    assert decode_record(KEY, STORIES[name]) == EntryStored(entry=WRITTEN_BY_KAFKA[name])


@pytest.mark.parametrize("name", [n for n in WRITTEN_BY_KAFKA if "Prepare" in n or "Complete" in n])
def test_ended_transactions_are_written_as_kafka_writes_them(name: str) -> None:
    """Retries of EndTxn are recognised by these fields, on either side.

    Two fields are ours alone: the epoch 0 of a next producer id, which Kafka 4.3 implies, is written; the
    previous producer id is not below version 2, where nobody looks at it.
    """
    key, value = encode_record(EntryStored(entry=WRITTEN_BY_KAFKA[name]), 0 if name.startswith("v0") else 2)
    assert key == KEY
    kafkas = STORIES[name]
    previous, next_id = bytes.fromhex("0008000000000000002a"), bytes.fromhex("0108000000000000002b")
    if name.startswith("v1"):
        assert value == kafkas.removesuffix(b"\1" + previous) + b"\0"
    elif name == "rotated-PrepareCommit-12":
        version, epoch = bytes.fromhex("02020002"), bytes.fromhex("03020000")
        assert kafkas.endswith(b"\3" + previous + next_id + version)
        assert value == kafkas[:-25] + b"\4" + previous + next_id + version + epoch
    else:
        assert value == kafkas


def test_an_id_that_never_got_a_pair_is_not_known() -> None:
    """KAFKA-14880. Kafka treats epoch -1 as it treats an id it has never seen: any pair will do."""
    assert decode_record(KEY, STORIES["never-25"]) == EntryRemoved(transactional_id=T)


@pytest.mark.parametrize(
    "change",
    [
        {"transaction_status": 6},
        {"transaction_status": 7},
        {"transaction_status": 8},
        {"transaction_status": 1, "producer_epoch": -1},
        {"producer_id": -1},
        {"client_transaction_version": 3},
        {"client_transaction_version": -1},
    ],
    ids=str,
)
def test_what_no_log_of_kafkas_holds_is_refused(change: dict[str, Any]) -> None:
    read, _ = decode_prefix(TransactionLogValue, STORIES["v2-CompleteCommit-5"], 1, 2)
    with pytest.raises(DecodeError, match="pay-7"):
        decode_record(KEY, b"\0\1" + encode(replace(read, **change), 1))


@pytest.mark.parametrize("value", [b"", b"\0", b"\0\2", b"\xff\xff"])
def test_a_value_of_no_known_version_is_refused(value: bytes) -> None:
    with pytest.raises(DecodeError, match="pay-7"):
        decode_record(KEY, value)


def test_what_others_leave_out_or_say_otherwise_is_understood() -> None:
    """Null partitions of an open transaction; KIP-939's -1 for no timeout; a next epoch without its id."""
    read, _ = decode_prefix(TransactionLogValue, STORIES["v2-Ongoing-2"], 1, 2)
    other = replace(
        read,
        transaction_partitions=None,
        transaction_timeout_ms=-1,
        transaction_start_timestamp_ms=-1,
        next_producer_epoch=9,
        unknown_tags=((4, b"\0\1"),),  # type: ignore[call-arg]
    )
    assert decode_record(KEY, b"\0\1" + encode(other, 1)) == EntryStored(
        entry=entry(ongoing(ident(42, 0), 1, timeout_ms=None), ident(42, 9), 1, timeout_ms=None)
    )


# ---- our records


def fields(stored: TxnEntry) -> TransactionLogValue:
    _, value = encode_record(EntryStored(entry=stored), 2)
    assert value is not None
    return decode_prefix(TransactionLogValue, value, 1, 2)[0]


def pairs(read: TransactionLogValue) -> tuple[int, ...]:
    """Recorded pair, next pair, previous producer id."""
    return (
        read.producer_id,
        read.producer_epoch,
        read.next_producer_id,
        read.next_producer_epoch,
        read.previous_producer_id,
    )


KEPT = entry(ongoing(ident(42, MAX - 1), 0, ORDERS_0), ident(73, MAX), 1)


@pytest.mark.parametrize(
    ("stored", "expected"),
    [
        (KEPT, (42, MAX - 1, 73, MAX, -1)),
        (replace(KEPT, client=ident(42, MAX)), (42, MAX - 1, 42, MAX, -1)),
        (
            replace(
                KEPT,
                phase=decided(COMMIT, ident(42, MAX), 0, ORDERS_0),
                client=ident(85, 0),
                previous_identity=ident(73, MAX),
            ),
            (42, MAX, 85, 0, 73),
        ),
        (
            replace(
                KEPT,
                phase=IdlePhase(outcome=COMMIT, started_ms=at(0)),
                client=ident(85, 0),
                previous_identity=ident(73, MAX),
            ),
            (85, 0, -1, -1, 73),
        ),
        (replace(KEPT, phase=IdlePhase(), client=ident(85, 1)), (85, 1, -1, -1, -1)),
    ],
    ids=["kept, another id", "kept, the same id", "decided", "complete", "empty"],
)
def test_the_pairs_of_a_kept_transaction_are_where_kip_939_puts_them(
    stored: TxnEntry, expected: tuple[int, ...]
) -> None:
    """KIP-939, the example with two overflows: ongoing 42, next 73, after the end 85.

    "ProducerId and ProducerEpoch" stay those of the transaction, so that a broker without KIP-939 ends it.
    """
    assert pairs(fields(stored)) == expected


def test_private_tags_are_written_for_what_kafkas_fields_do_not_say_alone() -> None:
    plain = fields(WRITTEN_BY_KAFKA["v2-CompleteCommit-5"])
    assert (plain.superseded, plain.forced_outcomes, plain.next_transaction_timeout_ms) == (None, (), -1)
    taken_over = replace(WRITTEN_BY_KAFKA["v2-CompleteCommit-5"], previous_identity=None)
    assert fields(taken_over).superseded == SupersededPair(producer_id=-1, producer_epoch=-1)


def test_version_0_has_no_tags() -> None:
    """A level of 0 cannot keep a transaction, and forgets whose retry it would recognise."""
    stands = WRITTEN_BY_KAFKA["rotated-PrepareCommit-12"]
    forced = TxnForcedOutcome(writer=ident(42, 1), cause=ForcedCause.TERMINATED, at_ms=at(0))
    key, value = encode_record(EntryStored(entry=replace(stands, forced_outcomes=(forced,))), 0)
    plain = replace(stands, client=ident(42, MAX), previous_identity=None, transaction_version=0)
    assert decode_record(key, value) == EntryStored(entry=plain)
    with pytest.raises(InvariantBroken, match="kept"):
        encode_record(EntryStored(entry=KEPT), 0)


@pytest.mark.parametrize(
    "stored",
    [
        KEPT,
        replace(KEPT, client=KEPT.described_identity, timeout_ms=None),
        WRITTEN_BY_KAFKA["2pc-Empty-23"],
        WRITTEN_BY_KAFKA["2pc-Ongoing-24"],
        WRITTEN_BY_KAFKA["rotated-PrepareCommit-12"],
    ],
    ids=["kept", "a promise for the next one", "two-phase", "two-phase and open", "next producer id"],
)
def test_the_level_stays_while_an_entry_needs_it(stored: TxnEntry) -> None:
    """Refused below 2, and the reason names the ids."""
    for level in (0, 1):
        refused = check_version_downgrade([WRITTEN_BY_KAFKA["v2-Ongoing-3"], stored], level)
        assert refused is not None
        assert refused.code is ErrorCode.INVALID_UPDATE_VERSION
        assert "pay-7" in refused.reason
    assert check_version_downgrade([stored], 2) is None


def test_ordinary_transactions_do_not_hold_the_level() -> None:
    ordinary = [entry for name, entry in WRITTEN_BY_KAFKA.items() if name.startswith(("v", "worn"))]
    assert check_version_downgrade(ordinary, 0) is None
    many = [replace(KEPT, transactional_id=TransactionalId(f"t{i:02}")) for i in range(12)]
    refused = check_version_downgrade(many, 1)
    assert refused is not None
    assert "t08, t09 and 2 more." in refused.reason


# ---- every legal entry

producer_ids = st.integers(0, INT64_MAX).map(ProducerId) | st.sampled_from([ProducerId(42), ProducerId(73)])
epochs = st.integers(0, MAX).map(ProducerEpoch) | st.sampled_from(
    [ProducerEpoch(e) for e in (0, 1, MAX - 1, MAX)]
)
identities = st.builds(ProducerIdAndEpoch, producer_ids, epochs)
times = st.integers(0, INT64_MAX).map(TimestampMs)
topics = st.sampled_from(["orders", "a", "__consumer_offsets"]) | st.text(min_size=1, max_size=249)
topic_partitions = st.builds(TopicPartition, topics, st.integers(0, INT32_MAX))
partition_sets = st.frozensets(topic_partitions, max_size=5)
timeouts = st.none() | st.integers(1, INT32_MAX - 1)
outcomes = st.sampled_from(TransactionResult)
phases = st.one_of(
    st.just(IdlePhase()),
    st.builds(
        IdlePhase,
        outcome=outcomes,
        started_ms=st.none() | times,
        marker_offsets=st.dictionaries(topic_partitions, st.integers(0, INT64_MAX).map(Offset), max_size=4),
    ),
    st.builds(
        OngoingPhase, writer=identities, partitions=partition_sets, started_ms=times, timeout_ms=timeouts
    ),
    st.builds(
        DecidedPhase,
        outcome=outcomes,
        marker_identity=identities,
        partitions=partition_sets,
        started_ms=times,
        timeout_ms=timeouts,
    ),
)
forced_outcomes = st.builds(
    TxnForcedOutcome,
    writer=identities,
    cause=st.sampled_from(ForcedCause),
    at_ms=times,
    partition=st.none() | topic_partitions,
)


@st.composite
def entries(draw: st.DrawFn) -> TxnEntry:
    phase = draw(phases)
    client = draw(identities)
    if isinstance(phase, OngoingPhase | DecidedPhase) and draw(st.booleans()):
        client = phase.writer if isinstance(phase, OngoingPhase) else phase.marker_identity
    before = ident(client.producer_id, max(client.epoch - 1, 0))
    return TxnEntry(
        transactional_id=draw(st.text(min_size=1, max_size=20).map(TransactionalId)),
        phase=phase,
        client=client,
        previous_identity=draw(st.none() | st.just(before) | identities),
        timeout_ms=draw(timeouts),
        transaction_version=draw(st.integers(0, 2)),
        updated_ms=draw(times),
        forced_outcomes=tuple(draw(st.lists(forced_outcomes, max_size=FORCED_OUTCOMES_MAX))),
    )


records = st.one_of(
    st.builds(EntryStored, entry=entries()),
    st.builds(EntryRemoved, transactional_id=st.text(max_size=20).map(TransactionalId)),
)


@given(records, st.integers(1, 2))
def test_a_record_comes_back_as_it_was(record: TxnRecord, level: int) -> None:
    """[TXN-2] Replay applies what was applied live, so every field has to be there."""
    key, value = encode_record(record, level)
    assert decode_record(key, value) == record


@st.composite
def usual_entries(draw: st.DrawFn) -> TxnEntry:
    """As nearly all are: nobody was replaced, nothing was forced."""
    entry = draw(entries())
    phase, timeout_ms = entry.phase, entry.timeout_ms
    if not isinstance(phase, IdlePhase):
        phase = replace(phase, timeout_ms=timeout_ms)
    version = draw(st.sampled_from([0, 1, 2]))
    ended = not isinstance(phase, OngoingPhase) and phase.outcome is not None
    client = draw(identities)
    before = ident(client.producer_id, client.epoch - 1) if client.epoch else None
    if isinstance(phase, OngoingPhase):
        phase = replace(phase, writer=client)
    elif isinstance(phase, DecidedPhase):
        phase = replace(phase, marker_identity=client)
    return replace(
        entry,
        phase=phase,
        client=client,
        previous_identity=before if ended and version == 2 else None,
        transaction_version=version,
        forced_outcomes=(),
    )


@given(usual_entries() | entries())
def test_the_quick_way_to_write_a_value_gives_the_same_bytes(entry: TxnEntry) -> None:
    """[WIRE-4]"""
    written = encode_record(EntryStored(entry=entry), 2)[1]
    assert written == b"\0\1" + encode(codec._build_tagged_value(entry), codec.TAGGED_VALUE_VERSION)


@given(usual_entries())
def test_what_is_usual_is_written_the_quick_way(entry: TxnEntry) -> None:
    assert codec._encode_common_value(entry) is not None


@given(records, st.integers(1, 2), st.randoms(use_true_random=False))
def test_damage_is_refused_or_read_and_never_anything_else(
    record: TxnRecord, level: int, random: Random
) -> None:
    """[WIRE-1] The log's CRC finds damage; a record that somebody made wrong is refused."""
    key, value = encode_record(record, level)
    for _ in range(20):
        damaged = bytearray(value or b"\0\1")
        damaged[random.randrange(len(damaged))] = random.randrange(256)
        del damaged[random.randrange(1, len(damaged) + 1) :]
        try:
            decode_record(key, bytes(damaged))
            peek_state_and_producer_id(bytes(damaged))
            peek_completion(bytes(damaged))
        except DecodeError:
            pass


@given(st.builds(EntryStored, entry=entries()), st.integers(0, 2))
def test_a_peek_sees_what_is_there(record: EntryStored, level: int) -> None:
    entry = record.entry
    assume(level > 0 or not entry.is_kept)
    _, value = encode_record(record, level)
    assert value is not None
    assert peek_state_and_producer_id(value) == (entry.state, entry.described_identity.producer_id)
    if isinstance(entry.phase, IdlePhase):
        named, markers = peek_completion(value)
        assert entry.described_identity.producer_id in named
        assert markers == (entry.phase.marker_offsets if level else {})


@given(entries())
def test_where_a_decided_transaction_is_marked_is_not_stored(stored: TxnEntry) -> None:
    if isinstance(stored.phase, DecidedPhase):
        half = replace(stored, phase=replace(stored.phase, marker_offsets={ORDERS_0: Offset(1)}))
        assert encode_record(EntryStored(entry=half), 2) == encode_record(EntryStored(entry=stored), 2)


@given(st.lists(records, min_size=1, max_size=6))
def test_the_last_record_of_an_id_is_all_replay_needs(many: list[TxnRecord]) -> None:
    data = b"".join(encode_batch_of([record], at(0), 2) for record in many)
    assert list(decode_batches(data)) == many

    def state(found: list[TxnRecord]) -> dict[TransactionalId, TxnEntry | None]:
        return dict(
            (r.entry.transactional_id, r.entry) if isinstance(r, EntryStored) else (r.transactional_id, None)
            for r in found
        )

    latest = [decode_record(key, value) for key, value in dict(iter_known_records(data)).items()]
    assert state(latest) == state(many)
    assert len(latest) == len(state(many))


def test_one_step_is_one_batch_and_strangers_are_counted() -> None:
    step = [
        EntryStored(entry=WRITTEN_BY_KAFKA["v2-PrepareAbort-7"]),
        EntryStored(entry=WRITTEN_BY_KAFKA["v2-CompleteAbort-8"]),
    ]
    ours = encode_batch_of(step, at(0), 2)
    strange = encode_batch([Record(offset=0, timestamp_ms=START, key=b"\0\5later", value=b"?")], BatchMeta())
    skipped: Counter[int] = Counter()
    assert list(decode_batches(strange + ours + strange, skipped)) == step
    assert skipped == {5: 2}
    keyless = encode_batch([Record(offset=0, timestamp_ms=START, key=None, value=b"?")], BatchMeta())
    with pytest.raises(DecodeError, match="no readable key"):
        list(decode_batches(keyless))


@pytest.mark.parametrize(
    ("text", "java_hash"),
    [("", 0), ("abc", 96354), ("hello", 99162322), ("😀", 1772899), ("polygenelubricants", -(2**31))],
)
def test_an_id_lives_in_the_partition_java_would_choose(text: str, java_hash: int) -> None:
    """Known values of String.hashCode; Kafka takes |the smallest int| as 0."""
    expected = 0 if java_hash == -(2**31) else abs(java_hash) % 50
    assert partition_for(TransactionalId(text), 50) == expected
