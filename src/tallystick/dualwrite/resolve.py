"""Operator recovery after a host is lost: finish every transactional id in a store, or the expired ones."""

import secrets
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Any, Final

from tallystick.dualwrite.blocking.leased_store import LeasedStore
from tallystick.dualwrite.blocking.writer import DualWriter
from tallystick.dualwrite.errors import Halted, Torn
from tallystick.dualwrite.pool_rules import describe_process
from tallystick.dualwrite.rules.lease_rules import LeaseRow, LeaseState, LeaseTaking
from tallystick.dualwrite.rules.recovery import RecoveredId
from tallystick.dualwrite.stores.base import LeaseStore, Store
from tallystick.kernel.errors import TallystickError
from tallystick.kernel.value import Value, replace

RESOLVE_LEASE_MS: Final = 300_000
"""Lease of an id that is resolved, which is not renewed; if it expires, others may recover the id as well."""


class ResolvedId(Value, kw_only=True):
    """The result for one id: the recovery report, or the failure.

    is_contradiction  the halves differ or must not be changed, so a retry does not help
    error             what `failure` describes, if something was raised: it tells what may have happened
    """

    transactional_id: str
    recovered: RecoveredId | None = None
    failure: str = ""
    error: Exception | None = None
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
            if not dry_run and not store.take_lease(taking):
                continue
            view = LeasedStore(store, holder)
            with DualWriter(view, {**config, "transactional.id": transactional_id}, pooled=True) as writer:
                (recovered,) = (writer.look() if dry_run else writer.recover()).ids
            if not dry_run:
                store.release_lease(transactional_id, holder)
            yield ResolvedId(transactional_id=transactional_id, recovered=recovered)
        except Exception as exc:  # client and database driver errors have no common base class
            yield _describe_failure(transactional_id, exc)


def resolve(
    store: Store[Any], config: Mapping[str, object], ids: Iterable[str] = (), *, dry_run: bool
) -> Iterator[ResolvedId]:
    """Recover each id with its own writer, which fences the current one. Failures do not stop the rest.

    Args:
        config: producer settings without `transactional.id`.
        ids: ids to recover; every id of the store if empty.
        dry_run: read both halves and change neither.
    """
    for each in ids or list(store.transactional_ids()):
        try:
            if store.read_state(each) is None:  # another store may hold the row that decides this id
                yield ResolvedId(
                    transactional_id=each, failure="the store has no row of it; nothing was done"
                )
                continue
            with DualWriter(store, {**config, "transactional.id": each}) as writer:
                (recovered,) = (writer.look() if dry_run else writer.recover()).ids
                yield ResolvedId(transactional_id=each, recovered=recovered)
        except Exception as exc:  # client and database driver errors have no common base class
            yield _describe_failure(each, exc)


def _describe_failure(transactional_id: str, exc: Exception) -> ResolvedId:
    return ResolvedId(
        transactional_id=transactional_id,
        failure=describe_error(exc),
        error=exc,
        is_contradiction=isinstance(exc, Halted | Torn),
    )


def describe_error(exc: Exception) -> str:
    """Describe an error in one line, without the SQL statement that SQLAlchemy adds."""
    if isinstance(exc, TallystickError):
        return str(exc)
    cause = getattr(exc, "orig", None) or exc
    return " ".join(f"{type(cause).__name__}: {cause}".split())
