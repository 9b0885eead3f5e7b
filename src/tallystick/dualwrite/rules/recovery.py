"""Decision table of recovery: compares both sides of a transactional id and decides what to do. Pure.

The order is part of the rule [DW-5]. First the row is claimed: from then on no earlier writer's database
commit can succeed, and the row is final. Then the cluster is queried, before the id is initialised there,
because InitProducerId erases how the last transaction ended. `compare_sides` compares the two sides, and
`VERDICTS` maps the finding to an action. Only then is Kafka changed; a verdict that halts changes nothing.

KIP-939's recovery recipe is the first column of the table: commit the transaction in doubt if the row names
exactly that one, abort it otherwise. The other rows cover what the recipe takes for granted: that nothing in
doubt means success, that the log never goes back, and that it is the same cluster.

Sources: KIP-939 "Recovery recipe"; `client.transactions.modes` for what a description of an id shows
(KIP-890, KIP-664).
"""

import shlex
from enum import Enum, auto
from typing import Final

from tallystick.admin.model import TransactionDescription
from tallystick.client.transactions import modes
from tallystick.client.transactions.modes import Mode, TxnDescription, TxnToResolve
from tallystick.client.transactions.prepared import PreparedTxnState
from tallystick.dualwrite.rules.model import StoredState
from tallystick.kernel.ids import EPOCH_BUMP_VERSION, ProducerIdAndEpoch
from tallystick.kernel.value import Value


class ClusterSide(Value, kw_only=True):
    """A cluster's state of a transactional id, before the id is initialised.

    txn_state   state at the transaction coordinator; None if the id is unknown there
    is_visible  False if the cluster cannot describe ids or the client is not authorized; `txn_state` is
                meaningless then
    cluster_id  None if the cluster has none
    """

    txn_state: TxnDescription | None
    is_visible: bool = True
    cluster_id: str | None = None

    @property
    def open_transaction(self) -> ProducerIdAndEpoch | None:
        """Producer id and epoch of the transaction in doubt: open, and not decided."""
        return (
            self.txn_state.identity
            if self.txn_state is not None and self.txn_state.state == "Ongoing"
            else None
        )


def to_txn_state(description: TransactionDescription) -> TxnDescription | None:
    """Extract from a description what `modes` compares; None for an id that was never initialised."""
    if description.writer.producer_id < 0:  # created, but never initialised
        return None
    forced = frozenset(each.writer for each in description.forced_outcomes if each.partition is None)
    return TxnDescription(state=description.state, identity=description.writer, forced_identities=forced)


def describe_accepting(transactional_id: str) -> str:
    """Return how sides that differ for good are accepted: a command, and the call that it makes."""
    name = shlex.quote(transactional_id)
    return (
        f"accept it: `tallystick transactions resolve --accept-mixed --transactional-id {name} --store URL`, "
        "or recover(accept_mixed=True)"
    )


class Finding(Enum):
    """The relation of the two sides. The value is the text that a report prints."""

    IDLE = "nothing is in doubt"
    UNDECIDED = "it was in doubt, and the database never recorded one"
    UNKNOWN_HERE = "it is in doubt, and this database has never had the id: another one may have decided it"
    DECIDED = "it was in doubt, and the database has committed exactly this one"
    STALE = "it was in doubt, and the database last committed another one before"
    FINISHED = "the cluster shows that it was committed"
    FORCED = "the database has committed it, and the cluster shows that it was aborted there"
    OVERRULED = "the database has committed it, and what the cluster last ended was aborted"
    BEHIND = "the cluster has committed a later one, which the database does not have"
    UNPROVEN = "it is not in doubt, and nothing tells any more how it ended"
    UNSEEN = "the cluster does not show what it holds"
    AHEAD = "the database has committed what the cluster has not come to, or has lost the end of"
    FOREIGN = "the database has recorded it with another cluster"


class Verdict(Enum):
    """The action that recovery takes."""

    NOTHING = auto()  # both sides are finished
    COMMIT = auto()  # the open transaction
    ABORT = auto()  # the open transaction
    COMPARE = auto()  # as KIP-939: compare the cluster's answer to InitProducerId with the row
    ALLOW = auto()  # continue, and report that the outcome is not proven
    TEAR = auto()  # report that the sides differ; continue only with accept_mixed
    LACK = auto()  # report that the database may lack a commit; continue only with accept_mixed
    HALT = auto()  # change nothing: commit and abort would both hide the contradiction


