"""Modes of prepared transactions, and what recovery concludes from a transactional id's state. Pure.

The modes say how far a cluster lets a prepared transaction survive its client; the strongest comes first. A
cluster is judged by what it offers (API versions, finalized features) and by its answers, never by its
release; and a weaker mode is used only where the user has listed it [CLI-40].

| mode       | the prepared transaction           | an earlier client of the id                     |
|------------|------------------------------------|-------------------------------------------------|
| 2pc        | never ends by itself               | is fenced by recovery (KIP-939)                 |
| 2pc+resume | never ends by itself               | is fenced only when the transaction has ended   |
| keep       | is aborted by transaction.timeout  | is fenced by recovery (KIP-939 without 2PC)     |
| resume     | is aborted by transaction.timeout  | is fenced only when the transaction has ended   |

`2pc+resume` is for clusters that grant Enable2Pc and refuse KeepPreparedTxn, as Apache Kafka 4.3 and 4.4 do
with unstable APIs on. Listing `2pc` and `resume` allows it.

Recovery in doubt is a comparison. The coordinator's description of an id becomes a `TxnFinding`, and
`ACTION_BY_FINDING` says what follows: one row per finding, one column for each combination of the decision
(commit or abort) and the time of the description (before this client sent a decision, or after one with an
ambiguous answer). Under version 2 every end of a transaction bumps the epoch by one, so the producer id and
epoch shown tell which transaction ended (KIP-890); InitProducerId bumps it again and leaves the state Empty,
which tells nothing. Therefore recovery describes before init.

Sources: KIP-939 "RPC Changes" and "Disallowing keepPreparedTxn=true without 2PC"; KIP-890; KIP-664.
"""

from collections.abc import Iterable
from enum import Enum, auto
from typing import Final

from tallystick.kernel.codes import ErrorCode
from tallystick.kernel.ids import EPOCH_BUMP_VERSION, ProducerEpoch, ProducerIdAndEpoch
from tallystick.kernel.limits import EPOCH_MAX
from tallystick.kernel.value import Value

KEEP_API_VERSION: Final = 6
"""First version of InitProducerId that can keep a prepared transaction (KIP-939)."""

# ---- which mode


class Mode(Enum):
    """Mechanism that holds a prepared transaction; the value is its name in `tallystick.modes`."""

    TWO_PHASE = "2pc"
    TWO_PHASE_RESUME = "2pc+resume"
    KEEP = "keep"
    RESUME = "resume"

    @property
    def never_expires(self) -> bool:
        """Whether only a decision ends a prepared transaction, however long that takes."""
        return self in (Mode.TWO_PHASE, Mode.TWO_PHASE_RESUME)

    @property
    def recovers_by_description(self) -> bool:
        """Whether recovery describes the id and ends its transaction before anybody initialises it."""
        return self in (Mode.TWO_PHASE_RESUME, Mode.RESUME)

    @property
    def not_promised(self) -> str:
        """Guarantees of KIP-939 that this mode lacks, as a text for the user; empty for none."""
        return _NOT_PROMISED[self]


_BY_DESCRIPTION: Final = (
    "the first client that initialises the id aborts a prepared transaction; an earlier client is fenced "
    "only when the transaction has ended"
)
_NOT_PROMISED: Final = {
    Mode.TWO_PHASE: "",
    Mode.TWO_PHASE_RESUME: _BY_DESCRIPTION,
    Mode.KEEP: "the cluster aborts a prepared transaction after transaction.timeout.ms",
    Mode.RESUME: f"the cluster aborts a prepared transaction after transaction.timeout.ms; {_BY_DESCRIPTION}",
}


def list_modes(names: Iterable[str]) -> tuple[Mode, ...]:
    """Return the modes that `tallystick.modes` allows, strongest first."""
    modes = {Mode(name) for name in names}
    if {Mode.TWO_PHASE, Mode.RESUME} <= modes:
        modes.add(Mode.TWO_PHASE_RESUME)
    return tuple(mode for mode in Mode if mode in modes)


class ClusterCapabilities(Value, kw_only=True):
    """Capabilities that a cluster announces.

    init_version         highest version of InitProducerId that both sides support
    transaction_version  finalized level of `transaction.version`
    can_describe         the cluster has DescribeTransactions (KIP-664)
    refuses_keep         it was seen to refuse KeepPreparedTxn
    """

    init_version: int
    transaction_version: int
    can_describe: bool
    refuses_keep: bool = False


def find_missing_capability(mode: Mode, offer: ClusterCapabilities) -> str | None:
    """Return what this cluster lacks for `mode`; None if the mode can be tried."""
    if mode.recovers_by_description and not offer.can_describe:
        return "DescribeTransactions (KIP-664, Apache Kafka 3.0)"
    if mode is Mode.RESUME:
        return None
    if offer.init_version < KEEP_API_VERSION:
        return (
            f"InitProducerId version {KEEP_API_VERSION} (KIP-939); the cluster offers {offer.init_version}: "
            "Apache Kafka hides it unless unstable.api.versions.enable=true"
        )
    if offer.transaction_version < EPOCH_BUMP_VERSION:
        return (
            f"feature transaction.version={EPOCH_BUMP_VERSION}; {offer.transaction_version} is finalized: "
            "below 2 a pair of producer id and epoch names many transactions"
        )
    return _KEEP if offer.refuses_keep and not mode.recovers_by_description else None


