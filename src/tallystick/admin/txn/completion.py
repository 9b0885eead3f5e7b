"""Deciding a prepared transaction by hand: what a stored state means now, and carrying it out (KIP-939).

`InitProducerId` erases how the last transaction of an id ended, and creates an id that does not exist. So the
plan comes from DescribeTransactions alone [ADM-4]:

    the id has                          the state names    outcome
    a transaction open                  that one           COMMIT
    a transaction open                  an older, nothing  ABORT
    nothing open, or being ended        nothing            NOTHING
    nothing open, or being ended        a committed one    COMMITTED
    nothing open, or being ended        an aborted one     LOST: the other system may have committed
    nothing open                        one of long ago    UNKNOWN
    come less far than the state        any                BEHIND: the cluster lost what it acknowledged

Only the first two send a request; the client then compares the state once more, with the transaction that
InitProducerId kept.

Source: KIP-939 "Recovery recipe"; `client.transactions.modes` for the conclusions from the producer id and
    epoch.
"""

import logging
from collections.abc import Mapping
from enum import Enum
from typing import Final

from tallystick.admin.client import Admin
from tallystick.admin.errors import NothingOpen, NotSafe
from tallystick.admin.model import AbortCause, TransactionDescription
from tallystick.client.blocking.producer import Producer
from tallystick.client.errors import IdExpired
from tallystick.client.settings.config import MODES
from tallystick.client.transactions.engine import Completion
from tallystick.client.transactions.modes import (
    ACTION_BY_FINDING,
    DescriptionTime,
    TxnDecision,
    TxnDescription,
    TxnRecoveryAction,
    TxnToResolve,
    classify_outcome,
)
from tallystick.client.transactions.prepared import PreparedTxnState
from tallystick.kernel.errors import TallystickError
from tallystick.kernel.value import Value

_audit = logging.getLogger("tallystick.audit")


class CompletionOutcome(Enum):
    """Meaning of a stored state for a transactional id; the value is the text for people."""

    COMMIT = "the state names what is open: it will be committed"
    ABORT = "the state does not name what is open: it will be aborted"
    NOTHING = "nothing is in doubt"
    COMMITTED = "the transaction that the state names was committed before"
    LOST = (
        "the transaction that the state names was aborted: by its timeout, an administrator or another client"
    )
    UNKNOWN = "nothing is in doubt, and nothing tells how the transaction that the state names has ended"
    BEHIND = "the cluster has not come so far as the state: it lost what it acknowledged"

    @property
    def sends_request(self) -> bool:
        """Whether carrying the outcome out sends a request."""
        return self in (CompletionOutcome.COMMIT, CompletionOutcome.ABORT)


_OUTCOME_BY_VERDICT: Final = {
    TxnRecoveryAction.DONE: CompletionOutcome.COMMITTED,
    TxnRecoveryAction.CONTRADICTED: CompletionOutcome.LOST,
    TxnRecoveryAction.UNVERIFIED: CompletionOutcome.UNKNOWN,
    TxnRecoveryAction.HALT: CompletionOutcome.BEHIND,
}


class CompletionPlan(Value, kw_only=True):
    """A transactional id, the state that the other system has stored, and the resulting outcome."""

    state: PreparedTxnState
    description: TransactionDescription
    outcome: CompletionOutcome


def plan_completion(admin: Admin, transactional_id: str, state: PreparedTxnState) -> CompletionPlan:
    """Plan what `complete_by_plan` would do. Changes nothing.

    Raises: IdExpired for an unknown id; NotAuthorized without the right to DESCRIBE it.
    """
    description = admin.describe_transactions([transactional_id]).one(transactional_id)
    version = admin.describe_features().get("transaction.version", 0)
    return CompletionPlan(
        state=state, description=description, outcome=decide_outcome(state, description, version)
    )


