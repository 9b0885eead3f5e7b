"""What recovery finds of a transactional id in both halves, and what follows from it. Pure.

The order is part of the rule [DW-5]. First the row is claimed: now no earlier writer's database commit can
come any more, and what the row says is final. Then the cluster is asked what it holds, before the id is
initialised there, because InitProducerId wipes out how the last transaction ended. `find` lays the two halves
together, and `VERDICTS` says what follows. Only then is Kafka changed; a verdict that halts changes nothing.

KIP-939's recovery recipe is the first column of the table: commit what is in doubt if the row names exactly
that, abort it otherwise. The rest is about what the recipe takes for granted: that nothing in doubt means
success, that the log never goes back, and that it is the same cluster.

Sources: KIP-939 "Recovery recipe"; `client.transactions.modes` for what a description of an id tells
(KIP-890, KIP-664).
"""

from enum import Enum, auto
from typing import Final

from tallystick.client.transactions import modes
from tallystick.client.transactions.modes import EPOCH_BUMP_VERSION, Asked, Mode, Seen
from tallystick.client.transactions.prepared import PreparedTxnState
from tallystick.dualwrite.model import StoredState
from tallystick.kernel.ids import Identity
from tallystick.kernel.value import frozen


@frozen(kw_only=True)
class Shown:
    """What a cluster holds of a transactional id, before it is initialised.

    seen        what its coordinator shows; None: it does not know the id
    visible     False: the cluster cannot describe ids, or we may not ask; `seen` says nothing then
    cluster_id  None: the cluster has none
    """

    seen: Seen | None
    visible: bool = True
    cluster_id: str | None = None

    @property
    def open(self) -> Identity | None:
        """The pair of what is in doubt: open, and not decided."""
        return self.seen.identity if self.seen is not None and self.seen.state == "Ongoing" else None


class Finding(Enum):
    """How the two halves relate. The value is what a report says of the cluster's half."""

    IDLE = "nothing is in doubt"
    UNDECIDED = "it was in doubt, and the database never recorded one"
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
    """What recovery does."""

    NOTHING = auto()  # both halves are finished
    COMMIT = auto()  # the open transaction
    ABORT = auto()  # the open transaction
    COMPARE = auto()  # as KIP-939: let the cluster's answer to init be compared with the row
    ALLOW = auto()  # go on, and say that it is not proven
    TEAR = auto()  # say that the halves differ; go on only if somebody insists
    LACK = auto()  # say that the database has lost a commit; go on only if somebody insists
    HALT = auto()  # touch nothing; commit and abort would both hide it


# The columns: 2pc, keep, resume. A mode changes what may have happened to a transaction, and hence how often
# FORCED and UNPROVEN are found, but not what follows. Only, `resume` rests on descriptions altogether.
_COLUMNS: Final = (Mode.TWO_PHASE, Mode.KEEP, Mode.RESUME)
_ROWS: Final = {
    Finding.IDLE: (Verdict.NOTHING, Verdict.NOTHING, Verdict.NOTHING),
    Finding.UNDECIDED: (Verdict.ABORT, Verdict.ABORT, Verdict.ABORT),
    Finding.DECIDED: (Verdict.COMMIT, Verdict.COMMIT, Verdict.COMMIT),
    Finding.STALE: (Verdict.ABORT, Verdict.ABORT, Verdict.ABORT),
    Finding.FINISHED: (Verdict.NOTHING, Verdict.NOTHING, Verdict.NOTHING),
    Finding.FORCED: (Verdict.TEAR, Verdict.TEAR, Verdict.TEAR),
    Finding.OVERRULED: (Verdict.TEAR, Verdict.TEAR, Verdict.TEAR),
    Finding.BEHIND: (Verdict.LACK, Verdict.LACK, Verdict.LACK),
    Finding.UNPROVEN: (Verdict.ALLOW, Verdict.ALLOW, Verdict.ALLOW),
    Finding.UNSEEN: (Verdict.COMPARE, Verdict.COMPARE, Verdict.HALT),
    Finding.AHEAD: (Verdict.HALT, Verdict.HALT, Verdict.HALT),
    Finding.FOREIGN: (Verdict.HALT, Verdict.HALT, Verdict.HALT),
}
VERDICTS: Final = {
    (finding, mode): verdict
    for finding, row in _ROWS.items()
    for mode, verdict in zip(_COLUMNS, row, strict=True)
}