_KEEP: Final = "a broker that carries out KeepPreparedTxn (KIP-939)"
_GRANT: Final = (
    "the grants WRITE and TWO_PHASE_COMMIT on the transactional id, or the broker's setting "
    "transaction.two.phase.commit.enable=true"
)
# What is missing for a mode that looked possible, by the error code of InitProducerId.
MODE_REFUSALS: Final = {
    (Mode.TWO_PHASE, ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED): _GRANT,
    (Mode.TWO_PHASE, ErrorCode.UNSUPPORTED_VERSION): _KEEP,
    (Mode.TWO_PHASE_RESUME, ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED): _GRANT,
    (Mode.KEEP, ErrorCode.UNSUPPORTED_VERSION): _KEEP,
}


class NoPossibleMode(Value):
    """No listed mode is possible; `missing` has what each would need."""

    missing: tuple[tuple[Mode, str], ...]

    def __str__(self) -> str:
        return "; ".join(f"{mode.value} needs {capability}" for mode, capability in self.missing)


def choose_mode(
    modes: Iterable[Mode], offer: ClusterCapabilities, refusals: Iterable[tuple[Mode, int]] = ()
) -> Mode | NoPossibleMode:
    """Return the strongest listed mode that is still possible [CLI-40].

    Args:
        refusals: the modes that were tried, each with the error code that refused it. Codes outside
            `MODE_REFUSALS` are no reason to try a weaker mode, and must not be passed.
    """
    answers = {mode: MODE_REFUSALS[mode, ErrorCode(code)] for mode, code in refusals}
    if answers.get(Mode.TWO_PHASE) == _GRANT:  # Enable2Pc was refused, with which both begin
        answers[Mode.TWO_PHASE_RESUME] = _GRANT
    lacks = []
    for mode in modes:
        lack = answers.get(mode) or find_missing_capability(mode, offer)
        if lack is None:
            return mode
        lacks.append((mode, lack))
    return NoPossibleMode(tuple(lacks))


# ---- outcome of a transaction


class TxnDescription(Value, kw_only=True):
    """A coordinator's description of a transactional id.

    forced_identities  producer ids and epochs of transactions ended without their client, if the broker
                       reports them (tallystick's does)
    """

    state: str
    identity: ProducerIdAndEpoch
    forced_identities: frozenset[ProducerIdAndEpoch] = frozenset()


class TxnFinding(Enum):
    """Relation between the state of a transactional id and one transaction of it that was open."""

    OPEN = auto()  # the transaction is open
    COMMITTED = auto()  # it was committed; its markers may still be in flight
    ABORTED = auto()  # it was aborted, by a decision or by its timeout
    FORCED = auto()  # it was ended without its client, and the broker remembers that
    OTHER_OPEN = auto()  # a later transaction is open
    MOVED_ON = auto()  # the id was initialised or used again since: the outcome cannot be told
    GONE = auto()  # the cluster does not know the id: it expired or never existed
    LOST = auto()  # the id is not past this transaction, yet it is not open: the cluster lost data


class TxnDecision(Enum):
    COMMIT = auto()
    ABORT = auto()


class TxnRecoveryAction(Enum):
    """Action of recovery for a finding."""

    END = auto()  # send the decision
    END_OTHER = auto()  # abort the open transaction: the decision was about another
    DONE = auto()  # the decision was carried out
    UNVERIFIED = auto()  # nothing is in doubt, and it cannot be told whether the decision was carried out
    CONTRADICTED = auto()  # the opposite happened: an error of its own, never a success
    FENCED = auto()  # a newer client keeps it open
    IN_DOUBT = auto()  # it was open, a decision was sent, and its outcome is unknown
    HALT = auto()  # the cluster has lost acknowledged data; commit and abort would both hide that


class DescriptionTime(Enum):
    """Time of a description: before this client sent a decision, or after one answered ambiguously."""

    BEFORE = auto()
    AFTER = auto()


