"""How far a cluster lets a prepared transaction survive its client, and what recovery may conclude. Pure.

Three modes, strongest first. A cluster is judged by what it offers (API versions, finalized features) and by
what it answers, never by its version; and a weaker mode is used only where the user has listed it [CLI-40].

| mode   | the prepared transaction           | an earlier client of the id                     |
|--------|------------------------------------|-------------------------------------------------|
| 2pc    | never ends by itself               | is fenced by recovery (KIP-939)                 |
| keep   | is aborted by transaction.timeout  | is fenced by recovery (KIP-939 without 2PC)     |
| resume | is aborted by transaction.timeout  | is fenced only when the transaction has ended   |

Recovery in doubt is a comparison. What the coordinator shows of an id is turned into a `Finding`, and
`VERDICTS` says what follows from it: one row a finding, one column for each of what is wished (commit or
abort) and when it was looked (before this client sent a decision, or after one whose answer left it open).
Under version 2 every end of a transaction moves the pair on by one, so the pair shown tells whose end it was
(KIP-890); InitProducerId moves it again and leaves the state Empty, which tells nothing. Hence the rule of
recovery: describe before init.

Sources: KIP-939 "RPC Changes" and "Disallowing keepPreparedTxn=true without 2PC"; KIP-890; KIP-664.
"""

from collections.abc import Iterable
from enum import Enum, auto
from typing import Final

from tallystick.kernel.codes import ErrorCode
from tallystick.kernel.ids import Identity, ProducerEpoch
from tallystick.kernel.limits import EPOCH_MAX
from tallystick.kernel.value import frozen

EPOCH_BUMP_VERSION: Final = 2
"""From this `transaction.version` on the end of a transaction moves its epoch (KIP-890)."""

KEEP_API_VERSION: Final = 6
"""InitProducerId from here on can keep a prepared transaction (KIP-939)."""

# ---- which mode


class Mode(Enum):
    """What a prepared transaction rests on; the value is its name in `tallystick.modes`."""

    TWO_PHASE = "2pc"
    KEEP = "keep"
    RESUME = "resume"

    @property
    def not_promised(self) -> str:
        """What a user of this mode must know; empty when it promises all of KIP-939."""
        return _NOT_PROMISED[self]


_NOT_PROMISED: Final = {
    Mode.TWO_PHASE: "",
    Mode.KEEP: "the cluster aborts a prepared transaction after transaction.timeout.ms",
    Mode.RESUME: (
        "the cluster aborts a prepared transaction after transaction.timeout.ms, and whoever initialises the "
        "id first; an earlier client is fenced only when the transaction has ended"
    ),
}


@frozen(kw_only=True)
class Offer:
    """What a cluster says of itself before it is asked for anything.

    init_version         highest version of InitProducerId that both sides have
    transaction_version  finalized level of `transaction.version`
    describes            it has DescribeTransactions (KIP-664)
    """

    init_version: int
    transaction_version: int
    describes: bool


def lacking(mode: Mode, offer: Offer) -> str | None:
    """What this cluster would need for `mode`, or None: then it can be tried."""
    if mode is Mode.RESUME:
        return None if offer.describes else "DescribeTransactions (KIP-664, Apache Kafka 3.0)"
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
    return None


# What an answer to InitProducerId says about a mode that looked possible.
REFUSALS: Final = {
    (Mode.TWO_PHASE, ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED): (
        "the grants WRITE and TWO_PHASE_COMMIT on the transactional id, or the broker's setting "
        "transaction.two.phase.commit.enable=true"
    ),
    (Mode.TWO_PHASE, ErrorCode.UNSUPPORTED_VERSION): "a broker that carries out KeepPreparedTxn (KIP-939)",
    (Mode.KEEP, ErrorCode.UNSUPPORTED_VERSION): "a broker that carries out KeepPreparedTxn (KIP-939)",
}


@frozen
class NoMode:
    """None of the listed modes is possible here: each with what it would need."""

    lacks: tuple[tuple[Mode, str], ...]

    def __str__(self) -> str:
        return "; ".join(f"{mode.value} needs {what}" for mode, what in self.lacks)


def choose(listed: Iterable[Mode], offer: Offer, refused: Iterable[tuple[Mode, int]] = ()) -> Mode | NoMode:
    """The strongest listed mode that is still possible [CLI-40].

    Args:
        refused: the modes that were tried, with the code that refused each. Codes outside `REFUSALS` are
            no reason to try a weaker mode, and must not be passed.
    """
    answers = {mode: REFUSALS[mode, ErrorCode(code)] for mode, code in refused}
    lacks = []
    for mode in listed:
        lack = answers.get(mode) or lacking(mode, offer)
        if lack is None:
            return mode
        lacks.append((mode, lack))
    return NoMode(tuple(lacks))


# ---- what became of a transaction


@frozen(kw_only=True)
class Seen:
    """What a coordinator shows of a transactional id.

    forced  pairs whose transactions were ended for their client, where the broker says so (ours does)
    """

    state: str
    identity: Identity
    forced: frozenset[Identity] = frozenset()


class Finding(Enum):
    """How the state of an id relates to one transaction of it, which was open and has a name."""

    OPEN = auto()  # it is open
    COMMITTED = auto()  # it was committed; its markers may still be on their way
    ABORTED = auto()  # it was aborted, as a decision or by the clock
    FORCED = auto()  # it was ended for its client, and the broker remembers
    OTHER_OPEN = auto()  # a later transaction is open
    MOVED_ON = auto()  # the id was initialised or used again since: nothing tells how this one ended
    GONE = auto()  # the cluster does not know the id: expired, or never there
    LOST = auto()  # the id is not past this transaction, yet it is not open: cannot be


