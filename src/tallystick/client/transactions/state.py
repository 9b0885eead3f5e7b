"""State machine of a transactional producer: which call is legal when, and what each answer does. Pure.

    UNINITIALIZED --init--> INITIALIZING --> READY --begin--> IN_TRANSACTION --prepare--> PREPARING
                                 |             ^                    |                          |
                      kept, or   |    CLAIMING |      commit, abort |                       PREPARED
                      described  v      ^      |                    v                          |
                        PREPARED or UNCLAIMED  +------ COMMITTING or ABORTING <----------------+
                                        ^------------------+             commit, abort, complete

`CALLS` has every legal call and the state it leads to; any other call raises and sends nothing [CLI-42].
`failed` and `ended` apply answers. `client.retry` alone decides what an error code means; this module turns
that into the fate of the transaction.

Three facts deliberately have no flag of their own, because such flags went wrong in other clients:

- There is something to end if there is a `writer`: the producer id and epoch that signed it. The first
  partition or offset sets it, and so does recovery; without one nothing is sent, and the token is
  empty [CLI-43].
- A token is made of the `writer`, a request is signed by the `client`; they differ when a transaction was
  kept (KIP-939). Nothing else compares or signs [CLI-44].
- The state UNCLAIMED means that an id must be initialised before the next transaction. No call leads to it
  from PREPARED: an epoch is never bumped while a transaction is prepared [CLI-45].

A decision whose answer is lost is IN_DOUBT. Then only the same decision is legal, and once the effect of one
attempt is unknown, no later answer makes it "nothing happened" [CLI-46].

Sources: KIP-98; KIP-360 (epoch bump after an abort); KIP-890 (version 2, and KAFKA-18227, a version that
changes); KIP-939 "KafkaProducer API Changes"; Kafka 4.3 TransactionManager (KAFKA-18401, 19176, 19250).
"""

from enum import Enum, auto
from types import MappingProxyType
from typing import Final

from tallystick.client.errors import ClientError, Fenced, IdExpired
from tallystick.client.transactions.modes import EPOCH_BUMP_VERSION, Asked, Mode, Verdict, Wish
from tallystick.client.transactions.prepared import PreparedTxnState
from tallystick.kernel.check import check
from tallystick.kernel.errors import Effect, Remedy
from tallystick.kernel.ids import Identity
from tallystick.kernel.value import frozen, replace


class State(Enum):
    """State of a transactional producer."""

    UNINITIALIZED = auto()
    INITIALIZING = auto()
    CLAIMING = auto()  # INITIALIZING again, on the producer's own initiative
    UNCLAIMED = auto()  # nothing is open; InitProducerId has to precede the next transaction
    READY = auto()
    IN_TRANSACTION = auto()
    PREPARING = auto()  # everything sent is being flushed
    PREPARED = auto()  # in doubt until it is decided
    COMMITTING = auto()
    ABORTING = auto()
    ABORTABLE_ERROR = auto()  # this transaction failed
    IN_DOUBT = auto()  # a decision was sent, and its outcome is unknown
    FATAL = auto()  # this producer failed


class Call(Enum):
    """Calls of the user; `begin_transaction()` makes `CLAIM` first where the id must be initialised."""

    INIT = "init_transactions"
    CLAIM = "begin_transaction (initialising first)"
    BEGIN = "begin_transaction"
    SEND = "send"
    SEND_OFFSETS = "send_offsets_to_transaction"
    PREPARE = "prepare_transaction"
    COMMIT = "commit_transaction"
    ABORT = "abort_transaction"


