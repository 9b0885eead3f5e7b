"""Clients of one transactional id in any order, requests late, repeated, unanswered, against a naive model.

I1 to I6 are the model's laws, checked after every step:

    I1  a transaction is decided at most once, and its writer's pair names no other
    I2  the pair for what comes next is newer than every pair ever answered
    I3  markers carry the epoch after the writer's, on every partition
    I4  when a transaction is complete, no partition has it open
    I5  a pair older than the newest changes nothing
    I6  a transaction of two-phase commit ends by EndTxn, or by InitProducerId without keep
"""

from dataclasses import dataclass, field

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from tests.support.effort import examples
from tests.support.txn_words import MAX, T, ident, speaker

from harness.transactions import TxnMachineHarness, durable_view
from tallystick.broker.txn.codec import decode_batches
from tallystick.broker.txn.machine.commands import (
    AbortTimedOut,
    AddPartitions,
    AddPartitionsByLeader,
    EndTxn,
    EndTxnResult,
    EntryStored,
    InitProducerId,
    InitProducerIdResult,
    MarkersWritten,
    RecordForcedMarker,
    RemoveExpiredId,
    TxnAnswer,
    TxnCommand,
    TxnDone,
    VerifyPartitions,
    VerifyPartitionsResult,
)
from tallystick.broker.txn.machine.model import (
    DecidedPhase,
    IdlePhase,
    OngoingPhase,
    TransactionResult,
    TxnConfig,
    TxnEntry,
)
from tallystick.kernel.errors import Reject
from tallystick.kernel.ids import (
    Offset,
    ProducerIdAndEpoch,
    TopicPartition,
)
from tallystick.protocol.transaction_history import TransitionKind

TIMEOUT_MS = 50
LEADERS = tuple(TopicPartition("a", number) for number in range(3))
FATES = st.sampled_from(["reply"] * 5 + ["twice", "twice", "lost", "late"])


@dataclass(frozen=True)
class Request:
    """What one incarnation of a client sent; `txn` is the transaction it meant to end."""

    incarnation: int
    command: TxnCommand
    txn: int | None = None


@dataclass
class Client:
    """What one client knows."""

    incarnation: int = 0
    pair: ProducerIdAndEpoch | None = None
    txn: int | None = None
    in_doubt: bool = False

    def forget(self, incarnation: int) -> None:
        self.incarnation, self.pair, self.txn, self.in_doubt = incarnation, None, None, False


@dataclass
class Leader:
    """A partition, as naive as can be: who has a transaction open, and the last epoch of each producer."""

    open: ProducerIdAndEpoch | None = None
    epochs: dict[int, int] = field(default_factory=dict)

    def write(self, pair: ProducerIdAndEpoch) -> None:
        assert pair.epoch >= self.epochs.get(pair.producer_id, 0), "the leader has seen a later epoch"
        assert self.open in (None, pair), f"{pair} writes into the transaction of {self.open}"
        self.open, self.epochs[pair.producer_id] = pair, pair.epoch

    def mark(self, marker: ProducerIdAndEpoch, version: int) -> None:
        last = self.epochs.get(marker.producer_id, -1)
        if version >= 2:
            assert marker.epoch > last or (marker.epoch == last and (self.open is None or last == MAX))
        assert marker.epoch >= last
        if self.open is not None:
            assert self.open.producer_id == marker.producer_id
            self.open = None
        self.epochs[marker.producer_id] = marker.epoch