class Wish(Enum):
    COMMIT = auto()
    ABORT = auto()


class Verdict(Enum):
    """What recovery does about a finding."""

    END = auto()  # send the decision
    END_OTHER = auto()  # abort what is open: it is not what the decision was about
    DONE = auto()  # the wish has come true
    UNVERIFIED = auto()  # nothing is in doubt, and nothing tells whether the wish came true
    CONTRADICTED = auto()  # the opposite was done: an error of its own, never a success
    FENCED = auto()  # a newer client keeps it open
    IN_DOUBT = auto()  # it was open, a decision was sent, and nothing tells its outcome
    HALT = auto()  # the cluster has lost what it acknowledged; commit and abort would both hide that


class When(Enum):
    """Before this client sent a decision, or after one that was answered ambiguously."""

    BEFORE = auto()
    AFTER = auto()


# The columns: commit is wished and nothing was sent; commit was sent; abort is wished; abort was sent.
# UNVERIFIED is KIP-939's "no-op when nothing is in doubt". Only for a commit that *this* client sent it is
# not enough, and an abort is done as soon as the transaction is not open and was not committed.
_COLUMNS: Final = tuple((wish, when) for wish in Wish for when in When)
_ROWS: Final = {
    Finding.OPEN: (Verdict.END, Verdict.FENCED, Verdict.END, Verdict.FENCED),
    Finding.COMMITTED: (Verdict.DONE, Verdict.DONE, Verdict.CONTRADICTED, Verdict.CONTRADICTED),
    Finding.ABORTED: (Verdict.CONTRADICTED, Verdict.CONTRADICTED, Verdict.DONE, Verdict.DONE),
    Finding.FORCED: (Verdict.CONTRADICTED, Verdict.CONTRADICTED, Verdict.DONE, Verdict.DONE),
    Finding.OTHER_OPEN: (Verdict.END_OTHER, Verdict.IN_DOUBT, Verdict.END_OTHER, Verdict.DONE),
    Finding.MOVED_ON: (Verdict.UNVERIFIED, Verdict.IN_DOUBT, Verdict.DONE, Verdict.DONE),
    Finding.GONE: (Verdict.UNVERIFIED, Verdict.IN_DOUBT, Verdict.DONE, Verdict.DONE),
    Finding.LOST: (Verdict.HALT, Verdict.HALT, Verdict.DONE, Verdict.DONE),
}
VERDICTS: Final = {
    (finding, wish, when): verdict
    for finding, row in _ROWS.items()
    for (wish, when), verdict in zip(_COLUMNS, row, strict=True)
}


@frozen(kw_only=True)
class Asked:
    """A transaction whose fate is asked for.

    writer   the pair that signed its records: its name
    client   the pair that may decide it; ahead of `writer` when the transaction was kept (KIP-939)
    version  the transaction version it was started with
    """

    writer: Identity
    client: Identity
    version: int


def compare(asked: Asked, seen: Seen | None) -> Finding:
    """Which finding a description is, for one transaction that was open [CLI-41].

    Source: KIP-890 "Bump Epoch on Each Transaction"; protocol of DescribeTransactions: while markers are
        being written the pair shown is theirs, afterwards it is the next one the client may use.
    """
    if seen is None:
        return Finding.GONE
    if asked.writer in seen.forced:
        return Finding.FORCED
    match seen.state:
        case "Ongoing" if seen.identity == asked.writer:
            return Finding.OPEN
        case "Ongoing":
            return Finding.OTHER_OPEN
        case "PrepareCommit" if seen.identity in _while_deciding(asked, commit=True):
            return Finding.COMMITTED
        case "PrepareAbort" | "PrepareEpochFence" if seen.identity in _while_deciding(asked, commit=False):
            return Finding.ABORTED
        case "CompleteCommit" if _is_after(asked, seen.identity, commit=True):
            return Finding.COMMITTED
        case "CompleteAbort" if _is_after(asked, seen.identity, commit=False):
            return Finding.ABORTED
    return Finding.MOVED_ON if _is_past(asked, seen.identity) else Finding.LOST


def _while_deciding(asked: Asked, *, commit: bool) -> set[Identity]:
    """Who signs the markers: one above the writer under version 2; an abort by the clock moves on always."""
    writer = asked.writer
    above = Identity(writer.producer_id, ProducerEpoch(min(writer.epoch + 1, EPOCH_MAX)))
    if asked.version >= EPOCH_BUMP_VERSION:
        return {above}
    return {writer} if commit else {writer, above}


def _is_after(asked: Asked, shown: Identity, *, commit: bool) -> bool:
    """Is `shown` the pair that follows the end of this transaction?

    Under version 1 only an abort by the clock moves the epoch; mode `resume` leaves that one epoch free.
    """
    if asked.version < EPOCH_BUMP_VERSION:
        return shown == asked.client or (not commit and _follows(asked.client, shown))
    return _follows(asked.client, shown)


def _follows(client: Identity, shown: Identity) -> bool:
    if shown.producer_id == client.producer_id:
        return shown.epoch == client.epoch + 1
    # KIP-890 "Overflow": the last epoch of an id is followed by the first one of another.
    return client.epoch >= EPOCH_MAX - 1 and shown.epoch == 0


def _is_past(asked: Asked, shown: Identity) -> bool:
    return shown.producer_id != asked.client.producer_id or shown.epoch > asked.client.epoch
