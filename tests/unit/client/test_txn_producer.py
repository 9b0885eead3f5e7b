"""The producer's life: every call in every state, every answer in every state, and any sequence of both."""

from itertools import product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support.effort import examples

from tallystick.client.errors import ClientError, ConnectionLost, Fenced, TimedOut, build_broker_error
from tallystick.client.errors.rules import find_rule
from tallystick.client.transactions.modes import Mode, TxnDecision, TxnRecoveryAction
from tallystick.client.transactions.prepared import PreparedTxnState
from tallystick.client.transactions.state import (
    TRANSITIONS,
    DueEndTxn,
    IllegalCall,
    State,
    TxnCall,
    TxnProducerState,
)
from tallystick.kernel.codes import ErrorCode
from tallystick.kernel.errors import Effect, Remedy
from tallystick.kernel.ids import ProducerEpoch, ProducerId, ProducerIdAndEpoch
from tallystick.kernel.value import replace

S = State
FENCED = build_broker_error("EndTxn", "t", ErrorCode.PRODUCER_FENCED)
TOO_LARGE = build_broker_error("Produce", "a-0", ErrorCode.MESSAGE_TOO_LARGE)
LOST = ConnectionLost("b:1", "EndTxn", "reset")
LATE = TimedOut("max.block.ms", 10, "EndTxn")


def pair(producer_id: int, epoch: int) -> ProducerIdAndEpoch:
    return ProducerIdAndEpoch(ProducerId(producer_id), ProducerEpoch(epoch))


def must(result: TxnProducerState | IllegalCall) -> TxnProducerState:
    assert isinstance(result, TxnProducerState), result
    return result


def after(machine: TxnProducerState, *calls: TxnCall) -> TxnProducerState:
    for call in calls:
        machine = must(machine.apply_call(call))
    return machine


def ready(*, mode: Mode | None = Mode.TWO_PHASE, version: int = 2, keep: bool = False) -> TxnProducerState:
    return after(TxnProducerState(), TxnCall.INIT).apply_init(
        pair(42, 7), version=version, mode=mode, keep=keep
    )


def writing(**how: object) -> TxnProducerState:
    return after(ready(**how), TxnCall.BEGIN).mark_open()  # type: ignore[arg-type]


def prepared() -> TxnProducerState:
    return after(writing(), TxnCall.PREPARE).mark_flushed()


def kept() -> TxnProducerState:
    """42/7 was left in doubt; 42/8 may decide it."""
    starting = after(TxnProducerState(), TxnCall.INIT)
    return starting.apply_init(
        pair(42, 8), kept_identity=pair(42, 7), version=2, mode=Mode.TWO_PHASE, keep=True
    )


def unclaimed() -> TxnProducerState:
    return after(TxnProducerState(), TxnCall.INIT).apply_description(None, version=2, mode=Mode.RESUME)


WAYS = {
    S.UNINITIALIZED: TxnProducerState(),
    S.INITIALIZING: after(TxnProducerState(), TxnCall.INIT),
    S.UNCLAIMED: unclaimed(),
    S.CLAIMING: after(unclaimed(), TxnCall.CLAIM),
    S.READY: ready(),
    S.IN_TRANSACTION: writing(),
    S.PREPARING: after(writing(), TxnCall.PREPARE),
    S.PREPARED: prepared(),
    S.COMMITTING: after(prepared(), TxnCall.COMMIT),
    S.ABORTING: after(prepared(), TxnCall.ABORT),
    S.ABORTABLE_ERROR: writing().apply_failure("Produce", TOO_LARGE),
    S.IN_DOUBT: after(prepared(), TxnCall.COMMIT).apply_failure("EndTxn", LOST),
    S.FATAL: writing().apply_failure("AddPartitionsToTxn", build_broker_error("AddPartitionsToTxn", "t", 90)),
}

# Written down once more, by hand: i init, c claim, b begin, s send, o offsets, p prepare, C commit, A abort.
LEGAL = {
    S.UNINITIALIZED: "i",
    S.INITIALIZING: "",
    S.UNCLAIMED: "c",
    S.CLAIMING: "",
    S.READY: "b",
    S.IN_TRANSACTION: "sopCA",
    S.PREPARING: "",
    S.PREPARED: "CA",
    S.COMMITTING: "",
    S.ABORTING: "",
    S.ABORTABLE_ERROR: "A",
    S.IN_DOUBT: "C",  # the commit that was sent, and not an abort
    S.FATAL: "",
}
LETTERS = dict(zip("icbsopCA", TxnCall, strict=True))


