"""The producer's life: every call in every state, every answer in every state, and any sequence of both."""

from itertools import product

import pytest
from effort import examples
from hypothesis import given, settings
from hypothesis import strategies as st

from tallystick.client.errors import ClientError, ConnectionLost, Fenced, TimedOut, refused
from tallystick.client.retry import rule_for
from tallystick.client.transactions.modes import Mode, Verdict, Wish
from tallystick.client.transactions.prepared import PreparedTxnState
from tallystick.client.transactions.state import CALLS, Call, End, Refused, State, TxnProducer
from tallystick.kernel.codes import ErrorCode
from tallystick.kernel.errors import Effect, Remedy
from tallystick.kernel.ids import Identity, ProducerEpoch, ProducerId
from tallystick.kernel.value import replace

S = State
FENCED = refused("EndTxn", "t", ErrorCode.PRODUCER_FENCED)
TOO_LARGE = refused("Produce", "a-0", ErrorCode.MESSAGE_TOO_LARGE)
LOST = ConnectionLost("b:1", "EndTxn", "reset")
LATE = TimedOut("max.block.ms", 10, "EndTxn")


def pair(producer_id: int, epoch: int) -> Identity:
    return Identity(ProducerId(producer_id), ProducerEpoch(epoch))


def must(result: TxnProducer | Refused) -> TxnProducer:
    assert isinstance(result, TxnProducer), result
    return result


def after(machine: TxnProducer, *calls: Call) -> TxnProducer:
    for call in calls:
        machine = must(machine.call(call))
    return machine


def ready(*, mode: Mode | None = Mode.TWO_PHASE, version: int = 2, keep: bool = False) -> TxnProducer:
    return after(TxnProducer(), Call.INIT).initialised(pair(42, 7), version=version, mode=mode, keep=keep)


def writing(**how: object) -> TxnProducer:
    return after(ready(**how), Call.BEGIN).opened()  # type: ignore[arg-type]


def prepared() -> TxnProducer:
    return after(writing(), Call.PREPARE).flushed()


def kept() -> TxnProducer:
    """42/7 was left in doubt; 42/8 may decide it."""
    starting = after(TxnProducer(), Call.INIT)
    return starting.initialised(pair(42, 8), kept=pair(42, 7), version=2, mode=Mode.TWO_PHASE, keep=True)


def unclaimed() -> TxnProducer:
    return after(TxnProducer(), Call.INIT).described(None, version=2)


