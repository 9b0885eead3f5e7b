"""What an operator does after a host is gone: finish every transactional id that a store has."""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from tallystick.dualwrite.errors import Halted, Torn
from tallystick.dualwrite.recovery import Recovered
from tallystick.dualwrite.stores.base import Store
from tallystick.dualwrite.writer import DualWriter
from tallystick.kernel.errors import TallystickError
from tallystick.kernel.value import frozen


@frozen(kw_only=True)
class Resolved:
    """What became of one id: what was found and done, or why it was not.

    contradicts  the halves differ, or must not be touched: trying again does not help
    """

    transactional_id: str
    recovered: Recovered | None = None
    failure: str = ""
    contradicts: bool = False


def resolve(
    store: Store[Any], config: Mapping[str, object], ids: Iterable[str] = (), *, dry_run: bool
) -> Iterator[Resolved]:
    """Recover each id under a writer of its own, which fences whoever has it. One failure hides no other.

    Args:
        config: of the producers, without `transactional.id`.
        ids: only these, of those that the store has; all of them if there are none.
        dry_run: look only, in both halves, and change neither.
    """
    for each in ids or list(store.transactional_ids()):
        try:
            if store.read_state(each) is None:  # it may be another store's, which has decided
                yield Resolved(transactional_id=each, failure="the store has no row of it; nothing was done")
                continue
            with DualWriter(store, {**config, "transactional.id": each}) as writer:
                (found,) = (writer.look() if dry_run else writer.recover()).ids
                yield Resolved(transactional_id=each, recovered=found)
        except Exception as exc:  # of the client, or of the database's driver, and of no one class
            yield Resolved(
                transactional_id=each, failure=told_of(exc), contradicts=isinstance(exc, Halted | Torn)
            )


def told_of(exc: Exception) -> str:
    """What failed, in one line and without the statement, which SQLAlchemy adds."""
    if isinstance(exc, TallystickError):
        return str(exc)
    told = getattr(exc, "orig", None) or exc
    return " ".join(f"{type(told).__name__}: {told}".split())
