"""Every command in every state of the transaction machine, with details drawn at random."""

from collections.abc import Callable
from typing import get_args

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from tests.support.effort import examples
from tests.support.txn_words import MAX, STATES, T, ident, speaker

from harness.transactions import START_MS, durable_view
from tallystick.broker.txn.codec import decode_batches, encode_batch_of
from tallystick.broker.txn.machine.apply import apply_event
from tallystick.broker.txn.machine.commands import (
    AbortTimedOut,
    AddPartitions,
    AddPartitionsByLeader,
    EndTxn,
    EndTxnResult,
    EntryStored,
    InitProducerId,
    InitProducerIdResult,
    MarkerProgress,
    MarkersWritten,
    RecordForcedMarker,
    RemoveExpiredId,
    TxnCommand,
    TxnEnv,
    TxnStep,
    VerifyPartitions,
)
from tallystick.broker.txn.machine.decide import decide, refuse_while_pending
from tallystick.broker.txn.machine.model import (
    PREVIOUS_STATES,
    DecidedPhase,
    ForcedCause,
    IdlePhase,
    OngoingPhase,
    TransactionResult,
    TxnConfig,
    TxnEntry,
    TxnForcedOutcome,
    TxnPhase,
)
from tallystick.kernel.codes import ErrorCode
from tallystick.kernel.errors import Reject
from tallystick.kernel.ids import (
    Offset,
    ProducerEpoch,
    ProducerId,
    ProducerIdAndEpoch,
    TimestampMs,
    TopicPartition,
)
from tallystick.kernel.value import replace

SPARE = ProducerId(9)
COMMANDS: tuple[type, ...] = get_args(TxnCommand)

# ------------------------------------------------------------- values, legal ones: not all can be reached

PARTITIONS = st.builds(TopicPartition, st.sampled_from(["a", "b"]), st.integers(0, 1))
EPOCHS = st.sampled_from([0, 1, 2, 7, MAX - 2, MAX - 1, MAX])
PAIRS = st.builds(
    ProducerIdAndEpoch, st.integers(1, 2).map(ProducerId), EPOCHS.map(lambda epoch: ProducerEpoch(epoch))
)
WRITERS = PAIRS.filter(lambda pair: pair.epoch < MAX)
TIMES = st.integers(START_MS - 100_000, START_MS).map(TimestampMs)
TIMEOUTS = st.sampled_from([None, 1, 60_000, 900_000])
SOME = st.frozensets(PARTITIONS, max_size=4)
FORCED = st.builds(
    TxnForcedOutcome,
    writer=WRITERS,
    cause=st.sampled_from(ForcedCause),
    at_ms=TIMES,
    partition=st.none() | PARTITIONS,
)


@st.composite
def phases(draw: st.DrawFn, state: str) -> TxnPhase:
    outcome = TransactionResult.COMMIT if "Commit" in state else TransactionResult.ABORT
    if state == "Empty":
        return IdlePhase()
    if state.startswith("Complete"):
        return IdlePhase(outcome=outcome, started_ms=draw(TIMES))
    if state == "Ongoing":
        return OngoingPhase(
            writer=draw(WRITERS), partitions=draw(SOME), started_ms=draw(TIMES), timeout_ms=draw(TIMEOUTS)
        )
    partitions = draw(st.frozensets(PARTITIONS, min_size=1))
    return DecidedPhase(
        outcome=outcome,
        marker_identity=draw(PAIRS),
        partitions=partitions,
        started_ms=draw(TIMES),
        timeout_ms=draw(TIMEOUTS),
        marker_offsets=dict.fromkeys(
            sorted(partitions)[: draw(st.integers(0, len(partitions) - 1))], Offset(4)
        ),
    )