def test_there_is_a_way_into_every_state() -> None:
    assert {state: way.state for state, way in WAYS.items()} == {state: state for state in State}


@pytest.mark.parametrize(("state", "letter"), list(product(State, LETTERS)))
@pytest.mark.slow
def test_every_call_in_every_state(state: State, letter: str) -> None:
    """[CLI-42] What is not in the table is refused, changes nothing and sends nothing."""
    machine = WAYS[state]
    result = machine.apply_call(LETTERS[letter])
    if letter in LEGAL[state]:
        assert must(result).state is TRANSITIONS[LETTERS[letter], state]
    else:
        assert isinstance(result, IllegalCall)
        assert LETTERS[letter].value in result.reason or "may have happened" in result.reason
        assert result.must_abort == (state is S.ABORTABLE_ERROR)
        assert (result.cause is not None) == (state in (S.ABORTABLE_ERROR, S.FATAL))


@pytest.mark.parametrize("state", State)
def test_complete_in_every_state(state: State) -> None:
    """KIP-939: only commit, abort and complete after a prepare; INVALID_TXN_STATE without one."""
    result = WAYS[state].complete(PreparedTxnState("42:7"))
    match state:
        case S.PREPARED | S.IN_DOUBT:
            assert must(result).due_end_txn == DueEndTxn(
                client=pair(42, 7), decision=TxnDecision.COMMIT, version=2
            )
        case S.UNCLAIMED:
            assert result == WAYS[state]
        case S.READY | S.IN_TRANSACTION:
            assert isinstance(result, IllegalCall)
            assert result.is_invalid_txn_state
        case _:
            assert isinstance(result, IllegalCall)
            assert not result.is_invalid_txn_state


def test_after_a_prepare_only_the_three_calls_are_legal() -> None:
    """KIP-939: "only .commitTransaction, .abortTransaction, or .completeTransaction could be called"."""
    for machine in (prepared(), kept()):
        legal = {call for call in TxnCall if isinstance(machine.apply_call(call), TxnProducerState)}
        assert legal == {TxnCall.COMMIT, TxnCall.ABORT}


# ---- what others got wrong


def test_a_recovered_transaction_is_ended_for_real() -> None:
    """[CLI-43] Another client's "started" flag is false after recovery: it reports a commit it never sent."""
    for call, wish in ((TxnCall.COMMIT, TxnDecision.COMMIT), (TxnCall.ABORT, TxnDecision.ABORT)):
        assert after(kept(), call).due_end_txn == DueEndTxn(client=pair(42, 8), decision=wish, version=2)


def test_the_token_names_the_writer_and_the_client_signs() -> None:
    """[CLI-44] KIP-939, two pairs; signing with the writer's is what Dekaf does."""
    machine = kept()
    assert str(machine.token) == "42:7"
    done = must(machine.complete(PreparedTxnState("42:7")))
    assert done.due_end_txn == DueEndTxn(client=pair(42, 8), decision=TxnDecision.COMMIT, version=2)
    assert done.apply_end(pair(42, 9), version=2).client == pair(42, 9)


def test_an_empty_prepared_transaction_has_an_empty_token_and_sends_nothing() -> None:
    """[CLI-43] Its pair would be the name of the next transaction, too: 42:7 must not be written anywhere."""
    empty = after(ready(), TxnCall.BEGIN, TxnCall.PREPARE).mark_flushed()
    assert empty.state is S.PREPARED
    assert str(empty.token) == ""
    for result in (
        empty.apply_call(TxnCall.COMMIT),
        empty.apply_call(TxnCall.ABORT),
        empty.complete(PreparedTxnState()),
        empty.complete(PreparedTxnState("42:7")),
    ):
        deciding = must(result)
        assert deciding.due_end_txn is None
        assert deciding.apply_end(None, version=2).state is S.READY
    following = after(must(empty.complete(empty.token)).apply_end(None, version=2), TxnCall.BEGIN).mark_open()
    assert str(after(following, TxnCall.PREPARE).mark_flushed().token) == "42:7"


