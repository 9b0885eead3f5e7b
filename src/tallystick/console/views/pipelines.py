"""Queries of Spark by their prefix: the last decision, its participants, and what became of each. Pure."""

from tallystick.admin.model import OPEN_STATES
from tallystick.console.model import commands
from tallystick.console.model.health import SEVERITY, Health
from tallystick.console.model.snapshot import PrefixFacts
from tallystick.console.model.state import ConsoleState
from tallystick.console.model.transactions import AssessedTransaction
from tallystick.console.views.page import PageInfo, describe_page
from tallystick.console.views.texts import format_identity
from tallystick.console.views.transactions import build_key
from tallystick.kernel.value import Value
from tallystick.spark.protocol.committable import Decision, JobChecksums


class BatchView(Value, kw_only=True):
    """A decided batch, or a named batch write. `row_counts` has one number for each sink."""

    name: str
    row_counts: tuple[int, ...]


class ParticipantView(Value, kw_only=True):
    """A transaction of the last decision. `outcome` is what its coordinator shows now."""

    transactional_id: str
    producer: str
    outcome: str
    key: str


class PrefixView(Value, kw_only=True):
    """One query, by its prefix.

    health         the worst of its open transactions
    is_complete    its driver has noted that every participant is committed
    offsets        the sources' offsets at the end of the last batch, as Spark's offset log has them
    undecided      open transactions of its tasks that are in no decision, as keys of URLs
    missing        what is not read here, as a sentence; empty if nothing is
    """

    prefix: str
    source: str
    health: str
    query_id: str | None
    batch_id: int | None
    decided_ms: int | None
    decision_number: int | None
    mode: str
    is_complete: bool
    offsets: str | None
    participants: tuple[ParticipantView, ...]
    undecided: tuple[str, ...]
    batches: tuple[BatchView, ...]
    writes: tuple[BatchView, ...]
    resolve_command: str
    missing: str = ""


class PipelinesPage(Value, kw_only=True):
    """All prefixes that were found in the decision logs."""

    info: PageInfo
    prefixes: tuple[PrefixView, ...]


def build_pipelines(state: ConsoleState, now_ms: int) -> PipelinesPage:
    """Build the page of Spark's queries."""
    snapshot = state.snapshot
    return PipelinesPage(
        info=describe_page(
            "Pipelines", snapshot, [snapshot.pipelines.status, snapshot.transactions.status], now_ms
        ),
        prefixes=tuple(_view_prefix(state, each) for each in _list_prefixes(state)),
    )


def _list_prefixes(state: ConsoleState) -> list[PrefixFacts]:
    """List the prefixes of decisions, and those of open transactions of which no decision is read here."""
    unread = {
        each.views.spark.prefix
        for each in state.transactions
        if each.views.spark is not None and each.views.spark.facts is None
    }
    blank = [PrefixFacts(prefix=name, source="", decision=None, is_complete=False) for name in unread]
    return sorted([*state.snapshot.pipelines.prefixes, *blank], key=lambda each: (each.prefix, each.source))


def _view_prefix(state: ConsoleState, facts: PrefixFacts) -> PrefixView:
    transactions = [
        each
        for each in state.transactions
        if each.views.spark is not None and each.views.spark.prefix == facts.prefix
    ]
    decision = facts.decision
    decided_ids = set() if decision is None else {each.transactional_id for each in decision.participants}
    worst = min((each.health for each in transactions), key=SEVERITY.__getitem__, default=Health.OK)
    return PrefixView(
        prefix=facts.prefix,
        source=facts.source,
        health=worst.value,
        query_id=None if decision is None else decision.query_id,
        batch_id=None if decision is None else decision.batch_id,
        decided_ms=None if decision is None else decision.decided_ms,
        decision_number=None if decision is None else decision.number,
        mode="" if decision is None else decision.mode,
        is_complete=facts.is_complete,
        offsets=None if decision is None else decision.offsets,
        participants=() if decision is None else _view_participants(state, facts, decision),
        undecided=tuple(build_key(each) for each in transactions if each.transactional_id not in decided_ids),
        batches=() if decision is None else tuple(map(_view_batch, reversed(decision.batches))),
        writes=() if decision is None else tuple(map(_view_batch, reversed(decision.writes))),
        resolve_command=_format_resolve(state, facts, transactions),
        missing=_describe_missing(facts),
    )


def _view_batch(checksums: JobChecksums) -> BatchView:
    return BatchView(
        name=str(checksums.name), row_counts=tuple(each.rows for each in checksums.row_checksums)
    )


def _view_participants(
    state: ConsoleState, facts: PrefixFacts, decision: Decision
) -> tuple[ParticipantView, ...]:
    descriptions = state.snapshot.transactions.descriptions
    views = []
    for each in decision.participants:
        description = descriptions.get(each.transactional_id)
        if facts.is_complete:
            outcome = "committed"
        elif description is None:
            outcome = "not known"
        elif description.state in OPEN_STATES and description.writer == each.identity:
            outcome = "open"
        else:
            outcome = description.state
        views.append(
            ParticipantView(
                transactional_id=each.transactional_id,
                producer=format_identity(each.identity),
                outcome=outcome,
                key=each.transactional_id,
            )
        )
    return tuple(views)


def _describe_missing(facts: PrefixFacts) -> str:
    if not facts.source:
        return "It has decided nothing that is read here: it is new, or its decisions are elsewhere."
    if not facts.is_noted_only or facts.note is None:
        return ""
    return (
        "The database or lake table that has its decisions is not read here: give it as --store. Kafka has "
        f"a note of decision {facts.note.number}: {facts.note.description}."
    )


def _format_resolve(state: ConsoleState, facts: PrefixFacts, transactions: list[AssessedTransaction]) -> str:
    """Return the command that would end what the query has left; empty if nothing is open."""
    if not transactions or facts.is_noted_only or not facts.source:
        return ""
    servers = state.snapshot.bootstrap_servers
    return f"{commands.resolve_source_command(servers, facts.prefix, facts.source)} --dry-run"