# The columns: commit not sent yet; commit sent; abort not sent yet; abort sent.
# UNVERIFIED is KIP-939's "no-op when nothing is in doubt". It is not enough for a commit that *this* client
# sent. An abort is done as soon as the transaction is not open and was not committed.
_COLUMNS: Final = tuple((decision, when) for decision in TxnDecision for when in DescriptionTime)
_ROWS: Final = {
    TxnFinding.OPEN: (
        TxnRecoveryAction.END,
        TxnRecoveryAction.FENCED,
        TxnRecoveryAction.END,
        TxnRecoveryAction.FENCED,
    ),
    TxnFinding.COMMITTED: (
        TxnRecoveryAction.DONE,
        TxnRecoveryAction.DONE,
        TxnRecoveryAction.CONTRADICTED,
        TxnRecoveryAction.CONTRADICTED,
    ),
    TxnFinding.ABORTED: (
        TxnRecoveryAction.CONTRADICTED,
        TxnRecoveryAction.CONTRADICTED,
        TxnRecoveryAction.DONE,
        TxnRecoveryAction.DONE,
    ),
    TxnFinding.FORCED: (
        TxnRecoveryAction.CONTRADICTED,
        TxnRecoveryAction.CONTRADICTED,
        TxnRecoveryAction.DONE,
        TxnRecoveryAction.DONE,
    ),
    TxnFinding.OTHER_OPEN: (
        TxnRecoveryAction.END_OTHER,
        TxnRecoveryAction.IN_DOUBT,
        TxnRecoveryAction.END_OTHER,
        TxnRecoveryAction.DONE,
    ),
    TxnFinding.MOVED_ON: (
        TxnRecoveryAction.UNVERIFIED,
        TxnRecoveryAction.IN_DOUBT,
        TxnRecoveryAction.DONE,
        TxnRecoveryAction.DONE,
    ),
    TxnFinding.GONE: (
        TxnRecoveryAction.UNVERIFIED,
        TxnRecoveryAction.IN_DOUBT,
        TxnRecoveryAction.DONE,
        TxnRecoveryAction.DONE,
    ),
    TxnFinding.LOST: (
        TxnRecoveryAction.HALT,
        TxnRecoveryAction.HALT,
        TxnRecoveryAction.DONE,
        TxnRecoveryAction.DONE,
    ),
}
ACTION_BY_FINDING: Final = {
    (finding, decision, when): verdict
    for finding, row in _ROWS.items()
    for (decision, when), verdict in zip(_COLUMNS, row, strict=True)
}


class TxnToResolve(Value, kw_only=True):
    """A transaction to find the outcome of.

    writer   the producer id and epoch that signed its records: its name
    client   the producer id and epoch that may decide it; ahead of `writer` if it was kept (KIP-939)
    version  the transaction version it was started with
    """

    writer: ProducerIdAndEpoch
    client: ProducerIdAndEpoch
    version: int


def classify_outcome(txn: TxnToResolve, description: TxnDescription | None) -> TxnFinding:
    """Return the finding for one transaction that was open, given a description of its id [CLI-41].

    Source: KIP-890 "Bump Epoch on Each Transaction"; protocol of DescribeTransactions: while markers are
        written, the producer id and epoch shown are theirs; afterwards, those the client may use next.
    """
    if description is None:
        return TxnFinding.GONE
    if txn.writer in description.forced_identities:
        return TxnFinding.FORCED
    match description.state:
        case "Ongoing" if description.identity == txn.writer:
            return TxnFinding.OPEN
        case "Ongoing":
            return TxnFinding.OTHER_OPEN
        case "PrepareCommit" if description.identity in _list_marker_identities(txn, commit=True):
            return TxnFinding.COMMITTED
        case "PrepareAbort" | "PrepareEpochFence" if description.identity in _list_marker_identities(
            txn, commit=False
        ):
            return TxnFinding.ABORTED
        case "CompleteCommit" if _is_after(txn, description.identity, commit=True):
            return TxnFinding.COMMITTED
        case "CompleteAbort" if _is_after(txn, description.identity, commit=False):
            return TxnFinding.ABORTED
    return TxnFinding.MOVED_ON if _is_past(txn, description.identity) else TxnFinding.LOST


def _list_marker_identities(txn: TxnToResolve, *, commit: bool) -> set[ProducerIdAndEpoch]:
    """Return the possible producer ids and epochs of the markers.

    Under version 2 the epoch is one above the writer's; an abort by timeout always bumps it.

    Source: KIP-939: markers have "the original ongoing transaction's ProducerId and ProducerEpoch + 1", also
        after the transaction was kept.
    """
    writer = txn.writer
    above = ProducerIdAndEpoch(writer.producer_id, ProducerEpoch(min(writer.epoch + 1, EPOCH_MAX)))
    if txn.version >= EPOCH_BUMP_VERSION:
        return {above}
    return {writer} if commit else {writer, above}


def _is_after(txn: TxnToResolve, current: ProducerIdAndEpoch, *, commit: bool) -> bool:
    """Return whether `current` is the producer id and epoch that follow the end of this transaction.

    Under version 1 only an abort by timeout bumps the epoch; mode `resume` leaves that one epoch free.
    """
    if txn.version < EPOCH_BUMP_VERSION:
        return current == txn.client or (not commit and _is_next_identity(txn.client, current))
    return _is_next_identity(txn.client, current)


def _is_next_identity(client: ProducerIdAndEpoch, current: ProducerIdAndEpoch) -> bool:
    if current.producer_id == client.producer_id:
        return current.epoch == client.epoch + 1
    # KIP-890 "Overflow": the last epoch of an id is followed by the first one of another.
    return client.epoch >= EPOCH_MAX - 1 and current.epoch == 0


def _is_past(txn: TxnToResolve, current: ProducerIdAndEpoch) -> bool:
    return current.producer_id != txn.client.producer_id or current.epoch > txn.client.epoch