def test_complete_with_nothing_in_doubt_is_a_no_op_after_init_true_or_a_prepare_only() -> None:
    """KIP-939: "In this case calling .completeTransaction would be a no-op"; the Java client throws."""
    token = PreparedTxnState("42:6")
    assert ready(keep=True).complete(token) == ready(keep=True)
    assert isinstance(ready(keep=False).complete(token), IllegalCall)
    decided = after(prepared(), TxnCall.COMMIT).apply_end(pair(42, 8), version=2)
    assert decided.complete(token) == decided
    for begun in (after(decided, TxnCall.BEGIN), after(ready(keep=True), TxnCall.BEGIN)):
        assert isinstance(begun.complete(token), IllegalCall)
        ended = after(begun, TxnCall.COMMIT).apply_end(None, version=2)
        assert isinstance(ended.complete(token), IllegalCall)


@pytest.mark.parametrize("token", ["", "42:6", "42:8", "43:7"])
def test_any_other_token_aborts(token: str) -> None:
    """KIP-939: "either commit or abort the transaction"; an empty token is another one, too."""
    for machine in (prepared(), kept()):
        due = must(machine.complete(PreparedTxnState(token))).due_end_txn
        assert due is not None
        assert due.decision is TxnDecision.ABORT


def test_no_epoch_is_bumped_while_prepared() -> None:
    """[CLI-45] Nothing that happens to a prepared transaction makes it UNCLAIMED but its end."""
    for machine, api, code in product((prepared(), kept()), ("Produce", "AddOffsetsToTxn"), ErrorCode):
        if code:
            assert machine.apply_failure(api, build_broker_error(api, "x", code)) == machine
    for state in State:
        if state is not S.UNCLAIMED:
            assert isinstance(WAYS[state].apply_call(TxnCall.CLAIM), IllegalCall)


def test_a_straggler_changes_nothing_of_what_is_being_decided() -> None:
    """Everything was flushed before it was prepared: a failure that is reported now is of no part of it."""
    for machine, call in product((prepared(), kept()), (TxnCall.COMMIT, TxnCall.ABORT)):
        deciding = after(machine, call)
        assert deciding.apply_failure("Produce", TOO_LARGE) == deciding


def test_prepare_without_a_mode_is_invalid_txn_state() -> None:
    refusal = writing(mode=None).apply_call(TxnCall.PREPARE)
    assert isinstance(refusal, IllegalCall)
    assert refusal.is_invalid_txn_state
    assert "tallystick.modes" in refusal.reason


# ---- answers


PARTS = ("Produce", "AddPartitionsToTxn", "AddOffsetsToTxn", "TxnOffsetCommit", "FindCoordinator")
CODES = [code for code in ErrorCode if code]


@pytest.mark.parametrize(("api", "version"), list(product(PARTS, (1, 2))))
def test_a_part_that_failed_is_never_committed(api: str, version: int) -> None:
    """[CLI-47] Abortable, or fatal where the table says stop; never goes on."""
    for code, calls in product(CODES, ((), (TxnCall.PREPARE,), (TxnCall.COMMIT,))):
        machine = after(writing(version=version), *calls).apply_failure(
            api, build_broker_error(api, "x", code)
        )
        stop = find_rule(api, code).remedy is Remedy.STOP
        assert machine.state is (S.FATAL if stop else S.ABORTABLE_ERROR)
        assert machine.mark_flushed() == machine, "a flush that follows prepares nothing"
        assert machine.due_end_txn is None
        assert isinstance(machine.apply_call(TxnCall.COMMIT), IllegalCall)
        assert isinstance(machine.complete(machine.token), IllegalCall)


@pytest.mark.parametrize("version", [1, 2])
def test_retries_that_are_used_up_fail_the_transaction_and_not_the_producer(version: int) -> None:
    """KAFKA-19176."""
    machine = writing(version=version).apply_failure("Produce", TimedOut("delivery.timeout.ms", 5, "a-0"))
    assert machine.state is S.ABORTABLE_ERROR
    aborted = after(machine, TxnCall.ABORT).apply_end(None if version == 1 else pair(42, 8), version=version)
    # KIP-360: a gap in the sequence numbers; under version 2 the end has moved the epoch (KIP-890).
    assert aborted.state is (S.UNCLAIMED if version == 1 else S.READY)
    assert aborted.error is None


def test_a_record_that_was_never_sent_leaves_no_gap_under_version_2() -> None:
    """Nothing reached the cluster, so nothing is ended, and the epoch stays."""
    begun = after(ready(), TxnCall.BEGIN).apply_failure("Produce", TimedOut("delivery.timeout.ms", 5, "a-0"))
    aborting = after(begun, TxnCall.ABORT)
    assert aborting.due_end_txn is None
    assert aborting.apply_end(None, version=2).state is S.READY


