"""Verdicts on open transactions: which of them hang for ever, by KIP-664's analysis. Pure.

A transaction is open in partitions and known to a coordinator; it *hangs* where the first is true and the
second is not. Two listings of coordinators (ListTransactions, DescribeTransactions) are compared with one of
partitions (DescribeProducers):

    coordinators' view of the producer id                             finding          verdict
    no coordinator knows the id                                       NOBODYS          hangs
    the same, while some coordinator did not answer                   UNSEEN           cannot tell
    the transactional id was forgotten between the two listings       FORGOTTEN        hangs
    it is listed, and could not be described                          UNREADABLE       cannot tell
    its transaction does not include the partition                    NOT_INCLUDED     hangs
    it includes the partition, at a higher epoch                      OLDER            hangs
    it has a lower epoch than the partition                           AHEAD            contradiction
    Ongoing, the same epoch, no timeout                               TWO_PHASE        in doubt
    Ongoing, the same epoch, longer than the limit                    OVERDUE          slow
    Ongoing, the same epoch                                           RUNNING          open
    decided, and the partition's marker is still to be written        DECIDED          ending

Two looks are needed for a proof [ADM-1]. A coordinator adds a partition before the first record is written
and drops it after the marker. So if a transaction is open in the partition at t1, absent from its coordinator
at t2 and open at t3 with the same first offset, no marker was written in between and none will be. So
`assess_transactions` says SUSPECTED on a first look; only a second look at the same transaction says HANGING.

Differences from `kafka-transactions.sh find-hanging`: epochs are compared, as the KIP asks and Kafka's tool
does not; a coordinator that could not be asked makes a case undecidable, not hanging; "slow" is measured from
the transaction's start. A partition's last timestamp, which the producer chooses, only decides whether a
transaction without a coordinator is old enough to be reported.

OLDER is not harmless: the next marker of that producer would end it with another transaction's outcome. AHEAD
is impossible unless a coordinator lost acknowledged state: its markers will be refused.

Source: KIP-664 "Finding Hanging Transactions", "if the epoch does not match or the partition is not included
    in the current transaction"; Kafka TransactionsCommand.FindHangingTransactionsCommand.
"""

from collections.abc import Iterable, Mapping
from enum import Enum
from typing import Final

from tallystick.admin.model import OpenTransaction, TransactionDescription
from tallystick.kernel.ids import ProducerId
from tallystick.kernel.value import Value


class HangingFinding(Enum):
    """Relation between the partition's and the coordinator's view of one transaction."""

    UNKNOWN_PRODUCER_ID = "no coordinator knows the producer id"
    MAYBE_UNLISTED = "no coordinator that answered knows the producer id, and not all of them answered"
    EXPIRED_ID = "its coordinator has forgotten the transactional id"
    NOT_DESCRIBED = "its coordinator lists it and could not describe it"
    NOT_INCLUDED = "its coordinator has nothing open in this partition"
    STALE_EPOCH = "its coordinator is in a later transaction, which would end this one with its own outcome"
    COORDINATOR_BEHIND = "its coordinator is behind the partition: it has lost what it acknowledged"
    TWO_PHASE = "its coordinator waits for a decision and will not time out"
    OVERDUE = "its coordinator has it, for longer than the limit"
    RUNNING = "its coordinator has it"
    DECIDED = "its outcome is decided and the marker is still to be written"


class HangingVerdict(Enum):
    """Conclusion for the operator."""

    HANGING = "hanging"  # nothing will ever end it
    SUSPECTED = "suspected"  # hanging after one look: look again
    IN_DOUBT = "in doubt"  # two-phase commit: an external decision ends it
    SLOW = "slow"
    ENDING = "ending"
    OPEN = "open"
    CONTRADICTION = "contradiction"  # the views cannot both be right: investigate before ending it
    UNKNOWN = "unknown"


