"""Health of a transaction: a word, the reason, and the command that ends it. Pure.

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
    the two sides differ, or neither commit nor abort would be right                   BROKEN
    no coordinator will ever end it                                                 HANGING
    one of the views could not be read                                              UNKNOWN
"""

from enum import Enum
from typing import Final

from tallystick.admin.model import TransactionDescription
from tallystick.admin.txn.hanging import HangingCase, HangingVerdict
from tallystick.client.transactions.prepared import PreparedTxnState
from tallystick.console.model.commands import (
    abort_command,
    accept_mixed_command,
    complete_command,
    describe_command,
    find_hanging_command,
    resolve_source_command,
    resolve_store_command,
)
from tallystick.console.model.health import Assessment, Health, Limits
from tallystick.console.model.snapshot import PrefixFacts, StoreFacts
from tallystick.dualwrite.rules.leases import LeaseState
from tallystick.dualwrite.rules.model import StoredState
from tallystick.dualwrite.rules.recovery import Finding, Verdict
from tallystick.kernel.ids import ProducerIdAndEpoch, TopicPartition
from tallystick.kernel.value import Value
from tallystick.spark.protocol.committable import Participant
from tallystick.spark.protocol.decide import ParticipantOutcome, resolve_outcome
from tallystick.spark.protocol.transactional_ids import DATABASE_SUFFIX


class StoreSide(Value, kw_only=True):
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


class SparkSide(Value, kw_only=True):
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
    store: StoreSide | None = None
    spark: SparkSide | None = None
    is_known: bool = True
    is_stranger: bool = False

    @property
    def started_ms(self) -> int | None:
        """Its begin, by its coordinator; None if that does not know the transaction."""
        return None if self.description is None or self.is_stranger else self.description.started_ms

    @property
    def partitions(self) -> frozenset[TopicPartition]:
        """Partitions with open data of it, in either view."""
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
    Verdict.TEAR: "Its records are missing. Send them again or take the rows back; then `transactions "
    "resolve --accept-mixed` shows what is lost, and asks for the id.",
    Verdict.LACK: "The database lacks a commit: it lost one, an older state of it was restored, or it is not "
    "the database of this id. Write the rows again, or give the service its database; then `transactions "
    "resolve --accept-mixed` shows what is lost, and asks for the id.",
    Verdict.HALT: "Neither commit nor abort would be right. End nothing before it is clear which side lost "
    "something.",
}


def needs_assessment(views: TransactionViews) -> bool:
    """Return whether a transaction that is not open has to be shown: its sides differ, or one is unseen."""
    if views.store is not None and views.store.verdict in (*_BROKEN_TEXTS, Verdict.COMPARE):
        return True
    return views.spark is not None and find_lost_outcome(views, views.spark) is not None


class Stage(Enum):
    """The stage of a transaction."""

    OPEN = "open"
    DECIDED = "decided"  # on the other side; still open in the cluster
    ENDING = "ending"  # decided by the coordinator, which writes the markers


def find_stage(views: TransactionViews) -> Stage:
    """Return the stage of a transaction."""
    if views.description is not None and views.description.state in ("PrepareCommit", "PrepareAbort"):
        return Stage.ENDING
    is_decided = (views.store is not None and views.store.verdict is Verdict.COMMIT) or (
        views.spark is not None and views.spark.role is SparkRole.DECIDED
    )
    return Stage.DECIDED if is_decided else Stage.OPEN


def assess(views: TransactionViews, stage_ms: int, servers: str, limits: Limits) -> Assessment:
    """Assess one transaction.

    Args:
        stage_ms: how long it has been in its stage.
        servers: the cluster's address, for commands.
    """
    if views.is_stranger:
        return _assess_stranger(views, servers)
    if views.description is not None and find_stage(views) is Stage.ENDING:
        return _assess_ending(views.description, stage_ms, servers, limits)
    if views.store is not None:
        return _assess_store(views.store, stage_ms, servers, limits)
    if views.spark is not None:
        return _assess_spark(views, views.spark, stage_ms, servers, limits)
    return _assess_alone(views, stage_ms, servers, limits)


