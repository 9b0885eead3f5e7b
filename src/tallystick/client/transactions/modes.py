"""Modes of prepared transactions, and what recovery concludes from a transactional id's state. Pure.

The modes say how far a cluster lets a prepared transaction survive its client; the strongest comes first. A
cluster is judged by what it offers (API versions, finalized features) and by its answers, never by its
release; and a weaker mode is used only where the user has listed it [CLI-40].

| mode   | the prepared transaction           | an earlier client of the id                     |
|--------|------------------------------------|-------------------------------------------------|
| 2pc    | never ends by itself               | is fenced by recovery (KIP-939)                 |
| keep   | is aborted by transaction.timeout  | is fenced by recovery (KIP-939 without 2PC)     |
| resume | is aborted by transaction.timeout  | is fenced only when the transaction has ended   |

Recovery in doubt is a comparison. The coordinator's description of an id becomes a `Finding`, and `VERDICTS`
says what follows: one row per finding, one column for each combination of the wish (commit or abort) and the
time of the description (before this client sent a decision, or after one with an ambiguous answer).
Under version 2 every end of a transaction bumps the epoch by one, so the producer id and epoch shown tell
which transaction ended (KIP-890); InitProducerId bumps it again and leaves the state Empty, which tells
nothing. Therefore recovery describes before init.

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
"""First `transaction.version` under which the end of a transaction bumps its epoch (KIP-890)."""

KEEP_API_VERSION: Final = 6
"""First version of InitProducerId that can keep a prepared transaction (KIP-939)."""

# ---- which mode


class Mode(Enum):
    """Mechanism that holds a prepared transaction; the value is its name in `tallystick.modes`."""

    TWO_PHASE = "2pc"
    KEEP = "keep"
    RESUME = "resume"

    @property
    def not_promised(self) -> str:
        """Guarantees of KIP-939 that this mode lacks, as a text for the user; empty for none."""
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
    """Capabilities that a cluster announces.

    init_version         highest version of InitProducerId that both sides support
    transaction_version  finalized level of `transaction.version`
    describes            the cluster has DescribeTransactions (KIP-664)
    """

    init_version: int
    transaction_version: int
    describes: bool


def lacking(mode: Mode, offer: Offer) -> str | None:
    """Return what this cluster lacks for `mode`; None if the mode can be tried."""
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


# What is missing for a mode that looked possible, by the error code of InitProducerId.
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
    """No listed mode is possible; `lacks` has what each would need."""

    lacks: tuple[tuple[Mode, str], ...]

    def __str__(self) -> str:
        return "; ".join(f"{mode.value} needs {what}" for mode, what in self.lacks)


def choose(listed: Iterable[Mode], offer: Offer, refused: Iterable[tuple[Mode, int]] = ()) -> Mode | NoMode:
    """Return the strongest listed mode that is still possible [CLI-40].

    Args:
        refused: the modes that were tried, each with the error code that refused it. Codes outside
            `REFUSALS` are no reason to try a weaker mode, and must not be passed.
    """
    answers = {mode: REFUSALS[mode, ErrorCode(code)] for mode, code in refused}
    lacks = []
    for mode in listed:
        lack = answers.get(mode) or lacking(mode, offer)
        if lack is None:
            return mode
        lacks.append((mode, lack))
    return NoMode(tuple(lacks))


# ---- outcome of a transaction


@frozen(kw_only=True)
class Seen:
    """A coordinator's description of a transactional id.

    forced  producer ids and epochs of transactions ended without their client, if the broker reports them
            (tallystick's does)
    """

    state: str
    identity: Identity
    forced: frozenset[Identity] = frozenset()


class Finding(Enum):
    """Relation between the state of a transactional id and one transaction of it that was open."""

    OPEN = auto()  # the transaction is open
    COMMITTED = auto()  # it was committed; its markers may still be in flight
    ABORTED = auto()  # it was aborted, by a decision or by its timeout
    FORCED = auto()  # it was ended without its client, and the broker remembers that
    OTHER_OPEN = auto()  # a later transaction is open
    MOVED_ON = auto()  # the id was initialised or used again since: the outcome cannot be told
    GONE = auto()  # the cluster does not know the id: it expired or never existed
    LOST = auto()  # the id is not past this transaction, yet it is not open: the cluster lost data


class Wish(Enum):
    COMMIT = auto()
    ABORT = auto()


class Verdict(Enum):
    """Action of recovery for a finding."""

    END = auto()  # send the decision
    END_OTHER = auto()  # abort the open transaction: the decision was about another
    DONE = auto()  # the wish has come true
    UNVERIFIED = auto()  # nothing is in doubt, and it cannot be told whether the wish came true
    CONTRADICTED = auto()  # the opposite happened: an error of its own, never a success
    FENCED = auto()  # a newer client keeps it open
    IN_DOUBT = auto()  # it was open, a decision was sent, and its outcome is unknown
    HALT = auto()  # the cluster has lost acknowledged data; commit and abort would both hide that


class When(Enum):
    """Time of a description: before this client sent a decision, or after one answered ambiguously."""

    BEFORE = auto()
    AFTER = auto()


# The columns: commit wished but not sent; commit sent; abort wished but not sent; abort sent.
# UNVERIFIED is KIP-939's "no-op when nothing is in doubt". It is not enough for a commit that *this* client
# sent. An abort is done as soon as the transaction is not open and was not committed.
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
    """A transaction to find the outcome of.

    writer   the producer id and epoch that signed its records: its name
    client   the producer id and epoch that may decide it; ahead of `writer` if it was kept (KIP-939)
    version  the transaction version it was started with
    """

    writer: Identity
    client: Identity
    version: int


def compare(asked: Asked, seen: Seen | None) -> Finding:
    """Return the finding for one transaction that was open, given a description of its id [CLI-41].

    Source: KIP-890 "Bump Epoch on Each Transaction"; protocol of DescribeTransactions: while markers are
        written, the producer id and epoch shown are theirs; afterwards, those the client may use next.
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
    """Return the possible producer ids and epochs of the markers.

    Under version 2 the epoch is one above the writer's; an abort by timeout always bumps it.
    """
    writer = asked.writer
    above = Identity(writer.producer_id, ProducerEpoch(min(writer.epoch + 1, EPOCH_MAX)))
    if asked.version >= EPOCH_BUMP_VERSION:
        return {above}
    return {writer} if commit else {writer, above}


def _is_after(asked: Asked, shown: Identity, *, commit: bool) -> bool:
    """Tell whether `shown` is the producer id and epoch that follow the end of this transaction.

    Under version 1 only an abort by timeout bumps the epoch; mode `resume` leaves that one epoch free.
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
