"""One transactional id in a TxnWorld, in the terms of the KIPs."""

from collections.abc import Iterable

from harness.transactions import TxnMachineHarness
from tallystick.broker.txn.machine.commands import (
    AbortTimedOut,
    AddPartitions,
    AddPartitionsByLeader,
    EndTxn,
    InitProducerId,
    TxnAnswer,
    TxnCommand,
    VerifyPartitions,
    VerifyPartitionsResult,
)
from tallystick.broker.txn.machine.model import (
    DecidedPhase,
    IdlePhase,
    OngoingPhase,
    Partitions,
    TransactionResult,
    TxnConfig,
    TxnEntry,
    TxnState,
)
from tallystick.kernel.codes import ErrorCode
from tallystick.kernel.errors import Reject
from tallystick.kernel.ids import (
    INT16_MAX,
    ProducerEpoch,
    ProducerId,
    ProducerIdAndEpoch,
    TopicPartition,
    TransactionalId,
)
from tallystick.kernel.value import replace
from tallystick.protocol import decode_prefix
from tallystick.protocol.messages.txn.stored_transactions import TransactionLogValue
from tallystick.protocol.records import decode_records

MAX = INT16_MAX
T = TransactionalId("t")
P0, P1, P2 = (TopicPartition("orders", number) for number in range(3))
TIMEOUT_MS = 60_000
STATES = ("Empty", "Ongoing", "PrepareCommit", "PrepareAbort", "CompleteCommit", "CompleteAbort")
IDLE_STATES = ("Empty", "CompleteCommit", "CompleteAbort")
DECIDED_STATES = ("PrepareCommit", "PrepareAbort")
TWO_PHASE = TxnConfig(transaction_two_phase_commit_enable=True)


def ident(producer_id: int, epoch: int) -> ProducerIdAndEpoch:
    return ProducerIdAndEpoch(ProducerId(producer_id), ProducerEpoch(epoch))


def code(answer: TxnAnswer | None) -> ErrorCode:
    """Return NONE, the code of a refusal, or the one code all partitions were refused with."""
    match answer:
        case Reject(code=refused):
            return refused
        case VerifyPartitionsResult(errors=refused_each) if refused_each:
            (only,) = set(refused_each.values())
            return only
        case _:
            return ErrorCode.NONE