S = State
CALLS: Final = MappingProxyType(
    {
        (Call.INIT, S.UNINITIALIZED): S.INITIALIZING,
        (Call.CLAIM, S.UNCLAIMED): S.CLAIMING,
        (Call.BEGIN, S.READY): S.IN_TRANSACTION,
        (Call.SEND, S.IN_TRANSACTION): S.IN_TRANSACTION,
        (Call.SEND_OFFSETS, S.IN_TRANSACTION): S.IN_TRANSACTION,
        (Call.PREPARE, S.IN_TRANSACTION): S.PREPARING,
        (Call.COMMIT, S.IN_TRANSACTION): S.COMMITTING,
        (Call.COMMIT, S.PREPARED): S.COMMITTING,
        (Call.COMMIT, S.IN_DOUBT): S.COMMITTING,  # if that is what was decided
        (Call.ABORT, S.IN_TRANSACTION): S.ABORTING,
        (Call.ABORT, S.PREPARED): S.ABORTING,
        (Call.ABORT, S.ABORTABLE_ERROR): S.ABORTING,
        (Call.ABORT, S.IN_DOUBT): S.ABORTING,  # if that is what was decided
    }
)
_WISHES: Final = {Call.COMMIT: Wish.COMMIT, Call.ABORT: Wish.ABORT}
_DECIDING: Final = frozenset({S.COMMITTING, S.ABORTING})
_STARTING: Final = frozenset({S.INITIALIZING, S.CLAIMING})
_OPEN: Final = frozenset({S.IN_TRANSACTION, S.PREPARING, S.COMMITTING, S.ABORTABLE_ERROR})


@frozen
class Refused:
    """The call is not legal in this state, and nothing was sent.

    broken      the earlier failure behind it, if there was one
    must_abort  the transaction can only be aborted
    txn_state   Kafka returns INVALID_TXN_STATE here
    """

    reason: str
    broken: ClientError | None = None
    must_abort: bool = False
    txn_state: bool = False


@frozen(kw_only=True)
class End:
    """The EndTxn that is due: who signs it, and the transaction version it was started with [CLI-44]."""

    client: Identity
    wish: Wish
    version: int