def test_what_fails_without_a_gap_needs_no_new_epoch() -> None:
    error = build_broker_error("AddPartitionsToTxn", "x", ErrorCode.TOPIC_AUTHORIZATION_FAILED)
    machine = after(writing(version=1).apply_failure("AddPartitionsToTxn", error), TxnCall.ABORT)
    assert machine.apply_end(None, version=1).state is S.READY
    error = build_broker_error("AddPartitionsToTxn", "x", ErrorCode.UNKNOWN_PRODUCER_ID)
    machine = after(writing(version=1).apply_failure("AddPartitionsToTxn", error), TxnCall.ABORT)
    assert machine.apply_end(None, version=1).state is S.UNCLAIMED


@pytest.mark.parametrize("version", [0, 1, 2])
def test_a_numbered_batch_that_fails_while_aborting_needs_a_new_epoch(version: int) -> None:
    """KIP-360. Its error is of no account, and a batch without numbers leaves no gap."""
    aborting = after(writing(version=version), TxnCall.ABORT)
    assert aborting.apply_failure("Produce", TOO_LARGE) == aborting
    ended = aborting.note_sequence_gap().apply_end(pair(42, 8) if version == 2 else None, version=version)
    assert ended.state is (S.READY if version == 2 else S.UNCLAIMED)
    assert not ended.needs_epoch_bump
    deciding = after(after(writing(version=1), TxnCall.PREPARE).mark_flushed(), TxnCall.ABORT)
    assert deciding.note_sequence_gap() == deciding, "all of a prepared transaction was flushed [CLI-45]"


def test_a_transaction_ends_as_it_was_started_when_the_version_changes() -> None:
    """KAFKA-18227: complete with the old protocol, then move the epoch."""
    machine = after(writing(version=1, mode=None), TxnCall.COMMIT)
    assert machine.due_end_txn == DueEndTxn(client=pair(42, 7), decision=TxnDecision.COMMIT, version=1)
    assert machine.apply_end(None, version=2).state is S.UNCLAIMED
    assert after(writing(version=2), TxnCall.COMMIT).apply_end(pair(42, 8), version=1).state is S.UNCLAIMED


def test_resume_under_version_1_moves_the_epoch_by_hand() -> None:
    """Under version 1 a pair names one transaction only if every end is followed by an init."""
    machine = after(writing(version=1, mode=Mode.RESUME), TxnCall.COMMIT)
    assert machine.apply_end(None, version=1).state is S.UNCLAIMED
    machine = after(writing(version=2, mode=Mode.RESUME), TxnCall.COMMIT)
    assert machine.apply_end(pair(42, 8), version=2).state is S.READY


def test_resume_claims_the_id_after_a_recovered_transaction() -> None:
    found = after(TxnProducerState(), TxnCall.INIT).apply_description(
        pair(42, 7), version=2, mode=Mode.RESUME
    )
    assert found.state is S.PREPARED
    deciding = must(found.complete(PreparedTxnState("42:7")))
    assert deciding.due_end_txn == DueEndTxn(client=pair(42, 7), decision=TxnDecision.COMMIT, version=2)
    ended = deciding.apply_end(pair(42, 8), version=2)
    assert ended.state is S.UNCLAIMED
    assert ended.complete(PreparedTxnState("42:7")) == ended


@pytest.mark.parametrize(
    ("machine", "call"), list(product((writing(), prepared(), kept()), (TxnCall.COMMIT, TxnCall.ABORT)))
)
def test_every_answer_to_a_decision(machine: TxnProducerState, call: TxnCall) -> None:
    """[CLI-46] Unknown is doubt; what is prepared stays prepared; 120 on abort must not go on for ever."""
    for code in CODES:
        if (rule := find_rule("EndTxn", code)).remedy is Remedy.LOOK_UP:
            continue  # found() is told instead
        state = after(machine, call).apply_failure("EndTxn", build_broker_error("EndTxn", "t", code)).state
        if rule.effect is Effect.UNKNOWN:
            assert state is S.IN_DOUBT
        elif machine.state is S.PREPARED:
            assert state is S.PREPARED
        elif rule.remedy.repeats:
            assert state is (S.IN_TRANSACTION if call is TxnCall.COMMIT else S.ABORTABLE_ERROR)
        elif rule.remedy is Remedy.ABORT and call is TxnCall.COMMIT:
            assert state is S.ABORTABLE_ERROR
        else:
            assert state is S.FATAL