class Txn:
    """The requests of clients, partition leaders and operators for one id, and the id's state.

    Every request goes through `ask`, which appends the answer to `answers`.
    """

    def __init__(
        self,
        config: TxnConfig = TWO_PHASE,
        *,
        spares: Iterable[int] | None = None,
        world: TxnMachineHarness | None = None,
        transactional_id: TransactionalId = T,
    ) -> None:
        self.world = world or TxnMachineHarness(config, spares)
        self.id = transactional_id
        self.answers: list[TxnAnswer] = []

    @classmethod
    def idle(
        cls, client: ProducerIdAndEpoch, *, config: TxnConfig = TWO_PHASE, spares: Iterable[int] = (85,)
    ) -> "Txn":
        """Return an id that InitProducerId has just answered with `client`."""
        txn = cls(config, spares=spares)
        txn.world.insert_entry(
            TxnEntry(
                transactional_id=T,
                phase=IdlePhase(),
                client=client,
                previous_identity=None,
                timeout_ms=TIMEOUT_MS,
                transaction_version=config.transaction_version,
                updated_ms=txn.world.now_ms(),
            )
        )
        return txn

    @classmethod
    def kept(
        cls,
        writer: ProducerIdAndEpoch,
        client: ProducerIdAndEpoch,
        *,
        config: TxnConfig = TWO_PHASE,
        spares: Iterable[int] = (85,),
    ) -> "Txn":
        """Return a transaction that `writer` left open and `client` holds now."""
        txn = cls.idle(writer, config=config, spares=spares)
        txn.add(writer)
        txn.world.insert_entry(replace(txn.entry, client=client, previous_identity=None))
        return txn

    @classmethod
    def in_state(cls, state: str, *, config: TxnConfig = TWO_PHASE, version: int = 2) -> "Txn":
        """Return an id that producer 42, epoch 10, brought to a state by requests of `version`.

        Under version 2 the end of a transaction moves it to epoch 11.
        """
        txn = cls.idle(ident(42, 10), config=config)
        if state == "Empty":
            return txn
        txn.add(ident(42, 10), P0, P1, version=version)
        if state != "Ongoing":
            txn.end(
                ident(42, 10),
                TransactionResult.COMMIT if "Commit" in state else TransactionResult.ABORT,
                version,
            )
        if state.startswith("Complete"):
            txn.complete()
        assert txn.state == state
        return txn

    # ---- requests

    def ask(self, command: TxnCommand) -> TxnAnswer:
        answer = self.world.run(self.id, command)
        self.answers.append(answer)
        return answer

    def init(
        self,
        *,
        keep: bool = False,
        two_phase: bool = False,
        expected: ProducerIdAndEpoch | None = None,
        timeout_ms: int = TIMEOUT_MS,
    ) -> TxnAnswer:
        return self.ask(
            InitProducerId(
                timeout_ms=timeout_ms, expected_identity=expected, enable_2pc=two_phase, keep_prepared=keep
            )
        )

    def add(self, identity: ProducerIdAndEpoch, *partitions: TopicPartition, version: int = 2) -> TxnAnswer:
        """Send AddPartitionsToTxn as the client does: up to version 3 of the request `version` is 0."""
        return self.ask(
            AddPartitions(
                identity=identity, partitions=frozenset(partitions or (P0,)), transaction_version=version
            )
        )

    def write(self, identity: ProducerIdAndEpoch, *partitions: TopicPartition) -> TxnAnswer:
        """Add partitions as their leader does at a transaction's first batch, with Produce 12 or later."""
        return self.ask(AddPartitionsByLeader(identity=identity, partitions=frozenset(partitions or (P0,))))

    def verify(self, identity: ProducerIdAndEpoch, *partitions: TopicPartition) -> TxnAnswer:
        return self.ask(VerifyPartitions(identity=identity, partitions=frozenset(partitions or (P0,))))

    def end(self, identity: ProducerIdAndEpoch, outcome: TransactionResult, version: int = 2) -> TxnAnswer:
        return self.ask(EndTxn(identity=identity, outcome=outcome, transaction_version=version))

    def commit(self, identity: ProducerIdAndEpoch, version: int = 2) -> TxnAnswer:
        return self.end(identity, TransactionResult.COMMIT, version)

    def abort(self, identity: ProducerIdAndEpoch, version: int = 2) -> TxnAnswer:
        return self.end(identity, TransactionResult.ABORT, version)

    def time_out(self) -> TxnAnswer:
        return self.ask(AbortTimedOut())

    def complete(self) -> None:
        """Write the markers of every partition."""
        self.world.write_markers(self.id)
        assert isinstance(self.entry.phase, IdlePhase)

    # ---- its state

    @property
    def entry(self) -> TxnEntry:
        return self.world.entries[self.id]

    @property
    def state(self) -> str:
        return self.entry.state.label

    @property
    def client(self) -> ProducerIdAndEpoch:
        return self.entry.client

    @property
    def writer(self) -> ProducerIdAndEpoch:
        assert isinstance(self.entry.phase, OngoingPhase)
        return self.entry.phase.writer

    @property
    def marker(self) -> ProducerIdAndEpoch:
        assert isinstance(self.entry.phase, DecidedPhase)
        return self.entry.phase.marker_identity

    @property
    def partitions(self) -> Partitions:
        assert isinstance(self.entry.phase, OngoingPhase | DecidedPhase)
        return self.entry.phase.partitions


def tc_state(txn: Txn) -> tuple[str, int, int, int, int, int]:
    """Return the "TC STATE" of KIP-939 from the last record of the log.

    State, ProducerId, ProducerEpoch, PrevProducerId, NextProducerId, NextProducerEpoch.
    """
    value = last_value(txn.world)
    return (
        TxnState(value.transaction_status).label,
        value.producer_id,
        value.producer_epoch,
        value.previous_producer_id,
        value.next_producer_id,
        value.next_producer_epoch,
    )


def last_value(world: TxnMachineHarness) -> TransactionLogValue:
    """Return the log's last value: the schema version and Kafka's fields, read without our codec."""
    *_, record = decode_records(world.log[-1], 0)
    assert record.value is not None
    return decode_prefix(TransactionLogValue, record.value, int.from_bytes(record.value[:2], "big"), 2)[0]


def unchanged(txn: Txn, before: TxnEntry, records: int) -> bool:
    """Return whether neither the entry nor the log has changed."""
    return txn.entry == before and len(txn.world.log) == records


def speaker(command: TxnCommand) -> ProducerIdAndEpoch | None:
    match command:
        case EndTxn(identity=pair) | AddPartitions(identity=pair) | AddPartitionsByLeader(identity=pair):
            return pair
        case InitProducerId(expected_identity=pair):
            return pair
        case _:
            return None