def _sentence(text: str) -> str:
    return f"{text[:1].upper()}{text[1:]}."


def _assess_stranger(views: TransactionViews, servers: str) -> Assessment:
    """Assess a transaction of partitions that is not the one its coordinator describes."""
    verdicts = {case.verdict for case in views.cases}
    first = views.cases[0]
    if HangingVerdict.CONTRADICTION in verdicts:
        return Assessment(
            Health.BROKEN,
            f"{_sentence(first.finding.value)} Find out how before anything is ended.",
            find_hanging_command(servers),
        )
    if HangingVerdict.HANGING in verdicts:
        case = next(each for each in views.cases if each.verdict is HangingVerdict.HANGING)
        return Assessment(
            Health.HANGING,
            f"Nothing will end it: {case.finding.value}. An abort marker in each of its partitions does.",
            abort_command(servers, case.transaction.partition, case.transaction.start_offset),
        )
    if HangingVerdict.SUSPECTED in verdicts:
        return Assessment(
            Health.UNSETTLED, f"It may be hanging: {first.finding.value}. The next look decides."
        )
    return Assessment(
        Health.UNKNOWN, f"It cannot be judged: {first.finding.value}.", find_hanging_command(servers)
    )


def _assess_ending(
    description: TransactionDescription, stage_ms: int, servers: str, limits: Limits
) -> Assessment:
    word = "committed" if description.state == "PrepareCommit" else "aborted"
    if stage_ms <= limits.grace_ms:
        return Assessment(Health.OK, f"It is being {word}.")
    waiting = ", ".join(sorted(map(str, description.partitions))) or "no partition"
    return Assessment(
        Health.SLOW,
        f"It is {word}, and markers are still to be written to {waiting}: are the leaders of these "
        "partitions available?",
        describe_command(servers, description.transactional_id),
    )


def _assess_store(side: StoreSide, stage_ms: int, servers: str, limits: Limits) -> Assessment:
    name, store = side.row.transactional_id, side.store.name
    resolve = resolve_store_command(servers, store, name)
    if side.finding is Finding.UNSEEN:  # whatever the mode makes of it: nothing contradicts anything
        command = resolve if side.verdict is Verdict.COMPARE else f"{resolve} --dry-run"
        return Assessment(Health.UNKNOWN, "The cluster does not show this id to the console's user.", command)
    if side.verdict in _BROKEN_TEXTS:
        text = f"{_sentence(side.finding.value)} {_BROKEN_TEXTS[side.verdict]}"
        is_halted = side.verdict is Verdict.HALT
        command = f"{resolve} --dry-run" if is_halted else accept_mixed_command(servers, store, name)
        return Assessment(Health.BROKEN, text, command)
    if side.verdict is Verdict.COMMIT:
        text = f"{store} has committed it. "
        if stage_ms <= limits.grace_ms and side.lease_state is not LeaseState.EXPIRED:
            return Assessment(Health.OK, text + "Its writer is about to commit it in Kafka.")
        return Assessment(Health.RECOVER, text + "Its writer is gone: recovery commits it in Kafka.", resolve)
    text = f"{store} has not committed it. "
    if side.lease_state is LeaseState.EXPIRED:
        return Assessment(
            Health.RECOVER, text + "The lease of its id has expired: recovery aborts it.", resolve
        )
    if stage_ms <= limits.limit_ms:
        return Assessment(Health.OK, text + "If its writer is gone, recovery aborts it.")
    return Assessment(
        Health.RECOVER,
        text + "It is older than the limit: if its writer is gone, recovery aborts it.",
        resolve,
    )