@st.composite
def entries(draw: st.DrawFn, state: str) -> TxnEntry:
    phase = draw(phases(state))
    version = draw(st.sampled_from([2, 2, 2, 1, 0]))
    client = draw(PAIRS)
    if isinstance(phase, OngoingPhase) and (version < 2 or draw(st.booleans())):
        client = phase.writer  # else it is kept
    if isinstance(phase, OngoingPhase) and client.producer_id == phase.writer.producer_id:
        client = max(client, phase.writer)
    if isinstance(phase, DecidedPhase) and version < 2:
        client = phase.marker_identity
    return TxnEntry(
        transactional_id=T,
        phase=phase,
        client=client,
        previous_identity=draw(st.none() | PAIRS.filter(lambda pair: pair != client)),
        timeout_ms=draw(TIMEOUTS),
        transaction_version=version,
        updated_ms=draw(TIMES),
        forced_outcomes=tuple(draw(st.lists(FORCED, max_size=3))),
    )


@st.composite
def commands(draw: st.DrawFn, kind: type, entry: TxnEntry | None) -> TxnCommand:
    """One of its kind, more often than not with a pair that the entry knows."""
    known = (
        [entry.client, entry.described_identity, entry.previous_identity or entry.client]
        if entry
        else [ident(1, 0)]
    )
    pair = draw(st.just(known[0]) | st.sampled_from(known) | PAIRS)
    partitions = draw(SOME)
    version = draw(st.sampled_from([0, 2]))
    made: dict[type, Callable[[], TxnCommand]] = {
        InitProducerId: lambda: InitProducerId(
            timeout_ms=draw(st.sampled_from([60_000, 60_000, 60_000, 1, 900_000, 0, 900_001])),
            expected_identity=draw(st.none() | st.just(pair)),
            enable_2pc=draw(st.booleans()),
            keep_prepared=draw(st.booleans()),
        ),
        AddPartitions: lambda: AddPartitions(
            identity=pair, partitions=partitions, transaction_version=version
        ),
        AddPartitionsByLeader: lambda: AddPartitionsByLeader(
            identity=pair,
            partitions=partitions,
            needs_durable=draw(st.booleans()),
            may_be_refused=draw(st.booleans()),
        ),
        VerifyPartitions: lambda: VerifyPartitions(identity=pair, partitions=partitions),
        EndTxn: lambda: EndTxn(
            identity=pair, outcome=draw(st.sampled_from(TransactionResult)), transaction_version=version
        ),
        AbortTimedOut: AbortTimedOut,
        MarkersWritten: lambda: MarkersWritten(
            marker_identity=pair,
            offsets={p: draw(st.none() | st.just(Offset(3))) for p in sorted(partitions)},
        ),
        RecordForcedMarker: lambda: RecordForcedMarker(writer=pair, partition=draw(PARTITIONS)),
        RemoveExpiredId: RemoveExpiredId,
    }
    return made[kind]()


CONFIGS = st.builds(
    TxnConfig,
    transaction_two_phase_commit_enable=st.booleans(),
    transactional_id_expiration_ms=st.sampled_from([1, 50_000, 604_800_000]),
    transaction_version=st.sampled_from([2, 2, 2, 1, 0]),
    remember_marker_offsets=st.booleans(),
)

# ------------------------------------------------------------- every command in every state

E = ErrorCode
SPOKEN = {E.CONCURRENT_TRANSACTIONS, E.PRODUCER_FENCED, E.INVALID_PRODUCER_ID_MAPPING, E.INVALID_TXN_STATE}
REFUSALS: dict[type, set[ErrorCode]] = {
    InitProducerId: {
        E.CONCURRENT_TRANSACTIONS,
        E.PRODUCER_FENCED,
        E.UNSUPPORTED_VERSION,
        E.INVALID_TRANSACTION_TIMEOUT,
        E.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
    },
    AddPartitions: SPOKEN | {E.UNSUPPORTED_VERSION},
    AddPartitionsByLeader: SPOKEN | {E.UNSUPPORTED_VERSION},
    VerifyPartitions: SPOKEN | {E.TRANSACTION_ABORTABLE},
    EndTxn: SPOKEN,
    # What comes from within is never refused: nobody is there to be told.
    AbortTimedOut: set(),
    MarkersWritten: set(),
    RecordForcedMarker: set(),
    RemoveExpiredId: set(),
}


