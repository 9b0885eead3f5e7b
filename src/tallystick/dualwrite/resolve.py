"""Operator recovery after a host is lost: finish every transactional id in a store, or the expired ones."""

import logging
import secrets
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Any, Final

from tallystick.admin.txn.completion import find_modes
from tallystick.dualwrite.blocking.leases import LeasedStore
from tallystick.dualwrite.blocking.writer import DualWriter
from tallystick.dualwrite.errors import HeuristicMixed, RecoveryHalted
from tallystick.dualwrite.rules.leases import LeaseRow, LeaseState, LeaseTaking
from tallystick.dualwrite.rules.model import StoredState
from tallystick.dualwrite.rules.pooling import describe_process
from tallystick.dualwrite.rules.recovery import RecoveredId, Verdict
from tallystick.dualwrite.stores.base import LeaseStore, Store
from tallystick.kernel.errors import TallystickError
from tallystick.kernel.value import Value, replace

_audit = logging.getLogger("tallystick.audit")

RESOLVE_LEASE_MS: Final = 300_000
"""Lease of an id that is resolved, which is not renewed; if it expires, others may recover the id as well."""


class ResolvedId(Value, kw_only=True):
    """The result for one id: the recovery report, or the failure.

    has_changed       it was left alone: something else was true of it than what was expected
    is_contradiction  the sides differ or must not be changed, so a retry does not help
    error             what `failure` describes, if something was raised: it tells what may have happened
    """

    transactional_id: str
    recovered: RecoveredId | None = None
    failure: str = ""
    error: Exception | None = None
    has_changed: bool = False
    is_contradiction: bool = False


class ExpiredIds(Value, kw_only=True):
    """The ids that `resolve_expired` would resolve, and how many others there are.

    held_count      ids of processes that renew their leases, or that were given back
    unleased_count  ids without a lease, whose writers have names of their own
    """

    leases: tuple[LeaseRow, ...]
    held_count: int
    unleased_count: int

    @property
    def ids(self) -> list[str]:
        return [row.transactional_id for row in self.leases]


def find_expired_ids(store: LeaseStore[Any], ids: Collection[str] = ()) -> ExpiredIds:
    """Find the ids whose lease has expired by the database's clock.

    Args:
        ids: consider only these; all if empty.
    """
    leases = store.read_leases()
    considered = [row for row in leases.rows if not ids or row.transactional_id in ids]
    expired = [row for row in leases.select(LeaseState.EXPIRED) if row in considered]
    stored = [each for each in store.transactional_ids() if not ids or each in ids]
    leased_ids = {row.transactional_id for row in leases.rows}
    return ExpiredIds(
        leases=tuple(expired),
        held_count=len(considered) - len(expired),
        unleased_count=sum(each not in leased_ids for each in stored),
    )


def resolve_expired(
    store: LeaseStore[Any], config: Mapping[str, object], leases: Iterable[LeaseRow], *, dry_run: bool
) -> Iterator[ResolvedId]:
    """Recover each id whose lease has expired, and give it back. Failures do not stop the rest.

    A live process is not fenced: its lease is taken over first, which fails if it was renewed meanwhile.

    Args:
        leases: as `find_expired_ids` returned them.
    """
    holder = secrets.token_hex(16)
    for each in leases:
        row = replace(each, holder=holder, holder_info=f"{describe_process()}: transactions resolve")
        taking = LeaseTaking(row=row, former=each, duration_ms=RESOLVE_LEASE_MS)
        transactional_id = each.transactional_id
        try:
            is_taken = not dry_run and store.take_lease(taking)
            view = LeasedStore(store, holder)
            stored = view.read_state(transactional_id) or StoredState(
                transactional_id=transactional_id, owner=""
            )
            with _create_writer(view, config, stored, pooled=True) as writer:
                (recovered,) = (writer.recover() if is_taken else writer.inspect()).ids
            if is_taken:
                store.release_lease(transactional_id, holder)
            elif not dry_run:
                recovered = replace(
                    recovered, action="left alone: its lease was taken, renewed or given back"
                )
            yield ResolvedId(transactional_id=transactional_id, recovered=recovered)
        except Exception as exc:  # client and database driver errors have no common base class
            yield _describe_failure(transactional_id, exc)


