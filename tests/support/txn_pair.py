"""The client's state machine and the coordinator's in lockstep: no loop, no socket, answers may be lost."""

from txn_words import TWO_PHASE, Txn, code

from tallystick.broker.txn.machine.commands import Ended, Initialised
from tallystick.broker.txn.machine.model import Outcome, TxnConfig
from tallystick.client.errors import ClientError, ConnectionLost, refused
from tallystick.client.transactions.modes import VERDICTS, Finding, Mode, Seen, Verdict, When, Wish, compare
from tallystick.client.transactions.prepared import PreparedTxnState
from tallystick.client.transactions.state import Call, Refused, State, TxnProducer
from tallystick.kernel.codes import ErrorCode
from tallystick.kernel.errors import Remedy
from tallystick.kernel.ids import Identity

OUTCOMES = {Wish.COMMIT: Outcome.COMMIT, Wish.ABORT: Outcome.ABORT}


def coordinator(client: Identity | None = None, config: TxnConfig = TWO_PHASE) -> Txn:
    """Return an unused id, or one that InitProducerId has just answered with `client`."""
    spares = range(73, 200)
    return (
        Txn(config, spares=(42, *spares))
        if client is None
        else Txn.idle(client, config=config, spares=spares)
    )


def shown(txn: Txn) -> Seen:
    """Return what DescribeTransactions reports."""
    entry = txn.entry
    forced = frozenset(each.writer for each in entry.forced if each.partition is None)
    return Seen(state=entry.state.label, identity=entry.shown, forced=forced)


class PureClient:
    """One incarnation of a client in mode `2pc` or `keep`."""

    def __init__(self, txn: Txn, mode: Mode = Mode.TWO_PHASE) -> None:
        self.txn, self.mode = txn, mode
        self.machine = TxnProducer()

    def call(self, call: Call) -> TxnProducer:
        result = self.machine.call(call)
        assert isinstance(result, TxnProducer), result
        self.machine = result
        return result

    def init(self, *, keep: bool) -> None:
        self.call(Call.INIT)
        reply = self._init(keep=True)
        if reply.ongoing is not None and not keep:
            reply = self._init(keep=False)
        self.machine = self.machine.initialised(
            reply.client, kept=reply.ongoing, version=2, mode=self.mode, keep=keep
        )

    def _init(self, *, keep: bool) -> Initialised:
        while True:
            reply = self.txn.init(keep=keep, two_phase=self.mode is Mode.TWO_PHASE)
            if isinstance(reply, Initialised):
                return reply
            assert code(reply) is ErrorCode.CONCURRENT_TRANSACTIONS
            self.txn.world.write_markers(self.txn.id)

    def begin(self) -> None:
        self.call(Call.BEGIN)

    def write(self) -> ErrorCode:
        """Write one record, with Produce 12."""
        self.call(Call.SEND)
        self.machine = self.machine.opened()
        assert self.machine.client is not None
        found = code(self.txn.write(self.machine.client))
        if found is ErrorCode.CONCURRENT_TRANSACTIONS:
            self.txn.world.write_markers(self.txn.id)
            found = code(self.txn.write(self.machine.client))
        if found:
            self.machine = self.machine.failed("Produce", refused("Produce", "data-0", found))
        return found

    def prepare(self) -> PreparedTxnState:
        self.call(Call.PREPARE)
        self.machine = self.machine.flushed()
        return self.machine.token

    def complete(self, token: PreparedTxnState, *, lost: str = "") -> TxnProducer | Refused:
        result = self.machine.complete(token)
        if isinstance(result, TxnProducer):
            self.machine = result
            self.end(lost=lost)
        return result

    def end(self, *, lost: str = "") -> None:
        """Send the EndTxn that is due; `lost` is "request" or "answer" of the first attempt."""
        machine = self.machine
        if machine.state not in (State.COMMITTING, State.ABORTING):
            return
        if machine.due is None:
            self.machine = machine.ended(None, version=2)
            return
        if lost == "answer":
            self._send_end()
        if lost:
            error = ConnectionLost("b", "EndTxn", "cut")
            self.machine = machine.failed("EndTxn", error)
            assert self.machine.state is State.IN_DOUBT
            self.call(Call.COMMIT if machine.decided is Wish.COMMIT else Call.ABORT)
        self._answer(self._send_end())

    def _send_end(self) -> Ended | ErrorCode:
        end = self.machine.due
        assert end is not None
        while True:
            reply = self.txn.end(end.client, OUTCOMES[end.wish], end.version)
            if isinstance(reply, Ended):
                return reply
            if code(reply) is not ErrorCode.CONCURRENT_TRANSACTIONS:
                return code(reply)
            self.txn.world.write_markers(self.txn.id)

    def _answer(self, reply: Ended | ErrorCode) -> None:
        if isinstance(reply, Ended):
            self.machine = self.machine.ended(reply.client, version=2)
            return
        error: ClientError = refused("EndTxn", "t", reply)
        if error.remedy is Remedy.LOOK_UP:
            self.machine = self.machine.found(self.look_up()[1], error)
        else:
            self.machine = self.machine.failed("EndTxn", error)

    def look_up(self) -> tuple[Finding, Verdict]:
        asked, wish = self.machine.asked, self.machine.decided
        assert asked is not None
        assert wish is not None
        finding = compare(asked, shown(self.txn))
        return finding, VERDICTS[finding, wish, When.AFTER]