class TxnMachine(RuleBasedStateMachine):
    """Three clients that take one transactional id from each other; requests repeated, delayed,
    unanswered."""

    versions: tuple[int, ...] = (2,)

    def __init__(self) -> None:
        super().__init__()
        self.world = TxnMachineHarness(
            TxnConfig(transaction_two_phase_commit_enable=True, transactional_id_expiration_ms=5_000)
        )
        self.clients = [Client() for _ in range(3)]
        self.incarnations = 0
        self.leaders = {partition: Leader() for partition in LEADERS}
        self.network: list[Request] = []
        # The model: transactions by number, what was decided of each, and who was ever told which pair.
        self.txns = 0
        self.writers: dict[int, ProducerIdAndEpoch] = {}
        self.decided: dict[int, TransactionResult] = {}
        self.owners: dict[ProducerIdAndEpoch, int] = {}

    @initialize(epoch=st.sampled_from([0, MAX - 9, MAX - 4, MAX - 1]))
    def someone_was_here(self, epoch: int) -> None:
        entry = TxnEntry(
            transactional_id=T,
            phase=IdlePhase(),
            client=ident(42, epoch),
            previous_identity=None,
            timeout_ms=TIMEOUT_MS,
            transaction_version=2,
            updated_ms=self.world.now_ms(),
        )
        self.world.insert_entry(entry)
        self.owners[entry.client] = 0

    # ---- the network

    def send(self, client: Client, command: TxnCommand, fate: str) -> TxnAnswer | None:
        """The answer, if it comes."""
        request = Request(client.incarnation, command, client.txn)
        if fate != "reply" and fate != "lost":
            self.network.append(request)
        if fate == "late":
            return None
        answer = self.deliver(request)
        return None if fate == "lost" else answer

    def deliver(self, request: Request) -> TxnAnswer:
        before = self.world.entries.get(T)
        answer = self.world.run(T, request.command)
        self.compare(before, request.command)
        if isinstance(request.command, InitProducerId) and isinstance(answer, Reject):
            after = self.world.entries[T]
            if before is not None and before.client != after.client:
                # The pair that a fence makes is for whoever fences; not for whom it fences.
                self.owners[after.client] = request.incarnation
        self.told(request, answer)
        return answer

    def compare(self, before: TxnEntry | None, command: TxnCommand) -> None:
        """The laws, from one entry to the next."""
        after = self.world.entries.get(T)
        check_models_change(before, command, after)
        if after is None:
            return
        was_open = before is not None and isinstance(before.phase, OngoingPhase)
        if isinstance(after.phase, OngoingPhase) and not was_open:
            self.begun(after.phase.writer)
        if was_open and not isinstance(after.phase, OngoingPhase):
            assert before is not None
            self.ended(before, command, after)
        self.check_history(before, command, after)

    def check_history(self, before: TxnEntry | None, command: TxnCommand, after: TxnEntry) -> None:
        """[HIS-1] The last transition names what the command has done."""
        if before is None:
            return
        kinds = [each.kind for each in self.world.history.list_transitions(T)][-2:]
        was_open, is_open = (isinstance(each.phase, OngoingPhase) for each in (before, after))
        if was_open and not is_open:
            assert end_kind(command) in kinds
        elif is_open and not was_open:
            assert kinds[-1] is TransitionKind.BEGUN
        elif is_open and before.client != after.client:
            assert kinds[-1] is TransitionKind.KEPT
        elif isinstance(before.phase, DecidedPhase) and isinstance(after.phase, IdlePhase):
            assert kinds[-1] is TransitionKind.COMPLETED
        elif not was_open and before.client != after.client and isinstance(command, InitProducerId):
            assert kinds[-1] is TransitionKind.INITIALIZED
        elif before.forced_outcomes != after.forced_outcomes:
            assert kinds[-1] is TransitionKind.MARKER_FORCED

    def begun(self, writer: ProducerIdAndEpoch) -> None:
        if self.versions == (2,):
            assert writer not in self.writers.values(), "I1: a pair names two transactions"
        self.txns += 1
        self.writers[self.txns] = writer

    def ended(self, before: TxnEntry, command: TxnCommand, after: TxnEntry) -> None:
        assert self.txns not in self.decided, "I1: decided twice"
        self.decided[self.txns] = command.outcome if isinstance(command, EndTxn) else TransactionResult.ABORT
        if after.transaction_version == 2:
            assert all(after.client > told for told in self.owners), "I2: not the newest pair"
        if isinstance(after.phase, DecidedPhase):
            assert after.phase.outcome is self.decided[self.txns]
            writer = self.writers[self.txns]
            assert after.phase.marker_identity.producer_id == writer.producer_id
            moved = after.phase.marker_identity.epoch - writer.epoch
            may_stay = after.transaction_version < 2 and not (before.is_kept or before.is_two_phase)
            assert moved == 1 or (moved == 0 and may_stay), "I3"

    def told(self, request: Request, answer: TxnAnswer) -> None:
        """An answer is true, and no pair is given to two incarnations."""
        if isinstance(answer, InitProducerIdResult | EndTxnResult):
            owner = self.owners.setdefault(answer.client, request.incarnation)
            assert owner == request.incarnation, f"{answer.client} belongs to {owner}"
        command = request.command
        if isinstance(answer, EndTxnResult) and isinstance(command, EndTxn) and request.txn is not None:
            # Before version 2 a late repetition is answered by what came after (KAFKA-17754).
            ours = command.transaction_version < 2 or self.decided[request.txn] is command.outcome
            assert ours, "a decision that was not made"

    @precondition(lambda self: self.network)
    @rule(data=st.data(), again=st.booleans())
    def something_delayed_arrives(self, data: st.DataObject, again: bool) -> None:
        index = data.draw(st.integers(0, len(self.network) - 1))
        request = self.network[index] if again else self.network.pop(index)
        answer = self.deliver(request)
        if isinstance(answer, TxnDone) and isinstance(request.command, AddPartitionsByLeader):
            self.append(request.command.identity, request.command.partitions)

    # ---- clients

    @rule(
        who=st.integers(0, 2),
        fate=FATES,
        keep=st.booleans(),
        two_phase=st.booleans(),
        expected=st.booleans(),
    )
    def initialise(self, who: int, fate: str, keep: bool, two_phase: bool, expected: bool) -> None:
        """A new incarnation; or, with `expected_identity`, the owner asks for another epoch."""
        client = self.clients[who]
        if not expected:
            self.incarnations += 1
            client.forget(self.incarnations)
        elif client.pair is None:
            return
        command = InitProducerId(
            timeout_ms=TIMEOUT_MS, expected_identity=client.pair, enable_2pc=two_phase, keep_prepared=keep
        )
        answer = self.send(client, command, fate)
        if isinstance(answer, InitProducerIdResult):
            client.pair, client.in_doubt, client.txn = (
                answer.client,
                answer.ongoing_identity is not None,
                None,
            )
            if answer.ongoing_identity is not None:
                assert answer.ongoing_identity == self.writers[self.txns]
                client.txn = self.txns

    @rule(who=st.integers(0, 2), fate=FATES, partitions=st.frozensets(st.sampled_from(LEADERS), min_size=1))
    def write(self, who: int, fate: str, partitions: frozenset[TopicPartition]) -> None:
        """Even with a transaction in doubt, where no client should: it is refused, or the leaders will
        see."""
        client = self.clients[who]
        if client.pair is None:
            return
        answer = self.send(client, self.adding(client.pair, partitions), fate)
        if isinstance(answer, TxnDone):
            self.append(client.pair, partitions)
            client.txn = self.txns

    def adding(self, pair: ProducerIdAndEpoch, partitions: frozenset[TopicPartition]) -> TxnCommand:
        return AddPartitionsByLeader(identity=pair, partitions=partitions)

    def append(self, pair: ProducerIdAndEpoch, partitions: frozenset[TopicPartition]) -> None:
        for partition in partitions:
            self.leaders[partition].write(pair)

    @rule(who=st.integers(0, 2), fate=FATES, outcome=st.sampled_from(TransactionResult), newest=st.booleans())
    def end(self, who: int, fate: str, outcome: TransactionResult, newest: bool) -> None:
        client = self.clients[who]
        if client.pair is None:
            return
        version = self.versions[-1 if newest else 0]
        command = EndTxn(identity=client.pair, outcome=outcome, transaction_version=version)
        answer = self.send(client, command, fate)
        if isinstance(answer, EndTxnResult):
            client.pair, client.in_doubt, client.txn = answer.client, False, None

    @rule(
        who=st.integers(0, 2),
        two_phase=st.booleans(),
        crashes=st.integers(0, 3),
        outcome=st.sampled_from(TransactionResult),
        stop=st.integers(0, 3),
    )
    def behave(self, who: int, two_phase: bool, crashes: int, outcome: TransactionResult, stop: int) -> None:
        """A client does all of it, crashes included: this is how transactions come to their ends, or
        nearly."""
        client, newest = self.clients[who], stop > 0
        self.get_through(who, keep=crashes > 0, two_phase=two_phase)
        if client.in_doubt:
            self.end(who, "twice", outcome, newest)
            self.get_through(who, keep=False, two_phase=two_phase)
        for at in range(2):
            self.write(who, "twice", frozenset({LEADERS[at]}))
        for _ in range(crashes):
            self.initialise(who, "twice", True, two_phase, False)
        if stop > 1:
            self.end(who, "twice", outcome, newest)
        if stop > 2:
            self.markers_are_written(3)

    @rule(who=st.integers(0, 2), outcome=st.sampled_from(TransactionResult), newest=st.booleans())
    def change_its_mind(self, who: int, outcome: TransactionResult, newest: bool) -> None:
        """Unheard, a client asks for the other outcome."""
        self.end(who, "lost", outcome, newest)
        self.markers_are_written(3)
        other = TransactionResult.ABORT if outcome is TransactionResult.COMMIT else TransactionResult.COMMIT
        self.end(who, "lost", other, newest)

    def get_through(self, who: int, keep: bool, two_phase: bool) -> None:
        """No state keeps a client out for ever: markers, and asking again, are enough.

        A transaction of an older version cannot be kept; who finds one must do without.
        """
        for attempt in range(4):
            self.initialise(who, "reply", keep and attempt < 2, two_phase, False)
            if self.clients[who].pair is not None:
                return
            self.markers_are_written(3)
        raise AssertionError("nobody gets through")

    # ---- everything else

    def command(self, command: TxnCommand) -> None:
        self.deliver(Request(-1, command))

    @rule(count=st.integers(1, 3))
    def markers_are_written(self, count: int) -> None:
        send = self.world.pending_markers.get(T)
        entry = self.world.entries.get(T)
        if send is None or entry is None or not isinstance(entry.phase, DecidedPhase):
            return
        reached = sorted(entry.phase.unmarked_partitions)[:count]
        for partition in reached:
            self.leaders[partition].mark(send.marker_identity, send.transaction_version)
        self.command(
            MarkersWritten(marker_identity=send.marker_identity, offsets=dict.fromkeys(reached, Offset(1)))
        )

    @rule(marker=st.sampled_from([ident(42, 3), ident(42, MAX), ident(1_000, 0)]))
    def a_stale_report_arrives(self, marker: ProducerIdAndEpoch) -> None:
        entry = self.world.entries.get(T)
        if entry is not None and entry.described_identity != marker:
            self.command(MarkersWritten(marker_identity=marker, offsets=dict.fromkeys(LEADERS, Offset(1))))

    @rule(partition=st.sampled_from(LEADERS))
    def an_administrator_aborts(self, partition: TopicPartition) -> None:
        leader = self.leaders[partition]
        if leader.open is not None:
            writer, leader.open = leader.open, None
            self.command(RecordForcedMarker(writer=writer, partition=partition))

    @rule(by_ms=st.sampled_from([1, TIMEOUT_MS + 1, 6_000]))
    def time_passes(self, by_ms: int) -> None:
        self.world.elapsed_ms += by_ms
        self.command(AbortTimedOut())
        self.command(RemoveExpiredId())

    @rule(lose=st.booleans())
    def restart(self, lose: bool) -> None:
        """A record that nobody had to wait for may be lost with the power: the last one, if it says
        Complete."""
        last = list(decode_batches(self.world.log[-1])) if self.world.log else []
        if lose and len(last) == 1 and isinstance(last[0], EntryStored):
            phase = last[0].entry.phase
            if isinstance(phase, IdlePhase) and phase.outcome is not None and self.was_decided():
                self.world.log.pop()
        self.world.restart()

    def was_decided(self) -> bool:
        world = TxnMachineHarness(self.world.config)
        world.log = self.world.log[:-1]
        entry = world.replay_entries().get(T)
        return entry is not None and isinstance(entry.phase, DecidedPhase)

    @rule()
    def a_client_gets_through(self) -> None:
        """And what it then does is done."""
        client = self.clients[0]
        self.get_through(0, keep=False, two_phase=False)
        self.write(0, "reply", frozenset(LEADERS[:1]))
        assert client.txn == self.txns
        self.end(0, "reply", TransactionResult.COMMIT, True)
        assert self.decided[self.txns] is TransactionResult.COMMIT

    # ---- the laws that need no history

    @invariant()
    def replay_equals_live(self) -> None:
        """[TXN-2]"""
        live = {name: durable_view(entry) for name, entry in self.world.entries.items()}
        assert self.world.replay_entries() == live

    @invariant()
    def the_log_tells_the_same_history(self) -> None:
        """[HIS-1] What is noted live is what a reader of the log sees, apart from who asked."""
        live = self.world.history.list_transitions(T)
        assert live == self.world.replay_history().list_transitions(T)
        assert [each.at_ms for each in live] == sorted(each.at_ms for each in live)

    @invariant()
    def leaders_agree(self) -> None:
        """[TXN-9] I4, and before it: what is open in a partition is the open transaction."""
        entry = self.world.entries.get(T)
        opened = {partition: leader.open for partition, leader in self.leaders.items() if leader.open}
        phase = entry and entry.phase
        if entry is None or isinstance(phase, IdlePhase):
            assert not opened, "I4: complete, and still open in a partition"
        elif isinstance(phase, OngoingPhase):
            assert opened.keys() <= phase.partitions
            assert set(opened.values()) <= {phase.writer}
        elif isinstance(phase, DecidedPhase):
            assert opened.keys() <= phase.unmarked_partitions

    @invariant()
    def markers_of_one_transaction_agree(self) -> None:
        """[TXN-6] Whatever was sent, and sent again, says the same."""
        said = {send.marker_identity: send.outcome for send in self.world.sent_markers}
        if self.versions == (2,):
            assert all(said[send.marker_identity] is send.outcome for send in self.world.sent_markers)