# A mode affects what may have happened to a transaction, and so how often FORCED and UNPROVEN occur, but not
# the verdict. The exception: recovery by description relies on that alone.
_VERDICT_TABLE: Final = {
    Finding.IDLE: Verdict.NOTHING,
    Finding.UNDECIDED: Verdict.ABORT,
    Finding.UNKNOWN_HERE: Verdict.LACK,
    Finding.DECIDED: Verdict.COMMIT,
    Finding.STALE: Verdict.ABORT,
    Finding.FINISHED: Verdict.NOTHING,
    Finding.FORCED: Verdict.TEAR,
    Finding.OVERRULED: Verdict.TEAR,
    Finding.BEHIND: Verdict.LACK,
    Finding.UNPROVEN: Verdict.ALLOW,
    Finding.UNSEEN: Verdict.COMPARE,
    Finding.AHEAD: Verdict.HALT,
    Finding.FOREIGN: Verdict.HALT,
}
VERDICTS: Final = {
    (finding, mode): verdict
    if verdict is not Verdict.COMPARE or not mode.recovers_by_description
    else Verdict.HALT
    for finding, verdict in _VERDICT_TABLE.items()
    for mode in Mode
}


def compare_sides(row: StoredState, side: ClusterSide, row_before: StoredState | None = None) -> Finding:
    """Compare the two sides [DW-6]. Only an exact match is DECIDED.

    Args:
        row_before: the row as this writer last saw it committed; None if it never did.
    """
    if row.state and None not in (row.cluster_id, side.cluster_id) and row.cluster_id != side.cluster_id:
        # KIP-939's prepared state has no cluster in it: two clusters may give out the same pair.
        return Finding.FOREIGN
    # KIP-939's recipe needs no description: completeTransaction compares the token by itself.
    if not side.is_visible:
        return Finding.UNSEEN
    if (
        row_before is not None
        and _is_behind_known(row, row_before)
        and side.open_transaction != row_before.state.identity
    ):
        # The recipe takes the database's word, which holds only while the database forgets no commit.
        return Finding.BEHIND
    if side.open_transaction is not None:
        return _classify_open(row, side, side.open_transaction)
    ended = _compare_named(row, side)
    if (
        side.txn_state is not None
        and ended in _ANOTHER_TRANSACTION
        and side.txn_state.state in _COMMIT_STATES
        and not row.completing
    ):
        return Finding.AHEAD if is_older(row, side.txn_state.identity) else Finding.BEHIND
    if not row.pending:
        # Nothing is expected. But an id that is behind a finished transaction has lost it.
        return Finding.AHEAD if ended is modes.TxnFinding.LOST else Finding.IDLE
    if ended is modes.TxnFinding.MOVED_ON and side.txn_state is not None:
        return _classify_moved_on(row, side.txn_state)
    return _FINDING_OF_ENDED[ended]


# The cluster's state is not the end of the transaction that the row names.
_ANOTHER_TRANSACTION: Final = (None, modes.TxnFinding.MOVED_ON)
# KIP-939: "once the PREPARE_COMMIT record is written, the transaction is committed".
_COMMIT_STATES: Final = ("PrepareCommit", "CompleteCommit")
_ABORT_STATES: Final = ("PrepareAbort", "CompleteAbort")


def _is_behind_known(row: StoredState, row_before: StoredState) -> bool:
    """Return whether the row is older than the one that this writer saw committed [DW-12]."""
    name = row.state.identity
    return bool(row_before.state) and (name is None or is_older(row_before, name))


