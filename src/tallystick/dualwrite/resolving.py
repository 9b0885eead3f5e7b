"""What an operator does after a host is gone: finish every transactional id that a store has."""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from tallystick.dualwrite.errors import DualWriteError, Halted, Torn
from tallystick.dualwrite.recovery import Recovered
from tallystick.dualwrite.stores.base import Store
from tallystick.dualwrite.writer import DualWriter
from tallystick.errors import ClientError, InDoubt
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
        ids: only these; all that the store has if there are none.
        dry_run: look only, in both halves, and change neither.
    """
    for each in ids or list(store.transactional_ids()):
        try:
            with DualWriter(store, {**config, "transactional.id": each}) as writer:
                (found,) = (writer.look() if dry_run else writer.recover()).ids
                yield Resolved(transactional_id=each, recovered=found)
        except (DualWriteError, ClientError, InDoubt) as exc:
            yield Resolved(
                transactional_id=each, failure=str(exc), contradicts=isinstance(exc, Halted | Torn)
            )