VERDICT_BY_FINDING: Final[Mapping[HangingFinding, HangingVerdict]] = {
    HangingFinding.UNKNOWN_PRODUCER_ID: HangingVerdict.HANGING,
    HangingFinding.MAYBE_UNLISTED: HangingVerdict.UNKNOWN,
    HangingFinding.EXPIRED_ID: HangingVerdict.HANGING,
    HangingFinding.NOT_DESCRIBED: HangingVerdict.UNKNOWN,
    HangingFinding.NOT_INCLUDED: HangingVerdict.HANGING,
    HangingFinding.STALE_EPOCH: HangingVerdict.HANGING,
    HangingFinding.COORDINATOR_BEHIND: HangingVerdict.CONTRADICTION,
    HangingFinding.TWO_PHASE: HangingVerdict.IN_DOUBT,
    HangingFinding.OVERDUE: HangingVerdict.SLOW,
    HangingFinding.RUNNING: HangingVerdict.OPEN,
    HangingFinding.DECIDED: HangingVerdict.ENDING,
}

# Two transactional ids never share a producer id, but answers may look so while a coordinator moves. Then the
# first of these findings, the most cautious one, counts.
_MOST_CAUTIOUS_FIRST: Final = (
    HangingFinding.COORDINATOR_BEHIND,
    HangingFinding.TWO_PHASE,
    HangingFinding.DECIDED,
    HangingFinding.OVERDUE,
    HangingFinding.RUNNING,
    HangingFinding.NOT_DESCRIBED,
    HangingFinding.MAYBE_UNLISTED,
    HangingFinding.STALE_EPOCH,
    HangingFinding.NOT_INCLUDED,
    HangingFinding.EXPIRED_ID,
    HangingFinding.UNKNOWN_PRODUCER_ID,
)


# Partition and coordinator agree on the transaction, so the coordinator's start time is the partition's.
_VIEWS_AGREE: Final = frozenset(
    {HangingFinding.TWO_PHASE, HangingFinding.OVERDUE, HangingFinding.RUNNING, HangingFinding.DECIDED}
)


class ClusterSnapshot(Value, kw_only=True):
    """Both views at one time. [ADM-1]: `open_transactions` is read first, the coordinators after it."""

    at_ms: int
    open_transactions: tuple[OpenTransaction, ...]
    ids_by_producer: Mapping[ProducerId, tuple[str, ...]]  # transactional ids by producer id
    descriptions: Mapping[str, TransactionDescription]
    expired_ids: frozenset[str] = frozenset()  # listed, and answered TRANSACTIONAL_ID_NOT_FOUND
    is_complete: bool  # every coordinator has answered


class HangingCase(Value, kw_only=True):
    """One open transaction with its verdict."""

    transaction: OpenTransaction
    finding: HangingFinding
    verdict: HangingVerdict
    description: TransactionDescription | None
    idle_ms: int | None  # since its last record; None when its timestamp is missing or in the future
    open_ms: int | None  # since it began; None when no coordinator has it


def assess_transactions(
    look: ClusterSnapshot, limit_ms: int, earlier: Iterable[HangingCase] = ()
) -> tuple[HangingCase, ...]:
    """Judge each open transaction.

    Args:
        limit_ms: the longest time a transaction should take; KIP-664's --max-transaction-timeout.
        earlier: the cases of an earlier look; without them nothing is judged HANGING [ADM-1].

    Returns:
        A case for each of `look.open_transactions`, in that order.
    """
    before = {c.transaction.key for c in earlier if VERDICT_BY_FINDING[c.finding] is HangingVerdict.HANGING}
    return tuple(
        _assess_one(transaction, look, limit_ms, transaction.key in before)
        for transaction in look.open_transactions
    )


def _assess_one(
    transaction: OpenTransaction, look: ClusterSnapshot, limit_ms: int, seen_before: bool
) -> HangingCase:
    finding, view = _classify(transaction, look, limit_ms)
    verdict = VERDICT_BY_FINDING[finding]
    if verdict is HangingVerdict.HANGING and not seen_before:
        verdict = HangingVerdict.SUSPECTED
    return HangingCase(
        transaction=transaction,
        finding=finding,
        verdict=verdict,
        description=view,
        idle_ms=compute_idle_ms(transaction, look.at_ms),
        open_ms=_compute_open_ms(view, look.at_ms) if finding in _VIEWS_AGREE and view is not None else None,
    )


def _classify(
    transaction: OpenTransaction, look: ClusterSnapshot, limit_ms: int
) -> tuple[HangingFinding, TransactionDescription | None]:
    findings = [
        _compare_with_id(transaction, name, look, limit_ms)
        for name in look.ids_by_producer.get(transaction.writer.producer_id, ())
    ]
    findings = [each for each in findings if each[0] is not HangingFinding.UNKNOWN_PRODUCER_ID]
    if not findings:
        return (
            HangingFinding.UNKNOWN_PRODUCER_ID if look.is_complete else HangingFinding.MAYBE_UNLISTED
        ), None
    return min(findings, key=lambda each: _MOST_CAUTIOUS_FIRST.index(each[0]))


