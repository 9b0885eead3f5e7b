"""What a transaction's views come to: a word, the reason, and the command that ends it. Pure.

The rules that compare two views are elsewhere and are called here: `admin.txn.hanging` for partitions against
the coordinator, `dualwrite.rules.recovery` for a store's row against the cluster, `spark.protocol.decide` for
a decision's participants. What is added is whether an operator has to act, and with which command:

    views                                                                           health
    open, and within its limit                                                      OK
    decided, in the database or by Spark, and open for less than the grace          OK
    decided, and open for longer than the grace; or the lease of its id expired     RECOVER
    undecided, longer open than the limit, and a store or decision log knows it     RECOVER
    undecided, longer open than the limit, no timeout, and neither knows it         ORPHAN
    the same with a timeout: the coordinator will abort it                          SLOW
    the coordinator has decided, and markers are missing after the grace            SLOW
    the halves differ, or neither commit nor abort would be right                   BROKEN
    no coordinator will ever end it                                                 HANGING
    one of the views could not be read                                              UNKNOWN
"""

from enum import Enum
from typing import Final

from tallystick.admin.model import TransactionDescription
from tallystick.admin.txn.hanging import HangingCase, HangingVerdict
from tallystick.console.model.commands import (
    abort_command,
    complete_command,
    describe_command,
    find_hanging_command,
    resolve_source_command,
    resolve_store_command,
)
from tallystick.console.model.health import Health, Judgement, Limits
from tallystick.console.model.snapshot import PrefixFacts, StoreFacts
from tallystick.dualwrite.rules.leases import LeaseState
from tallystick.dualwrite.rules.model import StoredState
from tallystick.dualwrite.rules.recovery import Finding, Verdict
from tallystick.kernel.ids import ProducerIdAndEpoch, TopicPartition
from tallystick.kernel.value import Value
from tallystick.spark.protocol.committable import Participant
from tallystick.spark.protocol.decide import ParticipantOutcome, resolve_outcome
from tallystick.spark.protocol.transactional_ids import DATABASE_SUFFIX


class StoreHalf(Value, kw_only=True):
    """The database's view: the row, and what recovery would conclude from it and do.

    lease_state   of the transactional id; None if it has no lease
    other_stores  names of other stores that have a row of the same id
    """

    store: StoreFacts
    row: StoredState
    finding: Finding
    verdict: Verdict
    lease_state: LeaseState | None = None
    other_stores: tuple[str, ...] = ()


class SparkRole(Enum):
    """The place of a transaction in a Spark query."""

    DECIDED = "a participant of the last decision"
    UNDECIDED = "of a task, and in no decision"
    UNREAD = "of a task, and no decision of its query is read here"
    DRIVER = "of the driver, which writes decisions in it"


class SparkHalf(Value, kw_only=True):
    """The decision log's view. `facts` is None if no log that is read has the prefix: its role is UNREAD."""

    prefix: str
    role: SparkRole
    facts: PrefixFacts | None
    participant: Participant | None = None


class TransactionViews(Value, kw_only=True):
    """The views of one transaction.

    transactional_id  None if no coordinator knows the producer
    writer            producer id and epoch of the data; None if the coordinator shows none
    is_known          False if its coordinator answered that it does not know the id
    is_stranger       the partitions' transaction is not the one that the coordinator describes
    """

    transactional_id: str | None
    writer: ProducerIdAndEpoch | None
    description: TransactionDescription | None
    cases: tuple[HangingCase, ...] = ()
    store: StoreHalf | None = None
    spark: SparkHalf | None = None
    is_known: bool = True
    is_stranger: bool = False

    @property
    def started_ms(self) -> int | None:
        """When it began, by its coordinator; None if that does not know the transaction."""
        return None if self.description is None or self.is_stranger else self.description.started_ms

    @property
    def partitions(self) -> frozenset[TopicPartition]:
        """Where data of it is open, in either view."""
        described = (
            frozenset() if self.description is None or self.is_stranger else self.description.partitions
        )
        return described | {case.transaction.partition for case in self.cases}

    @property
    def is_two_phase(self) -> bool:
        return self.description is not None and self.description.timeout_ms is None

    def compute_age_ms(self, now_ms: int) -> int | None:
        """Return how long it has been open, or idle if no coordinator knows when it began."""
        if self.started_ms is not None:
            return max(0, now_ms - self.started_ms)
        return max((case.idle_ms for case in self.cases if case.idle_ms is not None), default=None)