@pytest.mark.gate(2)
@pytest.mark.parametrize("kind", COMMANDS, ids=lambda kind: kind.__name__)
@pytest.mark.parametrize("state", [None, *STATES])
@settings(max_examples=examples(quick=15, gate=20, full=400))
@given(data=st.data())
def test_every_command_in_every_state(state: str | None, kind: type, data: st.DataObject) -> None:
    """[TXN-1] [TXN-2] [TXN-3] [TXN-4] [TXN-6] [TXN-7] [TXN-8] of each Step; and no command raises."""
    config = data.draw(CONFIGS)
    entry = None if state is None else data.draw(entries(state))
    if entry is not None and config.transaction_version < 2:
        # Lowering the level is refused while such an entry exists.
        assume(not entry.is_kept and entry.transaction_version < 2)
    command = data.draw(commands(kind, entry))
    env = TxnEnv(transactional_id=T, config=config, now_ms=TimestampMs(START_MS), spare_producer_id=SPARE)
    kept = repr(entry)
    step = decide(entry, command, env)
    assert repr(entry) == kept, "a decision changed what it read"
    assert decide(entry, command, env) == step, "a decision has two outcomes"
    assert refuse_while_pending(entry, command).code in SPOKEN
    if isinstance(step, Reject):
        assert step.code in REFUSALS[kind]
        assert step.reason
    else:
        check_step(entry, command, step, env)


def check_step(entry: TxnEntry | None, command: TxnCommand, step: TxnStep, env: TxnEnv) -> None:
    durable = tuple(event for event in step.events if not isinstance(event, MarkerProgress))
    assert step.records == durable
    assert not (isinstance(command, VerifyPartitions) and durable)
    before = entry
    for event in step.events:
        after = apply_event(before, event)
        if isinstance(event, EntryStored):
            check_stored(before, event.entry, env)
        before = after
    check_change(entry, command, before)
    if before is not None and entry is not None and not durable:
        assert durable_view(before) == durable_view(entry)
    taken = before is not None and before.client.producer_id == SPARE
    assert step.uses_spare_id == taken
    if not step.needs_durable:
        assert before is not None
        assert isinstance(before.phase, IdlePhase | OngoingPhase)
        if isinstance(before.phase, IdlePhase):
            assert isinstance(command, MarkersWritten)
        else:
            assert isinstance(command, AddPartitionsByLeader)
            assert not command.needs_durable
            assert entry is not None
            assert min(before.transaction_version, entry.transaction_version) >= 2
    sent = step.marker_request
    if sent is not None:
        assert before is not None
        assert isinstance(before.phase, DecidedPhase)
        assert (sent.marker_identity, sent.outcome) == (before.phase.marker_identity, before.phase.outcome)
        assert sent.partitions == before.phase.partitions != frozenset()
        assert sent.transaction_version == before.transaction_version
    if isinstance(step.reply, Reject):
        assert step.reply.code is ErrorCode.CONCURRENT_TRANSACTIONS
        assert isinstance(command, InitProducerId)
    if isinstance(step.reply, InitProducerIdResult | EndTxnResult):
        assert before is not None
        assert step.reply.client == before.client
    if isinstance(step.reply, EndTxnResult):
        assert isinstance(command, EndTxn)
        assert before is not None
        assert isinstance(before.phase, IdlePhase | DecidedPhase)
        assert before.phase.outcome is command.outcome


