"""The end of a transaction: EndTxn is sent until its outcome is known, or known to be unknown [CLI-46].

An answer that may mean that the transaction had ended before is followed by a look-up of how it ended.
"""

import asyncio
import logging
from typing import NoReturn

from tallystick.client.errors import ClientError, ConnectionLost, DecisionExpired
from tallystick.client.producer.sequences.txn_context import RecordFlow
from tallystick.client.transactions.modes import (
    ACTION_BY_FINDING,
    DescriptionTime,
    TxnDecision,
    TxnFinding,
    TxnRecoveryAction,
    TxnToResolve,
    classify_outcome,
)
from tallystick.client.transactions.request_sender import TxnRequestSender
from tallystick.client.transactions.send_context import TxnSendContext
from tallystick.client.transactions.state import State
from tallystick.client.transactions.state_holder import TxnStateHolder
from tallystick.kernel.check import require
from tallystick.kernel.errors import Effect, InDoubt, Remedy
from tallystick.kernel.ids import ProducerIdAndEpoch

_log = logging.getLogger("tallystick.client")


class TxnEnder:
    """Ends the open transaction as was decided. Owned by a TransactionManager."""

    def __init__(
        self, requests: TxnRequestSender, holder: TxnStateHolder, context: TxnSendContext, flow: RecordFlow
    ) -> None:
        self._requests, self._holder, self._context, self._flow = requests, holder, context, flow

    async def end(self) -> None:
        """Send the EndTxn that is due, if any, and apply what it came to.

        Raises: the error of a decision that was not carried out; InDoubt if that is not known;
            DecisionExpired if the opposite happened.
        """
        holder = self._holder
        try:
            await self._context.wait_for_added()
            due_end = holder.current.due_end_txn
            client = None if due_end is None else await self._requests.end_txn(due_end)
        except ClientError as exc:
            if exc.remedy is Remedy.LOOK_UP:
                await self._look_up_outcome(exc)
                return
            holder.current = holder.current.apply_failure("EndTxn", exc)
            self._raise_end_error(exc)
        except asyncio.CancelledError:
            holder.current = holder.current.apply_failure("EndTxn", ConnectionLost("", "EndTxn", "cancelled"))
            raise
        self._apply_end(client)

    def _apply_end(self, client: ProducerIdAndEpoch | None) -> None:
        holder, before = self._holder, self._holder.current.client
        holder.current = holder.current.apply_end(client, version=self._requests.transaction_version)
        if holder.current.client != before:
            self._flow.restart_sequences()

    async def _look_up_outcome(self, error: ClientError) -> None:
        """Ask how the transaction ended, after an answer to EndTxn that may mean it had ended before."""
        state, transactional_id = self._holder.current, self._requests.transactional_id
        ending = require(state.txn_to_resolve, "a look-up with nothing to look for")
        decision = require(state.decision, "a look-up without a decision")
        try:
            finding, action = await self._find_outcome(ending, decision)
        except asyncio.CancelledError:
            self._holder.current = state.apply_outcome(TxnRecoveryAction.IN_DOUBT, error)
            raise
        is_without_effect = error.effect is Effect.NONE and not state.maybe_sent
        if (
            action is TxnRecoveryAction.IN_DOUBT
            and is_without_effect
            and state.decided_from is not State.PREPARED
        ):
            # None of our attempts had an effect, and no other system was given the token.
            action = TxnRecoveryAction.FENCED
        if action is TxnRecoveryAction.FENCED:
            error = error.copy_with(effect=Effect.NONE, remedy=Remedy.STOP)
        self._holder.current = state.apply_outcome(action, error)
        match action:
            case TxnRecoveryAction.DONE:
                return
            case TxnRecoveryAction.FENCED:
                raise error
            case TxnRecoveryAction.CONTRADICTED:
                raise build_contradiction_error(transactional_id, ending.writer, decision, finding) from error
            case _:
                raise build_unknown_outcome_error(transactional_id, ending.writer, action) from error

    async def _find_outcome(
        self, ending: TxnToResolve, decision: TxnDecision
    ) -> tuple[TxnFinding, TxnRecoveryAction]:
        try:
            finding = classify_outcome(ending, await self._requests.describe())
        except ClientError as exc:
            _log.info("%s: cannot be looked up: %s", self._requests.transactional_id, exc)
            return TxnFinding.MOVED_ON, TxnRecoveryAction.IN_DOUBT
        return finding, ACTION_BY_FINDING[finding, decision, DescriptionTime.AFTER]

    def _raise_end_error(self, error: ClientError) -> NoReturn:
        state = self._holder.current
        if state.state is State.IN_TRANSACTION:
            self._flow.open_gate()
        if state.state is State.IN_DOUBT:
            call = "decision" if state.decision is None else state.decision.name.lower()
            raise InDoubt(
                f"{call} of transaction {state.token} of {self._requests.transactional_id!r} was sent, and "
                f"its outcome could not be learned: {error.what()}; {call}_transaction() again asks again"
            ) from error
        raise error


def build_contradiction_error(
    transactional_id: str, name: ProducerIdAndEpoch, decision: TxnDecision, finding: TxnFinding
) -> DecisionExpired:
    """Return the error for a transaction that ended the other way."""
    opposite = "aborted" if decision is TxnDecision.COMMIT else "committed"
    by = "for its client, which the broker remembers" if finding is TxnFinding.FORCED else "before"
    return DecisionExpired(
        f"{decision.name.lower()} of transaction {name} of {transactional_id!r}: it was {opposite} {by}: by "
        "transaction.timeout.ms, an administrator, or a client that decided otherwise"
    )


def build_unknown_outcome_error(
    transactional_id: str, name: ProducerIdAndEpoch, action: TxnRecoveryAction
) -> InDoubt:
    """Return the error for a transaction of which the outcome cannot be told, or should not be touched."""
    if action is TxnRecoveryAction.HALT:
        return InDoubt(
            f"transaction {name} of {transactional_id!r} was prepared, and the cluster has not come so far: "
            "it has lost what it acknowledged; neither commit nor abort would be right"
        )
    return InDoubt(
        f"transaction {name} of {transactional_id!r}: nothing tells any more whether it was committed"
    )