def _assess_spark(
    views: TransactionViews, side: SparkSide, stage_ms: int, servers: str, limits: Limits
) -> Assessment:
    if side.facts is None or side.role is SparkRole.UNREAD:
        return _assess_unread_spark(views, side, stage_ms, servers, limits)
    resolve = resolve_source_command(servers, side.prefix, side.facts.source)
    lost = find_lost_outcome(views, side)
    if lost is not None:
        return Assessment(
            Health.BROKEN,
            f"Part of the last decision of {side.prefix}, and {lost.value}: its rows may be missing.",
            f"{resolve} --dry-run",
        )
    decision = side.facts.decision
    if side.role is SparkRole.DECIDED and decision is not None:
        text = f"Part of the last decision of {side.prefix}: {decision}. "
        if stage_ms <= limits.grace_ms:
            return Assessment(Health.OK, text + "Its driver is about to commit it.")
        return Assessment(
            Health.RECOVER,
            text + "Start the query again, or resolve its prefix: it will be committed.",
            resolve,
        )
    if stage_ms <= limits.limit_ms:
        return Assessment(Health.OK, f"Of a batch of {side.prefix} that is not decided yet.")
    return Assessment(
        Health.RECOVER,
        f"In no decision of {side.prefix}, and older than the limit. Start the query again, or resolve its "
        "prefix: it will be aborted.",
        resolve,
    )


def _assess_unread_spark(
    views: TransactionViews, side: SparkSide, stage_ms: int, servers: str, limits: Limits
) -> Assessment:
    """Assess a transaction of a query of which no decision is read here: a new query, or one of elsewhere.

    Nothing tells the two apart. What is decided elsewhere must not be aborted, so the command has a place to
    be filled in.
    """
    if stage_ms <= limits.limit_ms or not views.is_two_phase:
        return _assess_alone(views, stage_ms, servers, limits)
    is_in_store = side.prefix.endswith(DATABASE_SUFFIX)
    known = "which has decided nothing that is read here"
    if side.facts is not None:
        known = "whose decisions are in a store that is not read here"
    place, option = ("store", "--store URL") if is_in_store else ("topic of decisions", "--decisions TOPIC")
    return Assessment(
        Health.ORPHAN,
        f"Of the Spark query {side.prefix.removesuffix(DATABASE_SUFFIX)}, {known}. Start the query again. If "
        f"it is gone, give the console its {place} ({option}), or resolve its prefix there: what it has "
        "never decided is aborted.",
        resolve_source_command(servers, side.prefix, "URL" if is_in_store else "TOPIC"),
    )


def find_lost_outcome(views: TransactionViews, side: SparkSide) -> ParticipantOutcome | None:
    """Return how a decided transaction was lost; None if it was not, or cannot be seen."""
    decision = None if side.facts is None else side.facts.decision
    if side.participant is None or decision is None or (views.description is None and views.is_known):
        return None
    outcome = resolve_outcome(side.participant, decision.transaction_version, views.description)
    return outcome if outcome in (ParticipantOutcome.ABORTED, ParticipantOutcome.UNKNOWN) else None


def _assess_alone(views: TransactionViews, stage_ms: int, servers: str, limits: Limits) -> Assessment:
    """Assess a transaction that no store and no decision log names."""
    name = views.transactional_id or ""
    if stage_ms <= limits.limit_ms:
        return Assessment(Health.OK, "It is open, and within the limit.")
    if not views.is_two_phase:
        return Assessment(
            Health.SLOW,
            "It is open for longer than the limit. Its coordinator aborts it after its timeout.",
            describe_command(servers, name),
        )
    return Assessment(
        Health.ORPHAN,
        "It may be prepared, and never times out. No database or decision log that is read here knows its "
        "id. If its service uses another database, start the console with --store URL. Else look up "
        f"prepared_transaction_state of {name} there: {explain_states(views.writer)}.",
        complete_command(servers, name, "STATE"),
    )


def explain_states(writer: ProducerIdAndEpoch | None) -> str:
    """Return what each state that a database may have stored means for an open transaction.

    A later one is that of `CompletionOutcome.BEHIND`: either end would hide that the cluster lost something.
    """
    if writer is None:
        return "the state that is open means commit, an earlier one or no row means abort"
    state, epoch = PreparedTxnState.of(writer), writer.epoch
    return (
        f"{state} means commit; {writer.producer_id} with a number above {epoch} means that the cluster lost "
        "what it acknowledged, so end nothing; anything else or no row means abort"
    )