def decide_outcome(
    state: PreparedTxnState, description: TransactionDescription, version: int
) -> CompletionOutcome:
    """Decide the outcome of a stored state. Pure.

    Args: version: the finalized `transaction.version`.
    """
    name = state.identity
    if description.state == "Ongoing":
        state_is_newer = (
            name is not None
            and name.producer_id == description.writer.producer_id
            and name.epoch > description.writer.epoch
        )
        # Epochs of a producer id only grow: the other system has decided a later transaction than this one.
        return (
            CompletionOutcome.BEHIND
            if state_is_newer
            else CompletionOutcome.COMMIT
            if name == description.writer
            else CompletionOutcome.ABORT
        )
    if name is None:
        return CompletionOutcome.NOTHING
    forced = frozenset(
        each.writer
        for each in description.forced_outcomes
        if each.cause in (AbortCause.TERMINATED, AbortCause.TIMED_OUT)
    )
    txn_state = TxnDescription(state=description.state, identity=description.writer, forced_identities=forced)
    finding = classify_outcome(TxnToResolve(writer=name, client=name, version=version), txn_state)
    return _OUTCOME_BY_VERDICT[ACTION_BY_FINDING[finding, TxnDecision.COMMIT, DescriptionTime.BEFORE]]


MODE_SETTINGS: Final = frozenset({"tallystick.modes", "transaction.two.phase.commit.enable"})


def find_modes(config: Mapping[str, object], *, never_expires: bool) -> Mapping[str, object]:
    """Return a producer's settings with the modes that fit the transaction to end, unless they name some.

    One that the cluster aborts by its timeout anyway loses nothing by a weaker mode, and the producer takes
    the strongest that the cluster offers. One that never expires may be recovered by its description, too:
    Apache Kafka grants Enable2Pc without KeepPreparedTxn.

    Args:
        never_expires: it was begun under two-phase commit (KIP-939 "Client Configuration Changes").
    """
    if config.keys() & MODE_SETTINGS:
        return config
    return {**config, "tallystick.modes": "2pc,resume" if never_expires else ",".join(MODES)}


def complete_by_plan(config: Mapping[str, object], decision: CompletionPlan) -> Completion:
    """Commit or abort the open transaction, as the state says; earlier producers of the id are fenced.

    Args:
        config: of a producer. Without modes, those that fit the transaction are used.

    Returns: what was done; since the plan, the transaction may have been ended otherwise.

    Raises: as `Producer.init_transactions` and `complete_transaction`; NothingOpen if another transaction is
        open by now, which the state was not compared with. It is left open.
    """
    name = decision.description.transactional_id
    planned = PreparedTxnState.of(decision.description.writer)
    settings = find_modes(config, never_expires=decision.description.timeout_ms is None)
    audit_text = f"complete {name!r} producer {decision.description.writer} by state {str(decision.state)!r}"
    _audit.warning("%s: %s", audit_text, decision.outcome.name.lower())
    try:
        with Producer({**settings, "transactional.id": name}) as producer:
            producer.init_transactions(keep_prepared_txn=True)
            if producer.in_doubt not in (PreparedTxnState(), planned):
                producer.close(abort=False)
                state = f"{producer.in_doubt} is open by now, and is left open; its producer is fenced"
                raise NothingOpen(name, str(planned), state)
            completion = producer.complete_transaction(decision.state)
    except TallystickError as exc:
        _audit.warning("%s: %s", audit_text, exc)
        raise
    _audit.warning("%s: %s", audit_text, completion.value)
    return completion


def check_unused(admin: Admin, transactional_id: str) -> None:
    """Check that an id has no open transaction, so that a plain InitProducerId aborts nothing.

    Raises: NotSafe with the state that has to be decided first.
    """
    try:
        description = admin.describe_transactions([transactional_id]).one(transactional_id)
    except IdExpired:
        return
    if description.state == "Ongoing":
        state = PreparedTxnState.of(description.writer)
        raise NotSafe(
            transactional_id,
            f"a transaction is open, {state}, of a producer that runs, has crashed or has prepared it; this "
            "would abort it",
        )