def find(row: StoredState, shown: Shown, known: StoredState | None = None) -> Finding:
    """Lay the two halves together [DW-6]. Only an exact match is DECIDED.

    Args:
        known: the row as this writer last saw it committed, if it has lived that long.
    """
    if row.state and None not in (row.cluster_id, shown.cluster_id) and row.cluster_id != shown.cluster_id:
        return Finding.FOREIGN
    if not shown.visible:
        return Finding.UNSEEN
    if known is not None and _has_lost(row, known) and shown.open != known.state.identity:
        return Finding.BEHIND
    if shown.open is not None:
        return _of_open(row, shown, shown.open)
    ended = _ended(row, shown)
    if shown.seen is not None and ended in _ANOTHER and shown.seen.state in _COMMITS and not row.completing:
        return Finding.AHEAD if is_older(row, shown.seen.identity) else Finding.BEHIND
    if not row.pending:
        # Nothing is expected. Still, an id that has not come to what was finished lost it.
        return Finding.AHEAD if ended is modes.Finding.LOST else Finding.IDLE
    if ended is modes.Finding.MOVED_ON and shown.seen is not None:
        return _of_past(row, shown.seen)
    return _ENDED[ended]


# What the cluster shows is not the end of what the row names.
_ANOTHER: Final = (None, modes.Finding.MOVED_ON)
_COMMITS: Final = ("PrepareCommit", "CompleteCommit")
_ABORTS: Final = ("PrepareAbort", "CompleteAbort")


def _has_lost(row: StoredState, known: StoredState) -> bool:
    """Is the row older than the one that this writer saw committed [DW-12]?"""
    name = row.state.identity
    return bool(known.state) and (name is None or is_older(known, name))


def _of_past(row: StoredState, seen: Seen) -> Finding:
    """The id has moved on from what the row names, and which is not known to be finished.

    Who ends a later transaction has noted first that this one is finished [DW-13], or has found it committed.
    So an abort is this one's, unless the cluster itself may have moved on (below 2pc), or an operator has, or
    a writer of an earlier version, whose rows do not say that it notes.
    """
    if seen.state in _COMMITS:
        return Finding.FINISHED  # `completing`: else it is BEHIND
    name, never_expires = row.state.identity, row.timeout_ms is None
    if row.notes and seen.state in _ABORTS and never_expires and not (seen.forced - {name}):
        return Finding.OVERRULED
    return Finding.UNPROVEN


def _of_open(row: StoredState, shown: Shown, pair: Identity) -> Finding:
    name = row.state.identity
    if name is None:
        return Finding.UNDECIDED
    if pair == name:
        return Finding.AHEAD if row.settled else Finding.DECIDED
    if is_older(row, pair):
        return Finding.AHEAD
    if not row.settled and _ended(row, shown) is modes.Finding.FORCED:
        return Finding.FORCED
    return Finding.STALE


def is_older(row: StoredState, pair: Identity) -> bool:
    """Does the history of the row prove that `pair` came before what the row names?

    Under one producer id epochs only grow; of two producer ids, a former one of this row was the first.
    """
    name = row.state.identity
    if name is None:
        return False
    if pair.producer_id == name.producer_id:
        return pair.epoch < name.epoch
    return pair.producer_id in row.former_producer_ids


# How `modes` says that a transaction ended, in our words. It is not open here.
_ENDED: Final = {
    None: Finding.IDLE,
    modes.Finding.COMMITTED: Finding.FINISHED,
    modes.Finding.ABORTED: Finding.FORCED,
    modes.Finding.FORCED: Finding.FORCED,
    modes.Finding.MOVED_ON: Finding.UNPROVEN,
    modes.Finding.GONE: Finding.UNPROVEN,
    modes.Finding.LOST: Finding.AHEAD,
}


def _ended(row: StoredState, shown: Shown) -> modes.Finding | None:
    """What the cluster shows of the transaction that the row names; None if it names none."""
    name = row.state.identity
    if name is None:
        return None
    version = EPOCH_BUMP_VERSION if row.transaction_version is None else row.transaction_version
    return modes.compare(Asked(writer=name, client=name, version=version), shown.seen)


@frozen(kw_only=True)
class Recovered:
    """What recovery found of one id, and did. Prints as one line.

    in_doubt  what was open in the cluster, when it was asked
    did       in words: what was changed, if anything
    """

    transactional_id: str
    state: PreparedTxnState
    in_doubt: PreparedTxnState
    finding: Finding
    verdict: Verdict | None
    did: str

    def __str__(self) -> str:
        named = self.in_doubt or self.state
        what = f"{named}: " if named and self.finding is not Finding.IDLE else ""
        return f"{self.transactional_id}: {what}{self.finding.value} [{self.finding.name}]; {self.did}"


@frozen
class Report:
    """What `recover()` found and did, one line an id."""

    ids: tuple[Recovered, ...]

    @property
    def clean(self) -> bool:
        """Was there nothing to do, and nothing to say?"""
        return all(each.finding in (Finding.IDLE, Finding.FINISHED) for each in self.ids)

    def __str__(self) -> str:
        return "\n".join(map(str, self.ids))