def test_a_lost_decision_is_repeated_and_nothing_else() -> None:
    """[CLI-46] Commit, lost; the second attempt is refused for certain, and it is still in doubt."""
    doubt = after(prepared(), TxnCall.COMMIT).apply_failure("EndTxn", LOST)
    assert doubt.state is S.IN_DOUBT
    assert isinstance(doubt.apply_call(TxnCall.ABORT), IllegalCall)
    assert isinstance(doubt.complete(PreparedTxnState("1:1")), IllegalCall)
    again = must(doubt.complete(PreparedTxnState("42:7")))
    assert again.due_end_txn == after(prepared(), TxnCall.COMMIT).due_end_txn
    assert again.apply_failure("EndTxn", LATE).state is S.IN_DOUBT
    assert again.apply_failure("EndTxn", build_broker_error("EndTxn", "t", 120)).state is S.IN_DOUBT
    done = again.apply_end(pair(42, 8), version=2)
    assert (done.state, done.maybe_sent, done.writer) == (S.READY, False, None)
    fresh = after(after(done, TxnCall.BEGIN).mark_open(), TxnCall.COMMIT)
    assert fresh.apply_failure("EndTxn", LATE).state is S.IN_TRANSACTION, "nothing is left of the doubt"


def test_a_decision_that_never_left_can_be_taken_again() -> None:
    assert after(writing(), TxnCall.COMMIT).apply_failure("EndTxn", LATE).state is S.IN_TRANSACTION
    assert after(prepared(), TxnCall.COMMIT).apply_failure("EndTxn", LATE).state is S.PREPARED
    broken = writing().apply_failure("Produce", TOO_LARGE)
    again = after(broken, TxnCall.ABORT).apply_failure("EndTxn", LATE)
    assert (again.state, again.error) == (S.ABORTABLE_ERROR, TOO_LARGE), "the first failure says why"


def test_an_abort_that_never_left_is_not_followed_by_a_commit() -> None:
    """[CLI-47] The abort has failed records that waited, so only another abort is left."""
    left = after(writing(), TxnCall.ABORT).apply_failure("EndTxn", LATE)
    assert (left.state, left.error, left.decision) == (S.ABORTABLE_ERROR, LATE, None)
    assert isinstance(left.apply_call(TxnCall.COMMIT), IllegalCall)
    assert after(left, TxnCall.ABORT).apply_end(pair(42, 8), version=2).state is S.READY


FOUND = {
    (TxnRecoveryAction.DONE, TxnDecision.COMMIT): S.UNCLAIMED,
    (TxnRecoveryAction.DONE, TxnDecision.ABORT): S.UNCLAIMED,
    (TxnRecoveryAction.CONTRADICTED, TxnDecision.COMMIT): S.ABORTABLE_ERROR,
    (TxnRecoveryAction.CONTRADICTED, TxnDecision.ABORT): S.FATAL,
    (TxnRecoveryAction.IN_DOUBT, TxnDecision.COMMIT): S.IN_DOUBT,
    (TxnRecoveryAction.HALT, TxnDecision.COMMIT): S.FATAL,
    (TxnRecoveryAction.FENCED, TxnDecision.COMMIT): S.FATAL,
    (TxnRecoveryAction.FENCED, TxnDecision.ABORT): S.FATAL,
}


@pytest.mark.parametrize(("verdict", "wish"), FOUND)
def test_what_a_look_up_leads_to(verdict: TxnRecoveryAction, wish: TxnDecision) -> None:
    error = build_broker_error("EndTxn", "t", ErrorCode.INVALID_PRODUCER_ID_MAPPING)
    call = TxnCall.COMMIT if wish is TxnDecision.COMMIT else TxnCall.ABORT
    assert after(prepared(), call).apply_outcome(verdict, error).state is FOUND[verdict, wish]


def test_a_fenced_client_learns_its_outcome_and_then_stops() -> None:
    machine = after(prepared(), TxnCall.COMMIT).apply_outcome(TxnRecoveryAction.DONE, FENCED)
    assert (machine.state, machine.writer) == (S.FATAL, None)
    refusal = machine.apply_call(TxnCall.BEGIN)
    assert isinstance(refusal, IllegalCall)
    assert isinstance(refusal.cause, Fenced)


