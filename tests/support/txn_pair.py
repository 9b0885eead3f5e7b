"""The client's state machine and the coordinator's in lockstep: no loop, no socket, answers may be lost."""

from tests.support.txn_words import TWO_PHASE, Txn, code

from tallystick.broker.txn.machine.commands import EndTxnResult, InitProducerIdResult
from tallystick.broker.txn.machine.model import TransactionResult, TxnConfig
from tallystick.client.errors import ClientError, ConnectionLost, build_broker_error
from tallystick.client.transactions.modes import (
    ACTION_BY_FINDING,
    DescriptionTime,
    Mode,
    TxnDecision,
    TxnDescription,
    TxnFinding,
    TxnRecoveryAction,
    classify_outcome,
)
from tallystick.client.transactions.prepared import PreparedTxnState
from tallystick.client.transactions.state import IllegalCall, State, TxnCall, TxnProducerState
from tallystick.kernel.codes import ErrorCode
from tallystick.kernel.errors import Remedy
from tallystick.kernel.ids import ProducerIdAndEpoch

OUTCOMES = {TxnDecision.COMMIT: TransactionResult.COMMIT, TxnDecision.ABORT: TransactionResult.ABORT}


def coordinator(client: ProducerIdAndEpoch | None = None, config: TxnConfig = TWO_PHASE) -> Txn:
    """Return an unused id, or one that InitProducerId has just answered with `client`."""
    spares = range(73, 200)
    return (
        Txn(config, spares=(42, *spares))
        if client is None
        else Txn.idle(client, config=config, spares=spares)
    )


def shown(txn: Txn) -> TxnDescription:
    """Return what DescribeTransactions reports."""
    entry = txn.entry
    forced = frozenset(each.writer for each in entry.forced_outcomes if each.partition is None)
    return TxnDescription(
        state=entry.state.label, identity=entry.described_identity, forced_identities=forced
    )


class PureClient:
    """One incarnation of a client in mode `2pc` or `keep`."""

    def __init__(self, txn: Txn, mode: Mode = Mode.TWO_PHASE) -> None:
        self.txn, self.mode = txn, mode
        self.machine = TxnProducerState()

    def call(self, call: TxnCall) -> TxnProducerState:
        result = self.machine.apply_call(call)
        assert isinstance(result, TxnProducerState), result
        self.machine = result
        return result

    def init(self, *, keep: bool) -> None:
        self.call(TxnCall.INIT)
        reply = self._init(keep=True)
        if reply.ongoing_identity is not None and not keep:
            reply = self._init(keep=False)
        self.machine = self.machine.apply_init(
            reply.client, kept_identity=reply.ongoing_identity, version=2, mode=self.mode, keep=keep
        )

    def _init(self, *, keep: bool) -> InitProducerIdResult:
        while True:
            reply = self.txn.init(keep=keep, two_phase=self.mode is Mode.TWO_PHASE)
            if isinstance(reply, InitProducerIdResult):
                return reply
            assert code(reply) is ErrorCode.CONCURRENT_TRANSACTIONS
            self.txn.world.write_markers(self.txn.id)

    def begin(self) -> None:
        self.call(TxnCall.BEGIN)

    def write(self) -> ErrorCode:
        """Write one record, with Produce 12."""
        self.call(TxnCall.SEND)
        self.machine = self.machine.mark_open()
        assert self.machine.client is not None
        found = code(self.txn.write(self.machine.client))
        if found is ErrorCode.CONCURRENT_TRANSACTIONS:
            self.txn.world.write_markers(self.txn.id)
            found = code(self.txn.write(self.machine.client))
        if found:
            self.machine = self.machine.apply_failure(
                "Produce", build_broker_error("Produce", "data-0", found)
            )
        return found

    def prepare(self) -> PreparedTxnState:
        self.call(TxnCall.PREPARE)
        self.machine = self.machine.mark_flushed()
        return self.machine.token

    def complete(self, token: PreparedTxnState, *, lost: str = "") -> TxnProducerState | IllegalCall:
        result = self.machine.complete(token)
        if isinstance(result, TxnProducerState):
            self.machine = result
            self.end(lost=lost)
        return result

    def end(self, *, lost: str = "") -> None:
        """Send the EndTxn that is due; `lost` is "request" or "answer" of the first attempt."""
        machine = self.machine
        if machine.state not in (State.COMMITTING, State.ABORTING):
            return
        if machine.due_end_txn is None:
            self.machine = machine.apply_end(None, version=2)
            return
        if lost == "answer":
            self._send_end()
        if lost:
            error = ConnectionLost("b", "EndTxn", "cut")
            self.machine = machine.apply_failure("EndTxn", error)
            assert self.machine.state is State.IN_DOUBT
            self.call(TxnCall.COMMIT if machine.decision is TxnDecision.COMMIT else TxnCall.ABORT)
        self._answer(self._send_end())

    def _send_end(self) -> EndTxnResult | ErrorCode:
        end = self.machine.due_end_txn
        assert end is not None
        while True:
            reply = self.txn.end(end.client, OUTCOMES[end.decision], end.version)
            if isinstance(reply, EndTxnResult):
                return reply
            if code(reply) is not ErrorCode.CONCURRENT_TRANSACTIONS:
                return code(reply)
            self.txn.world.write_markers(self.txn.id)

    def _answer(self, reply: EndTxnResult | ErrorCode) -> None:
        if isinstance(reply, EndTxnResult):
            self.machine = self.machine.apply_end(reply.client, version=2)
            return
        error: ClientError = build_broker_error("EndTxn", "t", reply)
        if error.remedy is Remedy.LOOK_UP:
            self.machine = self.machine.apply_outcome(self.look_up()[1], error)
        else:
            self.machine = self.machine.apply_failure("EndTxn", error)

    def look_up(self) -> tuple[TxnFinding, TxnRecoveryAction]:
        asked, wish = self.machine.txn_to_resolve, self.machine.decision
        assert asked is not None
        assert wish is not None
        finding = classify_outcome(asked, shown(self.txn))
        return finding, ACTION_BY_FINDING[finding, wish, DescriptionTime.AFTER]