_BROKEN_TEXTS: Final = {
    Verdict.TEAR: "Its records are missing. Send them again or take the rows back, then recover with "
    "accept_mixed=True.",
    Verdict.LACK: "The database lacks a commit: it lost one, an older state of it was restored, or it is not "
    "the database of this id. Write the rows again, or give the service its database; then recover with "
    "accept_mixed=True.",
    Verdict.HALT: "Neither commit nor abort would be right. End nothing before it is clear which side lost "
    "something.",
}


def needs_judgement(views: TransactionViews) -> bool:
    """Return whether a transaction that is not open has to be shown: its halves differ, or one is unseen."""
    if views.store is not None and views.store.verdict in (*_BROKEN_TEXTS, Verdict.COMPARE):
        return True
    return views.spark is not None and _find_lost_outcome(views, views.spark) is not None


class Stage(Enum):
    """How far a transaction has come."""

    OPEN = "open"
    DECIDED = "decided"  # by the other half; still open in the cluster
    ENDING = "ending"  # decided by the coordinator, which writes the markers


def find_stage(views: TransactionViews) -> Stage:
    """Return the stage of a transaction."""
    if views.description is not None and views.description.state in ("PrepareCommit", "PrepareAbort"):
        return Stage.ENDING
    is_decided = (views.store is not None and views.store.verdict is Verdict.COMMIT) or (
        views.spark is not None and views.spark.role is SparkRole.DECIDED
    )
    return Stage.DECIDED if is_decided else Stage.OPEN


def judge(views: TransactionViews, stage_ms: int, servers: str, limits: Limits) -> Judgement:
    """Judge one transaction.

    Args:
        stage_ms: how long it has been in its stage.
        servers: the cluster's address, for commands.
    """
    if views.is_stranger:
        return _judge_stranger(views, servers)
    if views.description is not None and find_stage(views) is Stage.ENDING:
        return _judge_ending(views.description, stage_ms, servers, limits)
    if views.store is not None:
        return _judge_store(views.store, stage_ms, servers, limits)
    if views.spark is not None:
        return _judge_spark(views, views.spark, stage_ms, servers, limits)
    return _judge_alone(views, stage_ms, servers, limits)


def _sentence(text: str) -> str:
    return f"{text[:1].upper()}{text[1:]}."


def _judge_stranger(views: TransactionViews, servers: str) -> Judgement:
    """Judge a transaction of partitions that is not the one its coordinator describes."""
    verdicts = {case.verdict for case in views.cases}
    first = views.cases[0]
    if HangingVerdict.CONTRADICTION in verdicts:
        return Judgement(
            Health.BROKEN,
            f"{_sentence(first.finding.value)} Find out how before anything is ended.",
            find_hanging_command(servers),
        )
    if HangingVerdict.HANGING in verdicts:
        case = next(each for each in views.cases if each.verdict is HangingVerdict.HANGING)
        return Judgement(
            Health.HANGING,
            f"Nothing will end it: {case.finding.value}. An abort marker in each of its partitions does.",
            abort_command(servers, case.transaction.partition, case.transaction.start_offset),
        )
    if HangingVerdict.SUSPECTED in verdicts:
        return Judgement(
            Health.UNSETTLED, f"It may be hanging: {first.finding.value}. The next look decides."
        )
    return Judgement(
        Health.UNKNOWN, f"It cannot be judged: {first.finding.value}.", find_hanging_command(servers)
    )


def _judge_ending(
    description: TransactionDescription, stage_ms: int, servers: str, limits: Limits
) -> Judgement:
    word = "committed" if description.state == "PrepareCommit" else "aborted"
    if stage_ms <= limits.grace_ms:
        return Judgement(Health.OK, f"It is being {word}.")
    waiting = ", ".join(sorted(map(str, description.partitions))) or "no partition"
    return Judgement(
        Health.SLOW,
        f"It is {word}, and markers are still to be written to {waiting}: are the leaders of these "
        "partitions available?",
        describe_command(servers, description.transactional_id),
    )