def test_init_may_be_tried_again_unless_the_id_is_taken() -> None:
    for code in CODES:
        error = build_broker_error("InitProducerId", "t", code)
        stop = error.remedy is Remedy.STOP
        assert WAYS[S.INITIALIZING].apply_failure("InitProducerId", error).state is (
            S.FATAL if stop else S.UNINITIALIZED
        )
        assert WAYS[S.CLAIMING].apply_failure("InitProducerId", error).state is (
            S.FATAL if stop else S.UNCLAIMED
        )


# ---- any sequence


ANSWERS = st.sampled_from(["ok", "lost", "late", "abortable", "found done", "found doubt", "contradicted"])
MOVES = st.lists(
    st.tuples(st.sampled_from([*TxnCall, "complete", "complete other", "part"]), ANSWERS), max_size=40
)


class Naive:
    """What a cluster would have seen: every decision sent, by the name of the transaction."""

    def __init__(self) -> None:
        self.machine = TxnProducerState()
        self.epoch = 0
        self.sent: dict[ProducerIdAndEpoch, set[TxnDecision]] = {}
        self.tokens: set[str] = set()

    def move(self, call: TxnCall | str, answer: str) -> None:
        before = self.machine
        if call == "part":
            if before.state is S.IN_TRANSACTION:
                self.machine = (
                    before.apply_failure("Produce", TOO_LARGE)
                    if answer == "abortable"
                    else before.mark_open()
                )
            return
        if call == "complete":
            result = before.complete(before.token)
        elif call == "complete other":
            result = before.complete(PreparedTxnState("9999:1"))
        else:
            assert isinstance(call, TxnCall)
            result = before.apply_call(call)
        if isinstance(result, IllegalCall):
            return
        self.machine = result
        self.answer(answer)

    def answer(self, answer: str) -> None:
        machine = self.machine
        match machine.state:
            case S.INITIALIZING | S.CLAIMING if answer == "lost":
                self.machine = machine.apply_failure("InitProducerId", LATE)
            case S.INITIALIZING | S.CLAIMING:
                self.epoch += 1
                keep = answer == "late"
                mode = Mode.TWO_PHASE
                self.machine = machine.apply_init(pair(42, self.epoch), version=2, mode=mode, keep=keep)
            case S.PREPARING:
                self.machine = machine.mark_flushed()
                assert str(self.machine.token) not in self.tokens, "a token is given out once"
                self.tokens |= {str(self.machine.token)} - {""}
            case S.COMMITTING | S.ABORTING:
                self.decide(answer)

    def decide(self, answer: str) -> None:
        machine, end = self.machine, self.machine.due_end_txn
        if end is None:
            self.machine = machine.apply_end(None, version=2)
            return
        assert machine.writer is not None
        if answer != "late":
            self.sent.setdefault(machine.writer, set()).add(end.decision)
        error: ClientError = build_broker_error("EndTxn", "t", ErrorCode.INVALID_PRODUCER_ID_MAPPING)
        match answer:
            case "lost":
                self.machine = machine.apply_failure("EndTxn", LOST)
            case "late":
                self.machine = machine.apply_failure("EndTxn", LATE)
            case "found doubt" if end.decision is TxnDecision.COMMIT:
                self.machine = machine.apply_outcome(TxnRecoveryAction.IN_DOUBT, error)
            case "found done":
                self.machine = machine.apply_outcome(TxnRecoveryAction.DONE, error)
            case _:
                self.epoch += 1
                self.machine = machine.apply_end(pair(42, self.epoch), version=2)


@settings(max_examples=examples(quick=10, gate=60, full=300))
@given(MOVES)
def test_whatever_happens_one_transaction_gets_one_decision(moves: list[tuple[TxnCall | str, str]]) -> None:
    """[CLI-43, CLI-46] Against the plainest model: the set of decisions each transaction was ever sent."""
    world = Naive()
    for call, answer in moves:
        before = world.machine
        world.move(call, answer)
        now = world.machine
        assert all(len(wishes) == 1 for wishes in world.sent.values())
        if before.state is S.PREPARED and now.state is not S.PREPARED:
            assert call in (TxnCall.COMMIT, TxnCall.ABORT, "complete", "complete other")
        if now.state in (S.READY, S.UNCLAIMED, S.UNINITIALIZED):
            assert now.writer is None
            assert not now.maybe_sent
        if now.state is S.PREPARED and not now.is_recovered:
            assert now.writer in (None, now.client)


def test_a_value_is_replaced_and_never_changed() -> None:
    machine = ready()
    after(machine, TxnCall.BEGIN)
    assert machine == ready() == replace(machine)
