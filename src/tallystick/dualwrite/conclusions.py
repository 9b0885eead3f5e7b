"""Report lines and errors for the findings of recovery. Pure."""

from typing import Final

from tallystick.admin.model import TransactionDescription
from tallystick.client.transactions.engine import Completion
from tallystick.client.transactions.modes import Mode, Seen
from tallystick.client.transactions.prepared import PreparedTxnState
from tallystick.dualwrite.errors import DatabaseBehind, ForeignCluster, LogBehind, Torn
from tallystick.dualwrite.model import StoredState
from tallystick.dualwrite.recovery import VERDICTS, Finding, Recovered, Shown, Verdict

DID: Final = {
    Completion.COMMITTED: "committed it in Kafka",
    Completion.ABORTED: "aborted it in Kafka",
    Completion.NOTHING_IN_DOUBT: "nothing to do",
    Completion.UNVERIFIED: "nothing to do",
}
WOULD: Final = {
    Verdict.NOTHING: "do nothing",
    Verdict.COMMIT: "commit it in Kafka",
    Verdict.ABORT: "abort it in Kafka",
    Verdict.COMPARE: "commit exactly what the database names, abort anything else",
    Verdict.ALLOW: "do nothing",
    Verdict.TEAR: "raise Torn",
    Verdict.LACK: "raise DatabaseBehind",
    Verdict.HALT: "halt",
}


def recovered(row: StoredState, shown: Shown, finding: Finding, verdict: Verdict, did: str) -> Recovered:
    """Build one line of a report."""
    return Recovered(
        transactional_id=row.transactional_id,
        state=row.state,
        in_doubt=PreparedTxnState.of(shown.open),
        finding=finding,
        verdict=verdict,
        did=did,
    )


def seen_of(told: TransactionDescription) -> Seen | None:
    """Extract from a description what `modes` compares; None for an id that was never initialised."""
    if told.writer.producer_id < 0:  # created, but never initialised
        return None
    forced = frozenset(each.writer for each in told.forced_outcomes if each.partition is None)
    return Seen(state=told.state, identity=told.writer, forced=forced)


def check_halt(row: StoredState, shown: Shown, finding: Finding) -> None:
    """Raise Halted for a finding that halts in every mode. Nothing was changed in Kafka."""
    if any(VERDICTS[finding, mode] is not Verdict.HALT for mode in Mode):
        return
    seen = "nothing" if shown.seen is None else f"{shown.seen.state} {shown.seen.identity}"
    text = (
        f"{row.transactional_id}: {finding.value} [{finding.name}]: the database has "
        f"{row.state or 'nothing'} of cluster {row.cluster_id}, cluster {shown.cluster_id} has {seen}; "
        "neither commit nor abort is right"
    )
    raise ForeignCluster(text) if finding is Finding.FOREIGN else LogBehind(text)


def torn(row: StoredState) -> Torn:
    """Build the error for a transaction that the database committed and the cluster aborted."""
    return Torn(
        f"{row.transactional_id}: the database has committed {row.state}, and the cluster has aborted it: by "
        "transaction.timeout.ms or an operator. Send its records again or take its rows back, then "
        "recover(accept_torn=True)"
    )


def overruled(row: StoredState, seen: Seen | None) -> Torn:
    """Build the error for a committed row whose transaction must be the last one the cluster aborted."""
    shows = "nothing" if seen is None else f"{seen.state} {seen.identity}"
    return Torn(
        f"{row.transactional_id}: the database has committed {row.state}, which was never seen finished, and "
        f"the cluster shows {shows}: it was aborted there, by another client of this id or by an operator. "
        "Look whether its records are there; if not, send them again or take its rows back; then "
        "recover(accept_torn=True)"
    )


def behind(row: StoredState, seen: Seen | None) -> DatabaseBehind:
    """Build the error for a transaction that the cluster committed and the database lacks."""
    shows = "nothing" if seen is None else f"{seen.state} {seen.identity}"
    return DatabaseBehind(
        f"{row.transactional_id}: the database names {row.state or 'no transaction'} as the last one, and a "
        f"later one was committed; the cluster shows {shows}. The database has lost commits that it "
        "acknowledged (a failover to an asynchronous replica, a restored backup), or the id was used by a "
        "client without a row. Kafka has the records of what was lost. Write those rows again, or make up "
        "for the records; then recover(accept_torn=True)"
    )
