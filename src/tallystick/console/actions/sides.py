"""State of both sides of a transaction in sentences, and objections to ending it. Pure.

The sentences are what an operator reads and what the digest of a plan covers: they say nothing that changes
by itself, such as an age.
"""

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Final, assert_never

from tallystick.admin.model import OpenTransaction
from tallystick.console.actions.plan import PlannedSide
from tallystick.console.actions.readings import AbortReading, Reading, RowsReading, TransactionReading
from tallystick.console.model.assessment import SparkRole, SparkSide, StoreSide, TransactionViews
from tallystick.console.model.snapshot import Snapshot
from tallystick.console.views.texts import format_identity, pluralize
from tallystick.dualwrite.rules.leases import LeaseState
from tallystick.dualwrite.rules.recovery import Verdict
from tallystick.kernel.value import Value

LINES_MAX: Final = 50
_LAST_TIME_MS: Final = 253_402_300_799_999  # of the year 9999

ABORTED: Final = "It is aborted: what it wrote will never be read by readers of committed records."
FENCED: Final = "Writers of the id that are alive are fenced, and fail until they recover."
UNCHANGED: Final = "Nothing changes here."
_PARTED: Final = "It stays committed here, and its records are lost: the two sides differ from then on."


class Effects(Value, kw_only=True):
    """The effect of an action on each side."""

    kafka: str
    store: str = UNCHANGED
    spark: str = UNCHANGED


def describe_sides(
    views: TransactionViews, reading: TransactionReading, effects: Effects
) -> list[PlannedSide]:
    """Describe every side of one id with the effect of an action; unread stores have a line, too."""
    sides = [PlannedSide(name="Kafka", now=_describe_kafka(views, reading), effect=effects.kafka)]
    if views.store is not None:
        sides.append(
            PlannedSide(name=views.store.store.name, now=_describe_store(views.store), effect=effects.store)
        )
    if views.spark is not None:
        sides.append(
            PlannedSide(
                name=f"Spark, {views.spark.prefix}", now=_describe_spark(views.spark), effect=effects.spark
            )
        )
    for store in reading.snapshot.stores:
        if not store.status.is_complete and (views.store is None or store.name != views.store.store.name):
            sides.append(PlannedSide(name=store.name, now=("It could not be read.",), effect=UNCHANGED))
    if len(sides) == 1:
        count = len(reading.snapshot.stores)
        stores = f"the {pluralize(count, 'store')} that {'is' if count == 1 else 'are'} read here"
        rows = f"No row of it is in {stores}" if count else "No store is read here"
        now = f"{rows}, and no decision of Spark names it."
        sides.append(PlannedSide(name="Databases and decisions", now=(now,), effect=UNCHANGED))
    return sides


def list_failures(reading: Reading) -> tuple[str, ...]:
    """Return what could not be read, a sentence each."""
    owner = reading.owner if isinstance(reading, AbortReading) else reading
    if isinstance(owner, RowsReading):
        owner = owner.readings[0]  # all were read together
    if not isinstance(owner, TransactionReading):
        return ()
    stores = [
        f"{store.name}: {failure}" for store in owner.snapshot.stores for failure in store.status.failures
    ]
    return (*stores, *owner.snapshot.pipelines.status.failures)


def _describe_kafka(views: TransactionViews, reading: TransactionReading) -> tuple[str, ...]:
    description = views.description
    if description is None:
        known = "Its coordinator does not describe it to the console's user."
        return (known if views.is_known else "No coordinator knows the id.",)
    timeout = f"{description.timeout_ms} ms"
    if description.timeout_ms is None:
        timeout = "none: two-phase commit"
    begun = f"begun {_format_time(description.started_ms)}, timeout {timeout}."
    lines = [f"{description.state}, producer id and epoch {format_identity(description.writer)}, {begun}"]
    starts = {each.partition: each.start_offset for each in reading.open_transactions}
    for at in sorted(description.partitions):
        lines.append(f"Open in {at}{f' from offset {starts[at]}' if at in starts else ''}.")
    return limit_lines(lines)


def _describe_store(side: StoreSide) -> tuple[str, ...]:
    row = side.row
    settled = "settled" if row.settled else "not settled"
    lines = [
        f"The last transaction that it has committed is {row.state}, {settled}."
        if row.state
        else "It has committed no transaction of this id.",
        to_sentence(side.finding.value),
        f"The row's owner is {row.owner}.",
    ]
    if side.lease_state is not None:
        lease = next(each for each in side.store.leases if each.transactional_id == row.transactional_id)
        lines.append(_describe_lease(side.lease_state, lease.holder_info))
    if side.other_stores:
        lines.append(f"Rows of the same id are in {', '.join(side.other_stores)}, too.")
    return tuple(lines)


def _describe_lease(state: LeaseState, holder: str) -> str:
    match state:
        case LeaseState.FREE:
            return "The lease of the id is free."
        case LeaseState.HELD:
            return f"The lease of the id is held by {holder or 'a process that has given no name'}."
        case LeaseState.EXPIRED:
            return f"The lease of the id has expired{f'; {holder} had it' if holder else ''}."
        case _:
            assert_never(state)


def _describe_spark(side: SparkSide) -> tuple[str, ...]:
    decision = None if side.facts is None else side.facts.decision
    lines = [to_sentence(side.role.value)]
    if decision is not None:
        lines.append(f"Last decision: number {decision.number}, {decision}.")
    return tuple(lines)