def end_kind(command: TxnCommand) -> TransitionKind:
    match command:
        case EndTxn(outcome=TransactionResult.COMMIT):
            return TransitionKind.COMMITTED
        case AbortTimedOut():
            return TransitionKind.TIMED_OUT
        case InitProducerId():
            return TransitionKind.TERMINATED
        case _:
            return TransitionKind.ABORTED


def check_models_change(before: TxnEntry | None, command: TxnCommand, after: TxnEntry | None) -> None:
    """[TXN-7] [TXN-8] I5 and I6."""
    if before is None or after is None:
        return
    pair = speaker(command)
    if pair is not None and pair != before.client:
        assert after == before, "I5: an old pair changed something"
    if before.is_two_phase and not isinstance(after.phase, OngoingPhase):
        asked = isinstance(command, InitProducerId) and not command.keep_prepared
        assert asked or isinstance(command, EndTxn), "I6"
    if before.is_two_phase and isinstance(after.phase, OngoingPhase):
        assert after.is_two_phase, "I6: a promise was taken back"


class MixedTxnMachine(TxnMachine):
    """Among them clients of versions 0 and 1, whose pair stays when a transaction ends."""

    versions = (0, 2)

    def __init__(self) -> None:
        super().__init__()
        self.adds = 0

    def adding(self, pair: ProducerIdAndEpoch, partitions: frozenset[TopicPartition]) -> TxnCommand:
        self.adds += 1
        if self.adds % 2:
            return super().adding(pair, partitions)
        return AddPartitions(identity=pair, partitions=partitions, transaction_version=0)

    @rule(who=st.integers(0, 2), partition=st.sampled_from(LEADERS))
    def verify(self, who: int, partition: TopicPartition) -> None:
        """An older client's first batch: the leader opens the transaction where the coordinator agrees."""
        client = self.clients[who]
        if client.pair is None:
            return
        ask = VerifyPartitions(identity=client.pair, partitions=frozenset({partition}))
        answer = self.send(client, ask, "reply")
        if isinstance(answer, VerifyPartitionsResult) and not answer.errors:
            self.append(client.pair, frozenset({partition}))