def resolve(
    store: Store[Any],
    config: Mapping[str, object],
    ids: Iterable[str] = (),
    *,
    dry_run: bool,
    expectations: Mapping[str, RecoveredId] | None = None,
) -> Iterator[ResolvedId]:
    """Finish each id that has something to finish, with a writer of its own. Failures do not stop the rest.

    Both sides are read first. Only an id whose open transaction is to be committed or aborted is claimed,
    which fences its writer; every other one, of a writer that is well or of sides that contradict each
    other, is left alone.

    Args:
        config: producer settings without `transactional.id`. Without modes, those that fit each transaction
            are used.
        ids: ids to finish; every id of the store if empty. What the cluster does not show is finished only
            if it is named here.
        dry_run: read both sides and change neither.
        expectations: what a dry run has found; an id of which anything else is true by now is left alone.
            Verdict and action follow from it, and are not compared.
    """
    named = tuple(ids)
    for each in named or list(store.transactional_ids()):
        try:
            row = store.read_state(each)
            if row is None:  # another store may hold the row that decides this id
                yield ResolvedId(
                    transactional_id=each, failure="the store has no row of it; nothing was done"
                )
                continue
            with _create_writer(store, config, row) as writer:
                (line,) = writer.inspect().ids
                if dry_run:
                    yield ResolvedId(transactional_id=each, recovered=line)
                elif expectations is not None and not _is_as_shown(line, expectations[each]):
                    action = f"left alone: {HAS_CHANGED}"
                    yield ResolvedId(
                        transactional_id=each, recovered=replace(line, action=action), has_changed=True
                    )
                elif not is_to_finish(line, is_named=each in named):
                    yield leave_alone(line)
                else:
                    (recovered,) = writer.recover().ids
                    yield ResolvedId(transactional_id=each, recovered=recovered)
        except Exception as exc:  # client and database driver errors have no common base class
            yield _describe_failure(each, exc)


def accept_mixed(
    store: Store[Any], config: Mapping[str, object], transactional_id: str, expectation: RecoveredId
) -> ResolvedId:
    """Accept that the sides of an id differ for good, so that its writers can go on. Nothing is repaired.

    Args:
        config: as for `resolve`.
        expectation: what a dry run has found, with the verdict TEAR or LACK. If anything else is true by
            now, the id is left alone.
    """
    audit_text = f"accept-mixed {transactional_id!r} {expectation.finding.name}"
    _audit.warning(
        "%s, database %s, in doubt %s", audit_text, expectation.state or "-", expectation.in_doubt or "-"
    )
    try:
        row = store.read_state(transactional_id)
        if row is None:
            raise RecoveryHalted("the store has no row of it any more; nothing was done")
        with _create_writer(store, config, row) as writer:
            (line,) = writer.inspect().ids
            if line != expectation or line.verdict not in (Verdict.TEAR, Verdict.LACK):
                raise RecoveryHalted("it has changed since it was shown; nothing was done")
            (line,) = writer.recover(accept_mixed=True).ids
            result = ResolvedId(transactional_id=transactional_id, recovered=line)
    except Exception as exc:  # client and database driver errors have no common base class
        result = _describe_failure(transactional_id, exc)
    _audit.warning("%s: %s", audit_text, result.failure or "accepted")
    return result


CONTRADICTIONS: Final = {
    Verdict.TEAR: "send its records again or take its rows back, then name it with --accept-mixed",
    Verdict.LACK: "look whether this is its database; write the rows again or make up for the records, then "
    "name it with --accept-mixed",
    Verdict.HALT: "end nothing before it is clear which side has lost something",
}


HAS_CHANGED: Final = "it has changed since it was shown: its writer is alive, or someone else has ended it"


def _is_as_shown(line: RecoveredId, expectation: RecoveredId) -> bool:
    return line == replace(expectation, verdict=line.verdict, action=line.action)


def is_to_finish(line: RecoveredId, *, is_named: bool) -> bool:
    """Return whether `resolve` claims an id of which this was found."""
    return line.verdict in (Verdict.COMMIT, Verdict.ABORT) or (
        is_named and line.verdict is Verdict.COMPARE and bool(line.state)
    )


def leave_alone(line: RecoveredId) -> ResolvedId:
    """Return the result for an id that is not claimed."""
    reason = CONTRADICTIONS.get(line.verdict or Verdict.NOTHING)
    text = reason or (
        "the cluster does not show it: name it to have it finished"
        if line.verdict is Verdict.COMPARE
        else "nothing to do"
    )
    return ResolvedId(
        transactional_id=line.transactional_id,
        recovered=replace(line, action=f"left alone: {text}"),
        failure="" if reason is None else f"{line.finding.value} [{line.finding.name}]: {reason}",
        is_contradiction=reason is not None,
    )


def _create_writer(
    store: Store[Any], config: Mapping[str, object], row: StoredState, *, pooled: bool = False
) -> DualWriter[Any]:
    """Create the writer of an id, in the modes that fit its row."""
    settings = find_modes(config, never_expires=bool(row.state) and row.timeout_ms is None)
    return DualWriter(store, {**settings, "transactional.id": row.transactional_id}, pooled=pooled)


def _describe_failure(transactional_id: str, exc: Exception) -> ResolvedId:
    return ResolvedId(
        transactional_id=transactional_id,
        failure=describe_error(exc),
        error=exc,
        is_contradiction=isinstance(exc, RecoveryHalted | HeuristicMixed),
    )


def describe_error(exc: Exception) -> str:
    """Describe an error in one line, without the SQL statement that SQLAlchemy adds."""
    if isinstance(exc, TallystickError):
        return str(exc)
    cause = getattr(exc, "orig", None) or exc
    return " ".join(f"{type(cause).__name__}: {cause}".split())
