"""Report lines and errors for what recovery and a failed block find. Pure."""

from collections.abc import Sequence
from typing import Final

from tallystick.client.errors import AbortRequired, BrokerRefused, Fenced
from tallystick.client.transactions.engine import Completion
from tallystick.client.transactions.modes import Mode, TxnDescription
from tallystick.client.transactions.prepared import PreparedTxnState
from tallystick.dualwrite.errors import (
    DatabaseBehind,
    ForeignCluster,
    HeuristicMixed,
    LogBehind,
    NotRecovered,
    WriterFenced,
)
from tallystick.dualwrite.rules.idempotency import IdempotencyKey
from tallystick.dualwrite.rules.model import StoredState
from tallystick.dualwrite.rules.recovery import (
    VERDICTS,
    ClusterSide,
    Finding,
    RecoveredId,
    Verdict,
    describe_accepting,
)
from tallystick.kernel.codes import ErrorCode
from tallystick.kernel.errors import TallystickError

ACTION_DONE: Final = {
    Completion.COMMITTED: "committed it in Kafka",
    Completion.ABORTED: "aborted it in Kafka",
    Completion.NOTHING_IN_DOUBT: "nothing to do",
    Completion.UNVERIFIED: "nothing to do",
}
ACTION_PLANNED: Final = {
    Verdict.NOTHING: "do nothing",
    Verdict.COMMIT: "commit it in Kafka",
    Verdict.ABORT: "abort it in Kafka",
    Verdict.COMPARE: "commit exactly what the database names, abort anything else",
    Verdict.ALLOW: "do nothing",
    Verdict.TEAR: "raise HeuristicMixed",
    Verdict.LACK: "raise DatabaseBehind",
    Verdict.HALT: "halt",
}


def report_line(
    row: StoredState, side: ClusterSide, finding: Finding, verdict: Verdict, did: str
) -> RecoveredId:
    """Build one line of a report."""
    return RecoveredId(
        transactional_id=row.transactional_id,
        state=row.state,
        in_doubt=PreparedTxnState.of(side.open_transaction),
        finding=finding,
        verdict=verdict,
        action=did,
    )


def raise_if_halted(row: StoredState, side: ClusterSide, finding: Finding) -> None:
    """Raise RecoveryHalted for a finding that halts in every mode. Nothing was changed in Kafka."""
    if any(VERDICTS[finding, mode] is not Verdict.HALT for mode in Mode):
        return
    cluster_text = (
        "nothing" if side.txn_state is None else f"{side.txn_state.state} {side.txn_state.identity}"
    )
    text = (
        f"{row.transactional_id}: {finding.value} [{finding.name}]: the database has "
        f"{row.state or 'nothing'} of cluster {row.cluster_id}, cluster {side.cluster_id} has "
        f"{cluster_text}; neither commit nor abort is right"
    )
    raise ForeignCluster(text) if finding is Finding.FOREIGN else LogBehind(text)


def heuristic_mixed_error(row: StoredState) -> HeuristicMixed:
    """Build the error for a transaction that the database committed and the cluster aborted."""
    return HeuristicMixed(describe_mixed(row.transactional_id, row.state), {row.transactional_id: row.state})


def describe_mixed(transactional_id: str, state: PreparedTxnState) -> str:
    return (
        f"{transactional_id}: the database has committed {state}, and the cluster has aborted it: by "
        "transaction.timeout.ms, an operator, or another client of this id. Send its records again or take "
        f"its rows back, then {describe_accepting(transactional_id)}"
    )


def overruled_error(row: StoredState, txn_state: TxnDescription | None) -> HeuristicMixed:
    """Build the error for a committed row whose transaction must be the last one the cluster aborted."""
    shows = "nothing" if txn_state is None else f"{txn_state.state} {txn_state.identity}"
    return HeuristicMixed(
        f"{row.transactional_id}: the database has committed {row.state}, which was never seen finished, and "
        f"the cluster shows {shows}: it was aborted there, by another client of this id or by an operator. "
        "Look whether its records are there; if not, send them again or take its rows back; then "
        f"{describe_accepting(row.transactional_id)}",
        {row.transactional_id: row.state},
    )