def _compare_with_id(
    transaction: OpenTransaction, name: str, look: ClusterSnapshot, limit_ms: int
) -> tuple[HangingFinding, TransactionDescription | None]:
    if name in look.expired_ids:
        return HangingFinding.EXPIRED_ID, None
    view = look.descriptions.get(name)
    if view is None:
        return HangingFinding.NOT_DESCRIBED, None
    if view.writer.producer_id != transaction.writer.producer_id:
        return (
            HangingFinding.UNKNOWN_PRODUCER_ID,
            None,
        )  # the id got another producer id between the two listings
    return _compare_with_description(transaction, view, look.at_ms, limit_ms), view


def _compare_with_description(
    transaction: OpenTransaction, view: TransactionDescription, now_ms: int, limit_ms: int
) -> HangingFinding:
    ongoing = view.state == "Ongoing"
    decided = view.state in ("PrepareCommit", "PrepareAbort", "PrepareEpochFence")
    epoch, described_epoch = transaction.writer.epoch, view.writer.epoch
    if not ongoing and not decided and view.state not in ("Empty", "CompleteCommit", "CompleteAbort", "Dead"):
        return HangingFinding.NOT_DESCRIBED  # a state of a newer Kafka
    if epoch > described_epoch:
        return HangingFinding.COORDINATOR_BEHIND
    if transaction.partition not in view.partitions:
        return HangingFinding.NOT_INCLUDED
    # A marker has the epoch of the data, or the next one with transaction version 2 (KIP-890).
    if epoch < (described_epoch - 1 if decided else described_epoch):
        return HangingFinding.STALE_EPOCH
    if decided:
        return HangingFinding.DECIDED
    if not ongoing:
        return HangingFinding.NOT_INCLUDED
    if view.timeout_ms is None:
        return HangingFinding.TWO_PHASE
    overdue = view.started_ms is not None and now_ms - view.started_ms > limit_ms
    return HangingFinding.OVERDUE if overdue else HangingFinding.RUNNING


def _compute_open_ms(view: TransactionDescription, now_ms: int) -> int | None:
    return None if view.started_ms is None else max(now_ms - view.started_ms, 0)


def compute_idle_ms(transaction: OpenTransaction, now_ms: int) -> int | None:
    """Return the time since the last record; None if its timestamp is unknown or in the future."""
    last = transaction.last_timestamp_ms
    return None if last is None or last > now_ms else now_ms - last


def is_late(case: HangingCase, limit_ms: int) -> bool:
    """Return whether to report the case; one whose duration is unknown is reported."""
    since = case.idle_ms if case.open_ms is None else case.open_ms
    return since is None or since > limit_ms


# ------------------------------------------------------------------------------------ ending it


class AbortHarm(Enum):
    """Harm done by a marker that does not come from the coordinator."""

    NOTHING = "no coordinator will end this transaction"
    IN_DOUBT = "it is in doubt: the other side may be committed, and this one would be lost for ever"
    OTHERS = "its coordinator will end it: this partition would then tell another outcome than the others"
    UNKNOWN = "its coordinator could not be asked: it may be in doubt"
    LOST = "its coordinator has lost what it acknowledged: find out how before anything is ended"


HARM_BY_VERDICT: Final[Mapping[HangingVerdict, AbortHarm]] = {
    HangingVerdict.HANGING: AbortHarm.NOTHING,
    # The leader checks start offset and epoch, which is the second look.
    HangingVerdict.SUSPECTED: AbortHarm.NOTHING,
    HangingVerdict.IN_DOUBT: AbortHarm.IN_DOUBT,
    HangingVerdict.SLOW: AbortHarm.OTHERS,
    HangingVerdict.OPEN: AbortHarm.OTHERS,
    HangingVerdict.ENDING: AbortHarm.OTHERS,
    HangingVerdict.CONTRADICTION: AbortHarm.LOST,
    HangingVerdict.UNKNOWN: AbortHarm.UNKNOWN,
}