def explain_nothing_open(views: TransactionViews) -> str:
    """Return why there is nothing to end."""
    description = views.description
    if description is None:
        return _describe_kafka(views, TransactionReading(snapshot=Snapshot(), transactional_id=""))[0]
    if description.state in ("PrepareCommit", "PrepareAbort"):
        return f"It is {description.state}: its coordinator has decided, and writes the markers."
    return f"Nothing of the id is open: it is {description.state}."


def describe_abort(views: TransactionViews, kafka: str = f"{ABORTED} {FENCED}") -> Effects:
    """Return the effect of an abort by hand on each side: committed rows stay, without their records."""
    is_committed = views.store is not None and views.store.verdict is Verdict.COMMIT
    is_decided = views.spark is not None and views.spark.role is SparkRole.DECIDED
    return Effects(
        kafka=kafka,
        store=_PARTED if is_committed else UNCHANGED,
        spark=_PARTED if is_decided else UNCHANGED,
    )


def list_abort_harms(views: TransactionViews, snapshot: Snapshot) -> tuple[str, ...]:
    """List what an abort by hand would break on the other side, as far as it can be seen [ACT-2]."""
    harms = []
    if views.store is not None:
        harms += _find_store_harm(views.store)
    spark = views.spark
    if spark is not None and spark.role is SparkRole.DECIDED:
        harms.append(
            f"{spark.prefix} has decided to commit it: its rows would be missing. Resolve the prefix."
        )
    if spark is not None and spark.role is SparkRole.UNREAD:
        harms.append(f"No decision of {spark.prefix} is read here: it may have decided to commit it.")
    harms += [
        f"{store.name} could not be read: it may have committed it."
        for store in snapshot.stores
        if not store.status.is_complete
    ]
    if spark is not None and snapshot.pipelines.status.failures:
        harms.append("Not all decisions of Spark's queries could be read: one may name it.")
    return tuple(harms)


def _find_store_harm(side: StoreSide) -> list[str]:
    match side.verdict:
        case Verdict.COMMIT:
            return [f"{side.store.name} has committed it: its records would be lost for ever. Resolve it."]
        case Verdict.ABORT | Verdict.NOTHING | Verdict.ALLOW:
            return []
        case Verdict.COMPARE | Verdict.TEAR | Verdict.LACK | Verdict.HALT:
            return [f"{side.store.name}: {side.finding.value}."]
        case _:
            assert_never(side.verdict)


def list_commit_harms(views: TransactionViews) -> tuple[str, ...]:
    """List what speaks against a commit by hand."""
    harms = []
    if views.store is None and views.spark is None:
        harms.append(
            "Nothing that is read here says that it is decided: commit it only if a database has stored this "
            "state for it."
        )
    if views.store is not None and views.store.verdict is not Verdict.COMMIT:
        harms.append(f"{views.store.store.name}: {views.store.finding.value}.")
    if views.spark is not None and views.spark.role is SparkRole.UNDECIDED:
        harms.append(f"It is in no decision of {views.spark.prefix}: its rows would be there twice.")
    if views.spark is not None and views.spark.role is SparkRole.UNREAD:
        harms.append(f"No decision of {views.spark.prefix} is read here: it may not have decided it.")
    return tuple(harms)


def warn_of_lease(side: StoreSide) -> tuple[str, ...]:
    """Return a warning if the id's process is alive."""
    if side.lease_state is LeaseState.HELD:
        return ("The lease of its id is held: its process is alive, and will be fenced.",)
    return ()


def warn_of_row(side: StoreSide | None) -> tuple[str, ...]:
    """Return a warning if a database could be committed in the same moment."""
    if side is None:
        return ()
    text = (
        "Resolve claims that row first; this does not, so a live writer may commit to it at the same moment."
    )
    return (f"{side.store.name} has a row of the id. {text}",)


def list_lost_records(views: TransactionViews, reading: TransactionReading) -> tuple[str, ...]:
    """Return what readers of committed records will never see, a sentence for each partition."""
    lines = [
        line
        for each in reading.open_transactions
        for line in format_loss(each, reading.ends.get(each.partition))
    ]
    starts = {each.partition for each in reading.open_transactions}
    described = () if views.description is None else views.description.partitions
    lines += [f"What it wrote to {at} will never be read." for at in sorted(described) if at not in starts]
    return limit_lines(lines)


def format_loss(transaction: OpenTransaction, end: int | None) -> tuple[str, ...]:
    """Return what is lost of a transaction in one partition.

    Args:
        end: the partition's end offset, if it is known.
    """
    at, start = transaction.partition, transaction.start_offset
    if end is None:
        return (f"Its records in {at} from offset {start} on will never be read.",)
    count = max(0, end - start)
    return (f"Its records in {at}, at most {count:,} from offset {start} on, will never be read.",)


def limit_lines(lines: Sequence[str]) -> tuple[str, ...]:
    """Return the first lines, and how many more there are."""
    if len(lines) <= LINES_MAX:
        return tuple(lines)
    return (*lines[:LINES_MAX], f"and {len(lines) - LINES_MAX} more.")


def to_sentence(text: str) -> str:
    """Return a text of another table as a sentence."""
    return f"{text[:1].upper()}{text[1:]}."


def _format_time(ms: int | None) -> str:
    if ms is None or not 0 <= ms <= _LAST_TIME_MS:
        return "at an unknown time" if ms is None else f"at {ms} ms"
    at = datetime.fromtimestamp(ms / 1000, UTC).replace(tzinfo=None)
    return f"{at.isoformat(' ', 'milliseconds')} UTC"