@frozen(kw_only=True)
class TxnProducer:
    """Immutable state of one producer. Methods return the next state, or a `Refused`.

    mode         mechanism that holds a prepared transaction; None: nothing may be prepared
    version      transaction version of the open transaction, else of the next one
    client       producer id and epoch that sign requests; None before the first init
    writer       producer id and epoch that signed the open transaction; None: none is open [CLI-43]
    recovered    the open transaction was written by an earlier client of the id
    completable  init_transactions(True) or prepare_transaction() came after the last begin_transaction()
    stale        the epoch must move before the next transaction, and the end will not move it
    decided      the end that was asked for; `decided_in` is the state it was asked in
    unsure       an attempt at that end may have had an effect [CLI-46]
    error        the reason for ABORTABLE_ERROR or FATAL
    """

    state: State = State.UNINITIALIZED
    mode: Mode | None = None
    version: int = 0
    client: Identity | None = None
    writer: Identity | None = None
    recovered: bool = False
    completable: bool = False
    stale: bool = False
    decided: Wish | None = None
    decided_in: State = State.UNINITIALIZED
    unsure: bool = False
    error: ClientError | None = None

    # ---- calls

    def call(self, call: Call) -> "TxnProducer | Refused":
        """Return the producer after `call`, or a `Refused` if the call is not legal [CLI-42]."""
        to = CALLS.get((call, self.state))
        if to is None:
            return self._refusal(call.value)
        if call is Call.PREPARE and self.mode is None:
            # KIP-939: "If the 2PC is not enabled, we return the INVALID_TXN_STATE error."
            return Refused(
                "prepare_transaction: no way to keep a prepared transaction is configured; set "
                "transaction.two.phase.commit.enable or tallystick.modes",
                txn_state=True,
            )
        if call in _WISHES:
            return self._decide(_WISHES[call], to)
        if call is Call.BEGIN:
            return replace(self, state=to, completable=False)
        return self if to is self.state else replace(self, state=to)

    def complete(self, token: PreparedTxnState) -> "TxnProducer | Refused":
        """Commit the prepared transaction if `token` names it, else abort it.

        With nothing in doubt the producer stays as it is: `modes.VERDICTS` then says what became of the
        transaction that `token` names. Refused unless a prepared state was asked for since the last begin.

        Source: KIP-939: "compare the currently prepared transaction state and the state passed in the
            argument and either commit or abort"; "If the producer is not in prepared state (i.e. neither
            prepareTransaction was called nor initTransaction(true) was called) we return an
            INVALID_TXN_STATE error"; "In this case calling .completeTransaction would be a no-op."
        """
        wish = Wish.COMMIT if token == self.token else Wish.ABORT
        match self.state:
            case State.PREPARED | State.IN_DOUBT if self.completable:
                return self._decide(wish, S.COMMITTING if wish is Wish.COMMIT else S.ABORTING)
            case State.READY | State.UNCLAIMED if self.completable:
                return self
            case State.READY | State.UNCLAIMED | State.IN_TRANSACTION:
                return Refused(
                    "complete_transaction: neither prepare_transaction() nor init_transactions(True) came "
                    f"before it; the producer is {self.state.name}",
                    txn_state=True,
                )
            case _:
                return self._refusal("complete_transaction")

    def _decide(self, wish: Wish, to: State) -> "TxnProducer | Refused":
        if self.state is S.IN_DOUBT:
            if wish is not self.decided:
                was = "none" if self.decided is None else self.decided.name.lower()
                return Refused(f"{wish.name.lower()}: {was} was sent and may have happened; only that again")
            return replace(self, state=to)
        return replace(self, state=to, decided=wish, decided_in=self.state, unsure=False)

    def _refusal(self, name: str) -> Refused:
        if self.state is S.FATAL:
            return Refused(f"{name}: this producer failed: {self.error}", self.error)
        if self.state is S.ABORTABLE_ERROR:
            return Refused(
                f"{name}: the transaction failed, abort it: {self.error}", self.error, must_abort=True
            )
        legal = [call.value for call, state in CALLS if state is self.state] or ["to wait for the answer"]
        return Refused(f"{name}: the producer is {self.state.name}; legal are {', '.join(legal)}")

    # ---- the open transaction

    @property
    def token(self) -> PreparedTxnState:
        """Name of the open transaction; empty when none is open [CLI-43, CLI-44]."""
        return PreparedTxnState.of(self.writer)

    @property
    def due(self) -> End | None:
        """The EndTxn to send; None when there is nothing to end, or nothing is decided.

        Source: KAFKA-18401, no EndTxn for an empty transaction; KIP-939, signed by the latest client.
        """
        if self.state not in _DECIDING or self.writer is None:
            return None
        check(self.client is not None and self.decided is not None, "a decision without a pair")
        assert self.client is not None
        assert self.decided is not None
        return End(client=self.client, wish=self.decided, version=self.version)

    @property
    def asked(self) -> Asked | None:
        """The open transaction, for `modes.compare`."""
        if self.writer is None or self.client is None:
            return None
        return Asked(writer=self.writer, client=self.client, version=self.version)

    def opened(self) -> "TxnProducer":
        """Note that part of this transaction is in flight: from now on there is something to end."""
        check(self.state in _OPEN or self.state is S.ABORTING, f"opened while {self.state.name}")
        return self if self.writer is not None else replace(self, writer=self.client)

    def flushed(self) -> "TxnProducer":
        """Note that every record and offset is acknowledged; failures were reported before."""
        return replace(self, state=S.PREPARED, completable=True) if self.state is S.PREPARING else self

    # ---- answers

    def initialised(
        self, client: Identity, *, kept: Identity | None = None, version: int, mode: Mode | None, keep: bool
    ) -> "TxnProducer":
        """Apply the answer to InitProducerId: `client` signs from now on, and `kept`, if any, is in doubt.

        Source: KIP-939 "RPC Changes": without an ongoing transaction `.completeTransaction` is a no-op.
        """
        check(self.state in _STARTING, f"initialised while {self.state.name}")
        return TxnProducer(
            state=S.READY if kept is None else S.PREPARED,
            mode=mode,
            version=version,
            client=client,
            writer=kept,
            recovered=kept is not None,
            completable=keep,
        )

    def described(self, found: Identity | None, *, version: int) -> "TxnProducer":
        """Apply a description in mode `resume`, without init: `found`, if any, is open and in doubt."""
        check(self.state in _STARTING, f"described while {self.state.name}")
        return TxnProducer(
            state=S.UNCLAIMED if found is None else S.PREPARED,
            mode=Mode.RESUME,
            version=version,
            client=found,
            writer=found,
            recovered=found is not None,
            completable=True,
        )

    def ended(self, client: Identity | None, *, version: int) -> "TxnProducer":
        """Note that the decision was carried out, or that there was nothing to end.

        Args:
            client: the next producer id and epoch, from EndTxn version 5 on.
            version: finalized `transaction.version` now. A transaction is ended as it was started; when the
                version has changed, the id is initialised before the next one (KAFKA-18227).
        """
        check(self.state in _DECIDING, f"ended while {self.state.name}")
        moved = client is not None and client != self.client
        # Under version 1 one epoch names many transactions, unless InitProducerId bumps it in between.
        by_hand = self.mode is Mode.RESUME and not moved and self.writer is not None
        claim = self.version != version or (self.stale and not moved) or by_hand
        claim |= self.recovered and self.mode is Mode.RESUME
        idle = self._idle(S.UNCLAIMED if claim else S.READY)
        if self.recovered and self.mode is Mode.RESUME:
            return replace(idle, client=None)  # init must fence other holders of this epoch, not fail on them
        return replace(idle, client=client or self.client)

    def found(self, verdict: Verdict, error: ClientError) -> "TxnProducer":
        """Apply the look-up of the outcome, after EndTxn was answered ambiguously by `error`."""
        check(self.state in _DECIDING, f"looked up while {self.state.name}")
        match verdict:
            case Verdict.DONE if isinstance(error, Fenced):
                return replace(self._idle(S.FATAL), error=error)
            case Verdict.DONE:
                # The next producer id and epoch were in the lost answer: claim others.
                return replace(self._idle(S.UNCLAIMED), client=None)
            case Verdict.CONTRADICTED if self.decided is Wish.COMMIT:
                return replace(self, state=S.ABORTABLE_ERROR, error=error)
            case Verdict.IN_DOUBT:
                return replace(self, state=S.IN_DOUBT, unsure=True, error=error)
            case _:
                return replace(self, state=S.FATAL, error=error)

    def _idle(self, state: State) -> "TxnProducer":
        return replace(
            self,
            state=state,
            writer=None,
            recovered=False,
            stale=False,
            decided=None,
            decided_in=S.UNINITIALIZED,
            unsure=False,
            error=None,
        )

    def failed(self, api: str, error: ClientError) -> "TxnProducer":
        """Apply the final failure of `api`; `error.effect` is the worst of all its attempts [CLI-46]."""
        match api:
            case "InitProducerId" | "DescribeTransactions":
                check(self.state in _STARTING, f"{api} failed while {self.state.name}")
                return self._init_failed(error)
            case "EndTxn":
                check(self.state in _DECIDING, f"{api} failed while {self.state.name}")
                return self._end_failed(error)
            case _:
                return self._part_failed(api, error)

    def _init_failed(self, error: ClientError) -> "TxnProducer":
        """Stay ready to initialise again, unless the id has been taken over by another producer."""
        if error.remedy is Remedy.STOP:
            return replace(self, state=S.FATAL, error=error)
        return replace(
            self, state=S.UNINITIALIZED if self.mode is None and self.client is None else S.UNCLAIMED
        )

    def _part_failed(self, api: str, error: ClientError) -> "TxnProducer":
        """Fail the transaction: a record or offset did not arrive, so it is never committed [CLI-47].

        Source: KAFKA-19176, retries that are used up fail the transaction and not the producer; KIP-360, an
            abort that leaves a gap in the sequence numbers is followed by a new epoch under version 1.
        """
        if self.state not in _OPEN or self.decided_in is S.PREPARED:
            return self
        gap = api == "Produce" or isinstance(error, IdExpired)
        stale = self.stale or (gap and self.version < EPOCH_BUMP_VERSION)
        if error.remedy is Remedy.STOP:
            return replace(self, state=S.FATAL, error=error)
        if self.state is S.ABORTABLE_ERROR:
            return replace(self, stale=stale)  # the first failure says why
        return replace(self, state=S.ABORTABLE_ERROR, error=error, stale=stale)

    def _end_failed(self, error: ClientError) -> "TxnProducer":
        """Apply a failed decision. A prepared transaction stays prepared: no error can un-prepare it.

        Source: KIP-890, 120 on commit can be aborted; KAFKA-19250, on abort it would repeat for ever.
        """
        if self.unsure or error.effect is Effect.UNKNOWN:
            return replace(self, state=S.IN_DOUBT, unsure=True, error=error)
        if self.decided_in is S.PREPARED:
            return replace(self, state=S.PREPARED, decided=None)
        if error.remedy is Remedy.ABORT and self.decided is Wish.COMMIT:
            return replace(self, state=S.ABORTABLE_ERROR, error=error)
        if error.remedy.repeats:  # nothing arrived: the same call, or an abort, may be tried
            return replace(self, state=self.decided_in, decided=None)
        return replace(self, state=S.FATAL, error=error)