def _judge_store(half: StoreHalf, stage_ms: int, servers: str, limits: Limits) -> Judgement:
    name, store = half.row.transactional_id, half.store.name
    resolve = resolve_store_command(servers, store, name)
    if half.verdict in _BROKEN_TEXTS:
        text = f"{_sentence(half.finding.value)} {_BROKEN_TEXTS[half.verdict]}"
        return Judgement(Health.BROKEN, text, f"{resolve} --dry-run")
    if half.verdict is Verdict.COMPARE:
        return Judgement(Health.UNKNOWN, "The cluster does not show this id to the console's user.", resolve)
    if half.verdict is Verdict.COMMIT:
        text = f"{store} has committed it. "
        if stage_ms <= limits.grace_ms and half.lease_state is not LeaseState.EXPIRED:
            return Judgement(Health.OK, text + "Its writer is about to commit it in Kafka.")
        return Judgement(Health.RECOVER, text + "Its writer is gone: recovery commits it in Kafka.", resolve)
    text = f"{store} has not committed it. "
    if half.lease_state is LeaseState.EXPIRED:
        return Judgement(
            Health.RECOVER, text + "The lease of its id has expired: recovery aborts it.", resolve
        )
    if stage_ms <= limits.limit_ms:
        return Judgement(Health.OK, text + "If its writer is gone, recovery aborts it.")
    return Judgement(
        Health.RECOVER,
        text + "It is older than the limit: if its writer is gone, recovery aborts it.",
        resolve,
    )


def _judge_spark(
    views: TransactionViews, half: SparkHalf, stage_ms: int, servers: str, limits: Limits
) -> Judgement:
    if half.facts is None or half.role is SparkRole.UNREAD:
        return _judge_unread_spark(views, half, stage_ms, servers, limits)
    resolve = resolve_source_command(servers, half.prefix, half.facts.source)
    lost = _find_lost_outcome(views, half)
    if lost is not None:
        return Judgement(
            Health.BROKEN,
            f"Part of the last decision of {half.prefix}, and {lost.value}: its rows may be missing.",
            f"{resolve} --dry-run",
        )
    decision = half.facts.decision
    if half.role is SparkRole.DECIDED and decision is not None:
        text = f"Part of the last decision of {half.prefix}: {decision}. "
        if stage_ms <= limits.grace_ms:
            return Judgement(Health.OK, text + "Its driver is about to commit it.")
        return Judgement(
            Health.RECOVER,
            text + "Start the query again, or resolve its prefix: it will be committed.",
            resolve,
        )
    if stage_ms <= limits.limit_ms:
        return Judgement(Health.OK, f"Of a batch of {half.prefix} that is not decided yet.")
    return Judgement(
        Health.RECOVER,
        f"In no decision of {half.prefix}, and older than the limit. Start the query again, or resolve its "
        "prefix: it will be aborted.",
        resolve,
    )


def _judge_unread_spark(
    views: TransactionViews, half: SparkHalf, stage_ms: int, servers: str, limits: Limits
) -> Judgement:
    """Judge a transaction of a query of which no decision is read here: a new query, or one of elsewhere.

    Nothing tells the two apart. What is decided elsewhere must not be aborted, so the command has a place to
    be filled in.
    """
    if stage_ms <= limits.limit_ms or not views.is_two_phase:
        return _judge_alone(views, stage_ms, servers, limits)
    is_in_store = half.prefix.endswith(DATABASE_SUFFIX)
    known = "which has decided nothing that is read here"
    if half.facts is not None:
        known = "whose decisions are in a store that is not read here"
    place, option = ("store", "--store URL") if is_in_store else ("topic of decisions", "--decisions TOPIC")
    return Judgement(
        Health.ORPHAN,
        f"Of the Spark query {half.prefix.removesuffix(DATABASE_SUFFIX)}, {known}. Start the query again. If "
        f"it is gone, give the console its {place} ({option}), or resolve its prefix there: what it has "
        "never decided is aborted.",
        resolve_source_command(servers, half.prefix, "URL" if is_in_store else "TOPIC"),
    )


def _find_lost_outcome(views: TransactionViews, half: SparkHalf) -> ParticipantOutcome | None:
    """Return how a decided transaction was lost; None if it was not, or cannot be seen."""
    decision = None if half.facts is None else half.facts.decision
    if half.participant is None or decision is None or (views.description is None and views.is_known):
        return None
    outcome = resolve_outcome(half.participant, decision.transaction_version, views.description)
    return outcome if outcome in (ParticipantOutcome.ABORTED, ParticipantOutcome.UNKNOWN) else None


def _judge_alone(views: TransactionViews, stage_ms: int, servers: str, limits: Limits) -> Judgement:
    """Judge a transaction that no store and no decision log names."""
    name = views.transactional_id or ""
    if stage_ms <= limits.limit_ms:
        return Judgement(Health.OK, "It is open, and within the limit.")
    if not views.is_two_phase:
        return Judgement(
            Health.SLOW,
            "It is open for longer than the limit. Its coordinator aborts it after its timeout.",
            describe_command(servers, name),
        )
    return Judgement(
        Health.ORPHAN,
        "It may be prepared, never times out, and no store or decision log that is read here names it. Give "
        "the console its store, or complete it with the state that its other half has stored.",
        complete_command(servers, name, "STATE"),
    )