def test_a_former_pair_does_not_lift_a_timeout() -> None:
    """[TXN-8] The owner keeps its transaction, unanswered, and under the same pair asks for two-phase commit:
    found by the machine below, with seeds of its own choice."""
    machine = MixedTxnMachine()
    machine.someone_was_here(epoch=0)
    for fate, markers in (("reply", 2), ("twice", 3)):
        machine.initialise(who=0, fate=fate, keep=False, two_phase=False, expected=False)
        machine.markers_are_written(markers)
    machine.write(who=0, fate="reply", partitions=frozenset(LEADERS[:1]))
    machine.initialise(who=0, fate="lost", keep=True, two_phase=False, expected=True)
    machine.initialise(who=0, fate="reply", keep=True, two_phase=True, expected=True)
    entry = machine.world.entries[T]
    assert (entry.is_kept, entry.is_two_phase, entry.timeout_ms) == (True, False, TIMEOUT_MS)
    machine.teardown()


RUN = settings(
    max_examples=examples(quick=25, gate=60, full=500),
    stateful_step_count=40,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
)
TxnMachine.TestCase.settings = RUN
MixedTxnMachine.TestCase.settings = RUN
TestTxnMachine = TxnMachine.TestCase
TestMixedTxnMachine = MixedTxnMachine.TestCase