def _classify_moved_on(row: StoredState, txn_state: TxnDescription) -> Finding:
    """Find the state of an unsettled row whose id has moved on to a later producer epoch.

    A writer that ends a later transaction has first noted that this one is finished [DW-13], or has found it
    committed. So an abort belongs to this transaction, unless the cluster may have moved on by itself, or an
    operator has, or the row lacks `notes`: it is of an earlier version, or no init fences an earlier writer.
    """
    if txn_state.state in _COMMIT_STATES:
        return Finding.FINISHED  # the row is `completing`; otherwise `compare_sides` returned BEHIND
    # KIP-939 "Client Configuration Changes": under two-phase commit, "transactions that this client starts
    # never expire".
    name, never_expires = row.state.identity, row.timeout_ms is None
    if (
        row.notes
        and txn_state.state in _ABORT_STATES
        and never_expires
        and not (txn_state.forced_identities - {name})
    ):
        return Finding.OVERRULED
    return Finding.UNPROVEN


def _classify_open(row: StoredState, side: ClusterSide, pair: ProducerIdAndEpoch) -> Finding:
    name = row.state.identity
    if name is None:
        # KIP-939, recipe: a prepared transaction that the database does not name is aborted. That holds for
        # the database whose writer began it: a writer claims its row, and has recovered, before it begins.
        return Finding.UNDECIDED if row.known else Finding.UNKNOWN_HERE
    if pair == name:
        # KIP-939, completeTransaction: only the same producer id and the same epoch are a commit. A settled
        # row has seen this transaction end already, so an open one means that the cluster lost the end.
        return Finding.AHEAD if row.settled else Finding.DECIDED
    if is_older(row, pair):
        return Finding.AHEAD
    if not row.settled and _compare_named(row, side) is modes.TxnFinding.FORCED:
        return Finding.FORCED
    # The row names an earlier transaction, so the database did not commit the open one: abort, by the recipe.
    return Finding.STALE


def is_older(row: StoredState, pair: ProducerIdAndEpoch) -> bool:
    """Return whether the row's history proves that `pair` precedes the transaction that it names.

    Under one producer id epochs only grow; of two producer ids, one in `former_producer_ids` came first.

    Source: KIP-890 "Bump Epoch on Each Transaction", and its overflow into another producer id.
    """
    name = row.state.identity
    if name is None:
        return False
    if pair.producer_id == name.producer_id:
        return pair.epoch < name.epoch
    return pair.producer_id in row.former_producer_ids


# Findings of `modes` about an ended transaction, mapped to those of this module.
_FINDING_OF_ENDED: Final = {
    None: Finding.IDLE,
    modes.TxnFinding.COMMITTED: Finding.FINISHED,
    modes.TxnFinding.ABORTED: Finding.FORCED,
    modes.TxnFinding.FORCED: Finding.FORCED,
    modes.TxnFinding.MOVED_ON: Finding.UNPROVEN,
    modes.TxnFinding.GONE: Finding.UNPROVEN,
    modes.TxnFinding.LOST: Finding.AHEAD,
}


def _compare_named(row: StoredState, side: ClusterSide) -> modes.TxnFinding | None:
    """Return the cluster's state of the transaction that the row names; None if it names none."""
    name = row.state.identity
    if name is None:
        return None
    version = EPOCH_BUMP_VERSION if row.transaction_version is None else row.transaction_version
    return modes.classify_outcome(TxnToResolve(writer=name, client=name, version=version), side.txn_state)


class RecoveredId(Value, kw_only=True):
    """The result of recovering one id. `str()` gives one line.

    in_doubt  the transaction open in the cluster when it was queried
    action    description of the change made, if any
    """

    transactional_id: str
    state: PreparedTxnState
    in_doubt: PreparedTxnState
    finding: Finding
    verdict: Verdict | None
    action: str

    def __str__(self) -> str:
        txn_state = self.in_doubt or self.state
        prefix = f"{txn_state}: " if txn_state and self.finding is not Finding.IDLE else ""
        return f"{self.transactional_id}: {prefix}{self.finding.value} [{self.finding.name}]; {self.action}"


class Report(Value):
    """The result of `recover()`, one line for each id."""

    ids: tuple[RecoveredId, ...]

    @property
    def clean(self) -> bool:
        """Whether every id was idle or finished, with nothing to do or report."""
        return all(each.finding in (Finding.IDLE, Finding.FINISHED) for each in self.ids)

    def __str__(self) -> str:
        return "\n".join(map(str, self.ids))