WAYS = {
    S.UNINITIALIZED: TxnProducer(),
    S.INITIALIZING: after(TxnProducer(), Call.INIT),
    S.UNCLAIMED: unclaimed(),
    S.CLAIMING: after(unclaimed(), Call.CLAIM),
    S.READY: ready(),
    S.IN_TRANSACTION: writing(),
    S.PREPARING: after(writing(), Call.PREPARE),
    S.PREPARED: prepared(),
    S.COMMITTING: after(prepared(), Call.COMMIT),
    S.ABORTING: after(prepared(), Call.ABORT),
    S.ABORTABLE_ERROR: writing().failed("Produce", TOO_LARGE),
    S.IN_DOUBT: after(prepared(), Call.COMMIT).failed("EndTxn", LOST),
    S.FATAL: writing().failed("AddPartitionsToTxn", refused("AddPartitionsToTxn", "t", 90)),
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
LETTERS = dict(zip("icbsopCA", Call, strict=True))


def test_there_is_a_way_into_every_state() -> None:
    assert {state: way.state for state, way in WAYS.items()} == {state: state for state in State}


@pytest.mark.parametrize(("state", "letter"), list(product(State, LETTERS)))
def test_every_call_in_every_state(state: State, letter: str) -> None:
    """[CLI-42] What is not in the table is refused, changes nothing and sends nothing."""
    machine = WAYS[state]
    result = machine.call(LETTERS[letter])
    if letter in LEGAL[state]:
        assert must(result).state is CALLS[LETTERS[letter], state]
    else:
        assert isinstance(result, Refused)
        assert LETTERS[letter].value in result.reason or "may have happened" in result.reason
        assert result.must_abort == (state is S.ABORTABLE_ERROR)
        assert (result.broken is not None) == (state in (S.ABORTABLE_ERROR, S.FATAL))


@pytest.mark.parametrize("state", State)
def test_complete_in_every_state(state: State) -> None:
    """KIP-939: only commit, abort and complete after a prepare; INVALID_TXN_STATE without one."""
    result = WAYS[state].complete(PreparedTxnState("42:7"))
    match state:
        case S.PREPARED | S.IN_DOUBT:
            assert must(result).due == End(client=pair(42, 7), wish=Wish.COMMIT, version=2)
        case S.UNCLAIMED:
            assert result == WAYS[state]
        case S.READY | S.IN_TRANSACTION:
            assert isinstance(result, Refused)
            assert result.txn_state
        case _:
            assert isinstance(result, Refused)
            assert not result.txn_state


def test_after_a_prepare_only_the_three_calls_are_legal() -> None:
    """KIP-939: "only .commitTransaction, .abortTransaction, or .completeTransaction could be called"."""
    for machine in (prepared(), kept()):
        legal = {call for call in Call if isinstance(machine.call(call), TxnProducer)}
        assert legal == {Call.COMMIT, Call.ABORT}


# ---- what others got wrong


def test_a_recovered_transaction_is_ended_for_real() -> None:
    """[CLI-43] Another client's "started" flag is false after recovery: it reports a commit it never sent."""
    for call, wish in ((Call.COMMIT, Wish.COMMIT), (Call.ABORT, Wish.ABORT)):
        assert after(kept(), call).due == End(client=pair(42, 8), wish=wish, version=2)


def test_the_token_names_the_writer_and_the_client_signs() -> None:
    """[CLI-44] KIP-939, two pairs; signing with the writer's is what Dekaf does."""
    machine = kept()
    assert str(machine.token) == "42:7"
    done = must(machine.complete(PreparedTxnState("42:7")))
    assert done.due == End(client=pair(42, 8), wish=Wish.COMMIT, version=2)
    assert done.ended(pair(42, 9), version=2).client == pair(42, 9)


def test_an_empty_prepared_transaction_has_an_empty_token_and_sends_nothing() -> None:
    """[CLI-43] Its pair would be the name of the next transaction, too: 42:7 must not be written anywhere."""
    empty = after(ready(), Call.BEGIN, Call.PREPARE).flushed()
    assert empty.state is S.PREPARED
    assert str(empty.token) == ""
    for result in (
        empty.call(Call.COMMIT),
        empty.call(Call.ABORT),
        empty.complete(PreparedTxnState()),
        empty.complete(PreparedTxnState("42:7")),
    ):
        deciding = must(result)
        assert deciding.due is None
        assert deciding.ended(None, version=2).state is S.READY
    following = after(must(empty.complete(empty.token)).ended(None, version=2), Call.BEGIN).opened()
    assert str(after(following, Call.PREPARE).flushed().token) == "42:7"


def test_complete_with_nothing_in_doubt_is_a_no_op_after_init_true_or_a_prepare_only() -> None:
    """KIP-939: "In this case calling .completeTransaction would be a no-op"; the Java client throws."""
    token = PreparedTxnState("42:6")
    assert ready(keep=True).complete(token) == ready(keep=True)
    assert isinstance(ready(keep=False).complete(token), Refused)
    decided = after(prepared(), Call.COMMIT).ended(pair(42, 8), version=2)
    assert decided.complete(token) == decided
    for begun in (after(decided, Call.BEGIN), after(ready(keep=True), Call.BEGIN)):
        assert isinstance(begun.complete(token), Refused)
        ended = after(begun, Call.COMMIT).ended(None, version=2)
        assert isinstance(ended.complete(token), Refused)


@pytest.mark.parametrize("token", ["", "42:6", "42:8", "43:7"])
def test_any_other_token_aborts(token: str) -> None:
    """KIP-939: "either commit or abort the transaction"; an empty token is another one, too."""
    for machine in (prepared(), kept()):
        due = must(machine.complete(PreparedTxnState(token))).due
        assert due is not None
        assert due.wish is Wish.ABORT


def test_no_epoch_is_bumped_while_prepared() -> None:
    """[CLI-45] Nothing that happens to a prepared transaction makes it UNCLAIMED but its end."""
    for machine, api, code in product((prepared(), kept()), ("Produce", "AddOffsetsToTxn"), ErrorCode):
        if code:
            assert machine.failed(api, refused(api, "x", code)) == machine
    for state in State:
        if state is not S.UNCLAIMED:
            assert isinstance(WAYS[state].call(Call.CLAIM), Refused)


def test_a_straggler_changes_nothing_of_what_is_being_decided() -> None:
    """Everything was flushed before it was prepared: a failure that is reported now is of no part of it."""
    for machine, call in product((prepared(), kept()), (Call.COMMIT, Call.ABORT)):
        deciding = after(machine, call)
        assert deciding.failed("Produce", TOO_LARGE) == deciding


def test_prepare_without_a_mode_is_invalid_txn_state() -> None:
    refusal = writing(mode=None).call(Call.PREPARE)
    assert isinstance(refusal, Refused)
    assert refusal.txn_state
    assert "tallystick.modes" in refusal.reason


# ---- answers


PARTS = ("Produce", "AddPartitionsToTxn", "AddOffsetsToTxn", "TxnOffsetCommit", "FindCoordinator")
CODES = [code for code in ErrorCode if code]


@pytest.mark.parametrize(("api", "version"), list(product(PARTS, (1, 2))))
def test_a_part_that_failed_is_never_committed(api: str, version: int) -> None:
    """[CLI-47] Abortable, or fatal where the table says stop; never goes on."""
    for code, calls in product(CODES, ((), (Call.PREPARE,), (Call.COMMIT,))):
        machine = after(writing(version=version), *calls).failed(api, refused(api, "x", code))
        stop = rule_for(api, code).remedy is Remedy.STOP
        assert machine.state is (S.FATAL if stop else S.ABORTABLE_ERROR)
        assert machine.flushed() == machine, "a flush that follows prepares nothing"
        assert machine.due is None
        assert isinstance(machine.call(Call.COMMIT), Refused)
        assert isinstance(machine.complete(machine.token), Refused)


@pytest.mark.parametrize("version", [1, 2])
def test_retries_that_are_used_up_fail_the_transaction_and_not_the_producer(version: int) -> None:
    """KAFKA-19176."""
    machine = writing(version=version).failed("Produce", TimedOut("delivery.timeout.ms", 5, "a-0"))
    assert machine.state is S.ABORTABLE_ERROR
    aborted = after(machine, Call.ABORT).ended(None if version == 1 else pair(42, 8), version=version)
    # KIP-360: a gap in the sequence numbers; under version 2 the end has moved the epoch (KIP-890).
    assert aborted.state is (S.UNCLAIMED if version == 1 else S.READY)
    assert aborted.error is None


def test_a_record_that_was_never_sent_leaves_no_gap_under_version_2() -> None:
    """Nothing reached the cluster, so nothing is ended, and the epoch stays."""
    begun = after(ready(), Call.BEGIN).failed("Produce", TimedOut("delivery.timeout.ms", 5, "a-0"))
    aborting = after(begun, Call.ABORT)
    assert aborting.due is None
    assert aborting.ended(None, version=2).state is S.READY


def test_what_fails_without_a_gap_needs_no_new_epoch() -> None:
    error = refused("AddPartitionsToTxn", "x", ErrorCode.TOPIC_AUTHORIZATION_FAILED)
    machine = after(writing(version=1).failed("AddPartitionsToTxn", error), Call.ABORT)
    assert machine.ended(None, version=1).state is S.READY
    error = refused("AddPartitionsToTxn", "x", ErrorCode.UNKNOWN_PRODUCER_ID)
    machine = after(writing(version=1).failed("AddPartitionsToTxn", error), Call.ABORT)
    assert machine.ended(None, version=1).state is S.UNCLAIMED


def test_a_transaction_ends_as_it_was_started_when_the_version_changes() -> None:
    """KAFKA-18227: complete with the old protocol, then move the epoch."""
    machine = after(writing(version=1, mode=None), Call.COMMIT)
    assert machine.due == End(client=pair(42, 7), wish=Wish.COMMIT, version=1)
    assert machine.ended(None, version=2).state is S.UNCLAIMED
    assert after(writing(version=2), Call.COMMIT).ended(pair(42, 8), version=1).state is S.UNCLAIMED


def test_resume_under_version_1_moves_the_epoch_by_hand() -> None:
    """Under version 1 a pair names one transaction only if every end is followed by an init."""
    machine = after(writing(version=1, mode=Mode.RESUME), Call.COMMIT)
    assert machine.ended(None, version=1).state is S.UNCLAIMED
    machine = after(writing(version=2, mode=Mode.RESUME), Call.COMMIT)
    assert machine.ended(pair(42, 8), version=2).state is S.READY


def test_resume_claims_the_id_after_a_recovered_transaction() -> None:
    found = after(TxnProducer(), Call.INIT).described(pair(42, 7), version=2)
    assert found.state is S.PREPARED
    deciding = must(found.complete(PreparedTxnState("42:7")))
    assert deciding.due == End(client=pair(42, 7), wish=Wish.COMMIT, version=2)
    ended = deciding.ended(pair(42, 8), version=2)
    assert ended.state is S.UNCLAIMED
    assert ended.complete(PreparedTxnState("42:7")) == ended


@pytest.mark.parametrize(
    ("machine", "call"), list(product((writing(), prepared(), kept()), (Call.COMMIT, Call.ABORT)))
)
def test_every_answer_to_a_decision(machine: TxnProducer, call: Call) -> None:
    """[CLI-46] Unknown is doubt; what is prepared stays prepared; 120 on abort must not go on for ever."""
    for code in CODES:
        if (rule := rule_for("EndTxn", code)).remedy is Remedy.LOOK_UP:
            continue  # found() is told instead
        state = after(machine, call).failed("EndTxn", refused("EndTxn", "t", code)).state
        if rule.effect is Effect.UNKNOWN:
            assert state is S.IN_DOUBT
        elif machine.state is S.PREPARED:
            assert state is S.PREPARED
        elif rule.remedy.repeats:
            assert state is S.IN_TRANSACTION
        elif rule.remedy is Remedy.ABORT and call is Call.COMMIT:
            assert state is S.ABORTABLE_ERROR
        else:
            assert state is S.FATAL


def test_a_lost_decision_is_repeated_and_nothing_else() -> None:
    """[CLI-46] Commit, lost; the second attempt is refused for certain, and it is still in doubt."""
    doubt = after(prepared(), Call.COMMIT).failed("EndTxn", LOST)
    assert doubt.state is S.IN_DOUBT
    assert isinstance(doubt.call(Call.ABORT), Refused)
    assert isinstance(doubt.complete(PreparedTxnState("1:1")), Refused)
    again = must(doubt.complete(PreparedTxnState("42:7")))
    assert again.due == after(prepared(), Call.COMMIT).due
    assert again.failed("EndTxn", LATE).state is S.IN_DOUBT
    assert again.failed("EndTxn", refused("EndTxn", "t", 120)).state is S.IN_DOUBT
    done = again.ended(pair(42, 8), version=2)
    assert (done.state, done.unsure, done.writer) == (S.READY, False, None)
    fresh = after(after(done, Call.BEGIN).opened(), Call.COMMIT)
    assert fresh.failed("EndTxn", LATE).state is S.IN_TRANSACTION, "nothing is left of the doubt"


def test_a_decision_that_never_left_can_be_taken_again() -> None:
    assert after(writing(), Call.COMMIT).failed("EndTxn", LATE).state is S.IN_TRANSACTION
    assert after(prepared(), Call.COMMIT).failed("EndTxn", LATE).state is S.PREPARED
    broken = writing().failed("Produce", TOO_LARGE)
    assert after(broken, Call.ABORT).failed("EndTxn", LATE).state is S.ABORTABLE_ERROR


FOUND = {
    (Verdict.DONE, Wish.COMMIT): S.UNCLAIMED,
    (Verdict.DONE, Wish.ABORT): S.UNCLAIMED,
    (Verdict.CONTRADICTED, Wish.COMMIT): S.ABORTABLE_ERROR,
    (Verdict.CONTRADICTED, Wish.ABORT): S.FATAL,
    (Verdict.IN_DOUBT, Wish.COMMIT): S.IN_DOUBT,
    (Verdict.HALT, Wish.COMMIT): S.FATAL,
    (Verdict.FENCED, Wish.COMMIT): S.FATAL,
    (Verdict.FENCED, Wish.ABORT): S.FATAL,
}


@pytest.mark.parametrize(("verdict", "wish"), FOUND)
def test_what_a_look_up_leads_to(verdict: Verdict, wish: Wish) -> None:
    error = refused("EndTxn", "t", ErrorCode.INVALID_PRODUCER_ID_MAPPING)
    call = Call.COMMIT if wish is Wish.COMMIT else Call.ABORT
    assert after(prepared(), call).found(verdict, error).state is FOUND[verdict, wish]


def test_a_fenced_client_learns_its_outcome_and_then_stops() -> None:
    machine = after(prepared(), Call.COMMIT).found(Verdict.DONE, FENCED)
    assert (machine.state, machine.writer) == (S.FATAL, None)
    refusal = machine.call(Call.BEGIN)
    assert isinstance(refusal, Refused)
    assert isinstance(refusal.broken, Fenced)


def test_init_may_be_tried_again_unless_the_id_is_taken() -> None:
    for code in CODES:
        error = refused("InitProducerId", "t", code)
        stop = error.remedy is Remedy.STOP
        assert WAYS[S.INITIALIZING].failed("InitProducerId", error).state is (
            S.FATAL if stop else S.UNINITIALIZED
        )
        assert WAYS[S.CLAIMING].failed("InitProducerId", error).state is (S.FATAL if stop else S.UNCLAIMED)


# ---- any sequence


ANSWERS = st.sampled_from(["ok", "lost", "late", "abortable", "found done", "found doubt", "contradicted"])
MOVES = st.lists(
    st.tuples(st.sampled_from([*Call, "complete", "complete other", "part"]), ANSWERS), max_size=40
)


class Naive:
    """What a cluster would have seen: every decision sent, by the name of the transaction."""

    def __init__(self) -> None:
        self.machine = TxnProducer()
        self.epoch = 0
        self.sent: dict[Identity, set[Wish]] = {}
        self.tokens: set[str] = set()

    def move(self, call: Call | str, answer: str) -> None:
        before = self.machine
        if call == "part":
            if before.state is S.IN_TRANSACTION:
                self.machine = (
                    before.failed("Produce", TOO_LARGE) if answer == "abortable" else before.opened()
                )
            return
        if call == "complete":
            result = before.complete(before.token)
        elif call == "complete other":
            result = before.complete(PreparedTxnState("9999:1"))
        else:
            assert isinstance(call, Call)
            result = before.call(call)
        if isinstance(result, Refused):
            return
        self.machine = result
        self.answer(answer)

    def answer(self, answer: str) -> None:
        machine = self.machine
        match machine.state:
            case S.INITIALIZING | S.CLAIMING if answer == "lost":
                self.machine = machine.failed("InitProducerId", LATE)
            case S.INITIALIZING | S.CLAIMING:
                self.epoch += 1
                keep = answer == "late"
                mode = Mode.TWO_PHASE
                self.machine = machine.initialised(pair(42, self.epoch), version=2, mode=mode, keep=keep)
            case S.PREPARING:
                self.machine = machine.flushed()
                assert str(self.machine.token) not in self.tokens, "a token is given out once"
                self.tokens |= {str(self.machine.token)} - {""}
            case S.COMMITTING | S.ABORTING:
                self.decide(answer)

    def decide(self, answer: str) -> None:
        machine, end = self.machine, self.machine.due
        if end is None:
            self.machine = machine.ended(None, version=2)
            return
        assert machine.writer is not None
        if answer != "late":
            self.sent.setdefault(machine.writer, set()).add(end.wish)
        error: ClientError = refused("EndTxn", "t", ErrorCode.INVALID_PRODUCER_ID_MAPPING)
        match answer:
            case "lost":
                self.machine = machine.failed("EndTxn", LOST)
            case "late":
                self.machine = machine.failed("EndTxn", LATE)
            case "found doubt" if end.wish is Wish.COMMIT:
                self.machine = machine.found(Verdict.IN_DOUBT, error)
            case "found done":
                self.machine = machine.found(Verdict.DONE, error)
            case _:
                self.epoch += 1
                self.machine = machine.ended(pair(42, self.epoch), version=2)


@settings(max_examples=examples(quick=50, full=300))
@given(MOVES)
def test_whatever_happens_one_transaction_gets_one_decision(moves: list[tuple[Call | str, str]]) -> None:
    """[CLI-43, CLI-46] Against the plainest model: the set of decisions each transaction was ever sent."""
    world = Naive()
    for call, answer in moves:
        before = world.machine
        world.move(call, answer)
        now = world.machine
        assert all(len(wishes) == 1 for wishes in world.sent.values())
        if before.state is S.PREPARED and now.state is not S.PREPARED:
            assert call in (Call.COMMIT, Call.ABORT, "complete", "complete other")
        if now.state in (S.READY, S.UNCLAIMED, S.UNINITIALIZED):
            assert now.writer is None
            assert not now.unsure
        if now.state is S.PREPARED and not now.recovered:
            assert now.writer in (None, now.client)


def test_a_value_is_replaced_and_never_changed() -> None:
    machine = ready()
    after(machine, Call.BEGIN)
    assert machine == ready() == replace(machine)
