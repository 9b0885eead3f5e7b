"""Operator recovery after a host is lost: finish every transactional id in a store."""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from tallystick.dualwrite.errors import Halted, Torn
from tallystick.dualwrite.recovery import RecoveredId
from tallystick.dualwrite.stores.base import Store
from tallystick.dualwrite.writer import DualWriter
from tallystick.kernel.errors import TallystickError
from tallystick.kernel.value import Value


class ResolvedId(Value, kw_only=True):
    """The result for one id: the recovery report, or the failure.

    is_contradiction  the halves differ or must not be changed, so a retry does not help
    """

    transactional_id: str
    recovered: RecoveredId | None = None
    failure: str = ""
    is_contradiction: bool = False


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
            yield ResolvedId(
                transactional_id=each,
                failure=describe_error(exc),
                is_contradiction=isinstance(exc, Halted | Torn),
            )


def describe_error(exc: Exception) -> str:
    """Describe an error in one line, without the SQL statement that SQLAlchemy adds."""
    if isinstance(exc, TallystickError):
        return str(exc)
    cause = getattr(exc, "orig", None) or exc
    return " ".join(f"{type(cause).__name__}: {cause}".split())
