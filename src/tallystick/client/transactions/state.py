"""State machine of a transactional producer: which call is legal when, and what each answer does. Pure.

    UNINITIALIZED --init--> INITIALIZING --> READY --begin--> IN_TRANSACTION --prepare--> PREPARING
                                 |             ^                    |                          |
                      kept, or   |    CLAIMING |      commit, abort |                       PREPARED
                      described  v      ^      |                    v                          |
                        PREPARED or UNCLAIMED  +------ COMMITTING or ABORTING <----------------+
                                        ^------------------+             commit, abort, complete

`TRANSITIONS` has every legal call and the state it leads to; any other call raises and sends nothing
[CLI-42]. `apply_failure` and `apply_end` apply answers. `client.errors.rules` alone decides what an error
code means; this module turns that into the fate of the transaction.

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
from tallystick.client.transactions.modes import (
    Mode,
    TxnDecision,
    TxnRecoveryAction,
    TxnToResolve,
)
from tallystick.client.transactions.prepared import PreparedTxnState
from tallystick.kernel.check import check, require
from tallystick.kernel.errors import Effect, Remedy
from tallystick.kernel.ids import EPOCH_BUMP_VERSION, ProducerIdAndEpoch
from tallystick.kernel.value import Value, replace


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


class TxnCall(Enum):
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
TRANSITIONS: Final = MappingProxyType(
    {
        (TxnCall.INIT, S.UNINITIALIZED): S.INITIALIZING,
        (TxnCall.CLAIM, S.UNCLAIMED): S.CLAIMING,
        (TxnCall.BEGIN, S.READY): S.IN_TRANSACTION,
        (TxnCall.SEND, S.IN_TRANSACTION): S.IN_TRANSACTION,
        (TxnCall.SEND_OFFSETS, S.IN_TRANSACTION): S.IN_TRANSACTION,
        # KIP-939: from prepareTransaction on, "only .commitTransaction, .abortTransaction, or
        # .completeTransaction could be called".
        (TxnCall.PREPARE, S.IN_TRANSACTION): S.PREPARING,
        (TxnCall.COMMIT, S.IN_TRANSACTION): S.COMMITTING,
        (TxnCall.COMMIT, S.PREPARED): S.COMMITTING,
        (TxnCall.COMMIT, S.IN_DOUBT): S.COMMITTING,  # if that is what was decided
        (TxnCall.ABORT, S.IN_TRANSACTION): S.ABORTING,
        (TxnCall.ABORT, S.PREPARED): S.ABORTING,
        (TxnCall.ABORT, S.ABORTABLE_ERROR): S.ABORTING,
        (TxnCall.ABORT, S.IN_DOUBT): S.ABORTING,  # if that is what was decided
    }
)
_DECISION_BY_CALL: Final = {TxnCall.COMMIT: TxnDecision.COMMIT, TxnCall.ABORT: TxnDecision.ABORT}
_DECIDING_STATES: Final = frozenset({S.COMMITTING, S.ABORTING})
_INITIALIZING_STATES: Final = frozenset({S.INITIALIZING, S.CLAIMING})
_OPEN_STATES: Final = frozenset({S.IN_TRANSACTION, S.PREPARING, S.COMMITTING, S.ABORTABLE_ERROR})


class IllegalCall(Value):
    """The call is not legal in this state, and nothing was sent.

    cause                 the earlier failure behind it, if there was one
    must_abort            the transaction can only be aborted
    is_invalid_txn_state  Kafka returns INVALID_TXN_STATE here
    """

    reason: str
    cause: ClientError | None = None
    must_abort: bool = False
    is_invalid_txn_state: bool = False


class DueEndTxn(Value, kw_only=True):
    """The EndTxn that is due: who signs it, and the transaction version it was started with [CLI-44]."""

    client: ProducerIdAndEpoch
    decision: TxnDecision
    version: int


class TxnProducerState(Value, kw_only=True):
    """Immutable state of one producer. Methods return the next state, or an `IllegalCall`.

    mode              mechanism that holds a prepared transaction; None: nothing may be prepared
    version           transaction version of the open transaction, else of the next one
    client            producer id and epoch that sign requests; None before the first init
    writer            producer id and epoch that signed the open transaction; None: none is open [CLI-43]
    is_recovered      the open transaction was written by an earlier client of the id
    may_complete      init_transactions(True) or prepare_transaction() came after the last begin_transaction()
    needs_epoch_bump  the epoch must move before the next transaction, and the end will not move it
    decision          the end that was asked for; `decided_from` is the state it was asked in
    maybe_sent        an attempt at that end may have had an effect [CLI-46]
    error             the reason for ABORTABLE_ERROR or FATAL
    """

    state: State = State.UNINITIALIZED
    mode: Mode | None = None
    version: int = 0
    client: ProducerIdAndEpoch | None = None
    writer: ProducerIdAndEpoch | None = None
    is_recovered: bool = False
    may_complete: bool = False
    needs_epoch_bump: bool = False
    decision: TxnDecision | None = None
    decided_from: State = State.UNINITIALIZED
    maybe_sent: bool = False
    error: ClientError | None = None

    # ---- calls

    def apply_call(self, call: TxnCall) -> "TxnProducerState | IllegalCall":
        """Return the producer after `call`, or an `IllegalCall` if the call is not legal [CLI-42]."""
        to = TRANSITIONS.get((call, self.state))
        if to is None:
            return self._build_refusal(call.value)
        if call is TxnCall.PREPARE and self.mode is None:
            # KIP-939: "If the 2PC is not enabled, we return the INVALID_TXN_STATE error."
            return IllegalCall(
                "prepare_transaction: no way to keep a prepared transaction is configured; set "
                "transaction.two.phase.commit.enable or tallystick.modes",
                is_invalid_txn_state=True,
            )
        if call in _DECISION_BY_CALL:
            return self._decide(_DECISION_BY_CALL[call], to)
        if call is TxnCall.BEGIN:
            return replace(self, state=to, may_complete=False)
        return self if to is self.state else replace(self, state=to)

    def complete(self, token: PreparedTxnState) -> "TxnProducerState | IllegalCall":
        """Commit the prepared transaction if `token` names it, else abort it.

        With nothing in doubt the producer stays as it is: `modes.ACTION_BY_FINDING` then says what became of
        the transaction that `token` names. Refused unless a prepared state was asked for since the last
        begin.

        Source: KIP-939: "compare the currently prepared transaction state and the state passed in the
            argument and either commit or abort"; "If the producer is not in prepared state (i.e. neither
            prepareTransaction was called nor initTransaction(true) was called) we return an
            INVALID_TXN_STATE error"; "In this case calling .completeTransaction would be a no-op."
        """
        decision = TxnDecision.COMMIT if token == self.token else TxnDecision.ABORT
        match self.state:
            case State.PREPARED | State.IN_DOUBT if self.may_complete:
                return self._decide(decision, S.COMMITTING if decision is TxnDecision.COMMIT else S.ABORTING)
            case State.READY | State.UNCLAIMED if self.may_complete:
                return self
            case State.READY | State.UNCLAIMED | State.IN_TRANSACTION:
                return IllegalCall(
                    "complete_transaction: neither prepare_transaction() nor init_transactions(True) came "
                    f"before it; the producer is {self.state.name}",
                    is_invalid_txn_state=True,
                )
            case _:
                return self._build_refusal("complete_transaction")

    def _decide(self, decision: TxnDecision, to: State) -> "TxnProducerState | IllegalCall":
        if self.state is S.IN_DOUBT:
            if decision is not self.decision:
                was = "none" if self.decision is None else self.decision.name.lower()
                return IllegalCall(
                    f"{decision.name.lower()}: {was} was sent and may have happened; only that again"
                )
            return replace(self, state=to)
        return replace(self, state=to, decision=decision, decided_from=self.state, maybe_sent=False)

    def _build_refusal(self, name: str) -> IllegalCall:
        if self.state is S.FATAL:
            return IllegalCall(f"{name}: this producer failed: {self.error}", self.error)
        if self.state is S.ABORTABLE_ERROR:
            return IllegalCall(
                f"{name}: the transaction failed, abort it: {self.error}", self.error, must_abort=True
            )
        legal = [call.value for call, state in TRANSITIONS if state is self.state] or [
            "to wait for the answer"
        ]
        return IllegalCall(f"{name}: the producer is {self.state.name}; legal are {', '.join(legal)}")

    # ---- the open transaction

    @property
    def token(self) -> PreparedTxnState:
        """Name of the open transaction; empty when none is open [CLI-43, CLI-44]."""
        return PreparedTxnState.of(self.writer)

    @property
    def due_end_txn(self) -> DueEndTxn | None:
        """The EndTxn to send; None when there is nothing to end, or nothing is decided.

        Source: KAFKA-18401, no EndTxn for an empty transaction; KIP-939, signed by the latest client.
        """
        if self.state not in _DECIDING_STATES or self.writer is None:
            return None
        return DueEndTxn(
            client=require(self.client, "a decision without a client"),
            decision=require(self.decision, "an end without a decision"),
            version=self.version,
        )

    @property
    def txn_to_resolve(self) -> TxnToResolve | None:
        """The open transaction, for `modes.compare`."""
        if self.writer is None or self.client is None:
            return None
        return TxnToResolve(writer=self.writer, client=self.client, version=self.version)

    def mark_open(self) -> "TxnProducerState":
        """Record that part of this transaction is in flight: from now on there is something to end."""
        check(self.state in _OPEN_STATES or self.state is S.ABORTING, f"opened while {self.state.name}")
        return self if self.writer is not None else replace(self, writer=self.client)

    def mark_flushed(self) -> "TxnProducerState":
        """Record that every record and offset is acknowledged; failures were reported before."""
        return replace(self, state=S.PREPARED, may_complete=True) if self.state is S.PREPARING else self

    # ---- answers

    def apply_init(
        self,
        client: ProducerIdAndEpoch,
        *,
        kept_identity: ProducerIdAndEpoch | None = None,
        version: int,
        mode: Mode | None,
        keep: bool,
    ) -> "TxnProducerState":
        """Apply the answer to InitProducerId: `client` signs from now on, a `kept_identity` is in doubt.

        Source: KIP-939 "RPC Changes": without an ongoing transaction `.completeTransaction` is a no-op.
        """
        check(self.state in _INITIALIZING_STATES, f"initialised while {self.state.name}")
        return TxnProducerState(
            state=S.READY if kept_identity is None else S.PREPARED,
            mode=mode,
            version=version,
            client=client,
            writer=kept_identity,
            is_recovered=kept_identity is not None,
            may_complete=keep,
        )

    def apply_description(
        self, writer: ProducerIdAndEpoch | None, *, version: int, mode: Mode
    ) -> "TxnProducerState":
        """Apply a description, without init, in a mode that recovers by it.

        The transaction signed by `writer`, if any, is open and in doubt.
        """
        check(self.state in _INITIALIZING_STATES, f"described while {self.state.name}")
        return TxnProducerState(
            state=S.UNCLAIMED if writer is None else S.PREPARED,
            mode=mode,
            version=version,
            client=writer,
            writer=writer,
            is_recovered=writer is not None,
            may_complete=True,
        )

    def apply_end(self, client: ProducerIdAndEpoch | None, *, version: int) -> "TxnProducerState":
        """Record that the decision was carried out, or that there was nothing to end.

        Args:
            client: the next producer id and epoch, from EndTxn version 5 on.
            version: finalized `transaction.version` now. A transaction is ended as it was started; when the
                version has changed, the id is initialised before the next one (KAFKA-18227).
        """
        check(self.state in _DECIDING_STATES, f"ended while {self.state.name}")
        is_new_client = client is not None and client != self.client
        # Under version 1 one epoch names many transactions, unless InitProducerId bumps it in between.
        is_described = self.mode is not None and self.mode.recovers_by_description
        by_hand = is_described and not is_new_client and self.writer is not None
        claim = self.version != version or (self.needs_epoch_bump and not is_new_client) or by_hand
        claim |= self.is_recovered and is_described
        idle = self._reset(S.UNCLAIMED if claim else S.READY)
        if self.is_recovered and is_described:
            return replace(idle, client=None)  # init must fence other holders of this epoch, not fail on them
        return replace(idle, client=client or self.client)

    def apply_outcome(self, verdict: TxnRecoveryAction, error: ClientError) -> "TxnProducerState":
        """Apply the look-up of the outcome, after EndTxn was answered ambiguously by `error`."""
        check(self.state in _DECIDING_STATES, f"looked up while {self.state.name}")
        match verdict:
            case TxnRecoveryAction.DONE if isinstance(error, Fenced):
                return replace(self._reset(S.FATAL), error=error)
            case TxnRecoveryAction.DONE:
                # The next producer id and epoch were in the lost answer: claim others.
                return replace(self._reset(S.UNCLAIMED), client=None)
            case TxnRecoveryAction.CONTRADICTED if self.decision is TxnDecision.COMMIT:
                return replace(self, state=S.ABORTABLE_ERROR, error=error)
            case TxnRecoveryAction.IN_DOUBT:
                return replace(self, state=S.IN_DOUBT, maybe_sent=True, error=error)
            case _:
                return replace(self, state=S.FATAL, error=error)

    def _reset(self, state: State) -> "TxnProducerState":
        return replace(
            self,
            state=state,
            writer=None,
            is_recovered=False,
            needs_epoch_bump=False,
            decision=None,
            decided_from=S.UNINITIALIZED,
            maybe_sent=False,
            error=None,
        )

    def apply_failure(self, api: str, error: ClientError) -> "TxnProducerState":
        """Apply the final failure of `api`; `error.effect` is the worst of all its attempts [CLI-46]."""
        match api:
            case "InitProducerId" | "DescribeTransactions":
                check(self.state in _INITIALIZING_STATES, f"{api} failed while {self.state.name}")
                return self._apply_init_failure(error)
            case "EndTxn":
                check(self.state in _DECIDING_STATES, f"{api} failed while {self.state.name}")
                return self._apply_end_failure(error)
            case _:
                return self._apply_part_failure(api, error)

    def _apply_init_failure(self, error: ClientError) -> "TxnProducerState":
        """Stay ready to initialise again, unless the id has been taken over by another producer."""
        if error.remedy is Remedy.STOP:
            return replace(self, state=S.FATAL, error=error)
        return replace(
            self, state=S.UNINITIALIZED if self.mode is None and self.client is None else S.UNCLAIMED
        )

    def _apply_part_failure(self, api: str, error: ClientError) -> "TxnProducerState":
        """Fail the transaction: a record or offset did not arrive, so it is never committed [CLI-47].

        Source: KAFKA-19176, retries that are used up fail the transaction and not the producer; KIP-360, an
            abort that leaves a gap in the sequence numbers is followed by a new epoch under version 1.
        """
        if self.state not in _OPEN_STATES or self.decided_from is S.PREPARED:
            return self
        gap = api == "Produce" or isinstance(error, IdExpired)
        stale = self.needs_epoch_bump or (gap and self.version < EPOCH_BUMP_VERSION)
        if error.remedy is Remedy.STOP:
            return replace(self, state=S.FATAL, error=error)
        if self.state is S.ABORTABLE_ERROR:
            return replace(self, needs_epoch_bump=stale)  # the first failure says why
        return replace(self, state=S.ABORTABLE_ERROR, error=error, needs_epoch_bump=stale)

    def note_sequence_gap(self) -> "TxnProducerState":
        """Record that a numbered batch failed: without another epoch its partition would take no more.

        While the transaction is aborted, nothing else changes. Nothing of a prepared one can fail.

        Source: KIP-360. Kafka's producer sends numbered batches to their end before it sends EndTxn.
        """
        if self.state is not S.ABORTING or self.decided_from is S.PREPARED:
            return self
        return self if self.version >= EPOCH_BUMP_VERSION else replace(self, needs_epoch_bump=True)

    def _apply_end_failure(self, error: ClientError) -> "TxnProducerState":
        """Apply a failed decision. A prepared transaction stays prepared: no error can un-prepare it.

        Source: KIP-890, 120 on commit can be aborted; KAFKA-19250, on abort it would repeat for ever.
        """
        if self.maybe_sent or error.effect is Effect.UNKNOWN:
            return replace(self, state=S.IN_DOUBT, maybe_sent=True, error=error)
        if self.decided_from is S.PREPARED:
            return replace(self, state=S.PREPARED, decision=None)
        if error.remedy is Remedy.ABORT and self.decision is TxnDecision.COMMIT:
            return replace(self, state=S.ABORTABLE_ERROR, error=error)
        if error.remedy.repeats:  # nothing arrived: the same call, or an abort, may be tried
            if self.decision is TxnDecision.ABORT:
                # It has failed the records that waited, so no commit may follow [CLI-47].
                return replace(self, state=S.ABORTABLE_ERROR, decision=None, error=self.error or error)
            return replace(self, state=self.decided_from, decision=None)
        return replace(self, state=S.FATAL, error=error)