def database_behind_error(row: StoredState, txn_state: TxnDescription | None) -> DatabaseBehind:
    """Build the error for a transaction that the cluster committed and the database lacks."""
    cluster_text = "nothing" if txn_state is None else f"{txn_state.state} {txn_state.identity}"
    return DatabaseBehind(
        f"{row.transactional_id}: the database names {row.state or 'no transaction'} as the last one, and a "
        f"later one was committed; the cluster shows {cluster_text}. The database has lost commits that it "
        "acknowledged (a failover to an asynchronous replica, a restored backup), or the id was used by a "
        "client without a row. Kafka has the records of what was lost. Write those rows again, or make up "
        f"for the records; then {describe_accepting(row.transactional_id)}"
    )


def unknown_here_error(row: StoredState, txn_state: TxnDescription | None) -> DatabaseBehind:
    """Build the error for an open transaction of an id that this database has never had."""
    shows = "it open" if txn_state is None else f"{txn_state.state} {txn_state.identity}"
    return DatabaseBehind(
        f"{row.transactional_id}: the cluster shows {shows}, and this database has never had the id: is it "
        "the right one? Another database may have committed what is open, and recovers it with its own rows; "
        "nothing was ended in Kafka. Give this writer the database that the id belongs to, or an id of its "
        "own. Where no other database has written under the id, have it aborted and "
        f"{describe_accepting(row.transactional_id)}"
    )


def combine_contradictions(
    errors: Sequence[HeuristicMixed | DatabaseBehind],
) -> HeuristicMixed | DatabaseBehind:
    """Return one error for what several clusters of a writer contradict."""
    text = "; ".join(map(str, errors))
    states = {
        name: state
        for each in errors
        if isinstance(each, HeuristicMixed)
        for name, state in each.states.items()
    }
    return HeuristicMixed(text, states) if isinstance(errors[0], HeuristicMixed) else DatabaseBehind(text)


KEYS_NAMED_MAX: Final = 10


def add_keys(error: HeuristicMixed, keys: Sequence[IdempotencyKey]) -> HeuristicMixed:
    """Return the error with the idempotency keys that were committed with its transactions."""
    if not keys:
        return error
    more = f" and {len(keys) - KEYS_NAMED_MAX} more" if len(keys) > KEYS_NAMED_MAX else ""
    text = (
        f"{error}. Its idempotency keys: {', '.join(map(str, keys[:KEYS_NAMED_MAX]))}{more}: calls with them "
        "raise HeuristicMixed until then, and from then on return the stored result without doing anything; "
        "where rows are taken back, delete their keys, too"
    )
    return HeuristicMixed(text, error.states)


def name_earlier(ids_text: str, failure: Exception) -> NotRecovered:
    """Return the error of a block that could not begin, for the failure of an earlier one.

    It must not be raised as it is: it states an outcome, and not that of the block that begins.
    """
    return NotRecovered(
        f"{ids_text}: nothing of this block was begun: an earlier one is not finished: "
        f"{describe_error(failure)}"
    )


def may_be_fenced(cause: BaseException) -> bool:
    """Return whether another writer may own the id by now, so that later transactions would fail too.

    KIP-890 lets a producer abort after INVALID_PRODUCER_EPOCH, but here the epoch would stay too old. Why a
    transaction can only be aborted is the cause of AbortRequired: a record that is too large fences no one.
    """
    while isinstance(cause, AbortRequired) and cause.__cause__ is not None:
        cause = cause.__cause__
    if isinstance(cause, BrokerRefused):
        return isinstance(cause, Fenced) or cause.code == ErrorCode.INVALID_PRODUCER_EPOCH
    return isinstance(cause, WriterFenced | AbortRequired | DatabaseBehind)


def describe_error(exc: BaseException) -> str:
    """Return an exception's message, or its repr if that says more."""
    return str(exc) if isinstance(exc, TallystickError) and str(exc) else repr(exc)