def check_stored(before: TxnEntry | None, after: TxnEntry, env: TxnEnv) -> None:
    """A record follows the one before it, and is read back as it was written."""
    if before is not None:
        assert before.state in PREVIOUS_STATES[after.state]
        assert not_older(after.client, before.client)
    assert len(after.forced_outcomes) <= 8
    level = env.config.transaction_version
    record = EntryStored(entry=after)
    (read,) = decode_batches(encode_batch_of((record,), env.now_ms, level))
    assert isinstance(read, EntryStored)
    assert level == 0 or durable_view(read.entry) == durable_view(after)
    assert read.entry.phase == durable_view(after).phase or level == 0
    assert read.entry.state is after.state
    assert read.entry.described_identity == after.described_identity


def not_older(after: ProducerIdAndEpoch, before: ProducerIdAndEpoch) -> bool:
    if after.producer_id == before.producer_id:
        return after.epoch >= before.epoch
    return after.producer_id == SPARE and after.epoch == 0


def check_change(before: TxnEntry | None, command: TxnCommand, after: TxnEntry | None) -> None:
    """What one command may do to an entry: I2, I3, I5 and I6, of a single step."""
    if before is None or after is None:
        assert before is None or (
            isinstance(command, RemoveExpiredId) and isinstance(before.phase, IdlePhase)
        )
        return
    if isinstance(command, MarkersWritten) and before.described_identity != command.marker_identity:
        assert after == before
    pair = speaker(command)
    if pair is not None and pair != before.client:
        assert after == before
    if isinstance(before.phase, OngoingPhase) and not isinstance(after.phase, OngoingPhase):
        check_end(before, before.phase, command, after)
    if isinstance(before.phase, DecidedPhase) and isinstance(after.phase, DecidedPhase):
        assert replace(before.phase, marker_offsets={}) == replace(after.phase, marker_offsets={})
        assert after.client == before.client
    if isinstance(before.phase, OngoingPhase) and isinstance(after.phase, OngoingPhase):
        assert after.phase.writer == before.phase.writer
        assert after.phase.partitions >= before.phase.partitions
        assert after.phase.started_ms == before.phase.started_ms
        assert after.phase.partitions == before.phase.partitions or not before.is_kept
        assert before.phase.timeout_ms is not None or after.phase.timeout_ms is None
        if isinstance(command, InitProducerId) and after != before:
            assert after.client != before.client
    if isinstance(before.phase, IdlePhase) and isinstance(after.phase, OngoingPhase):
        assert after.phase.writer == before.client == after.client
        assert after.phase.writer.epoch < MAX


def check_end(before: TxnEntry, phase: OngoingPhase, command: TxnCommand, after: TxnEntry) -> None:
    assert isinstance(command, EndTxn | AbortTimedOut) or (
        isinstance(command, InitProducerId) and not command.keep_prepared
    )
    if before.is_two_phase:
        assert not isinstance(command, AbortTimedOut)
    if isinstance(command, InitProducerId):
        assert after.previous_identity == command.expected_identity, (
            "only the owner may hear of the next pair"
        )
    forced = after.forced_outcomes[-1:] if not isinstance(command, EndTxn) else ()
    assert all(note.writer == phase.writer for note in forced)
    assert isinstance(command, EndTxn) == (after.forced_outcomes == before.forced_outcomes)
    if isinstance(after.phase, IdlePhase):
        assert not phase.partitions
        return
    assert isinstance(after.phase, DecidedPhase)
    assert after.phase.outcome is (
        command.outcome if isinstance(command, EndTxn) else TransactionResult.ABORT
    )
    assert after.phase.partitions == phase.partitions
    assert after.phase.started_ms == phase.started_ms
    moved = ident(phase.writer.producer_id, phase.writer.epoch + 1)
    must_move = (
        before.is_kept
        or before.is_two_phase
        or not isinstance(command, EndTxn)
        or after.transaction_version == 2
    )
    assert after.phase.marker_identity == (moved if must_move else phase.writer)
    assert (after.client > before.client) == must_move or after.client.producer_id == SPARE
