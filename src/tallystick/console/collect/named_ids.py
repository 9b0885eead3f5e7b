"""Which transactional ids to describe although nothing of them is open. Pure.

A store's rows and a decision name transactions that should be finished. Whether they are, only their
coordinators know. There may be many such ids, and few change: those whose row or decision has changed since
they were described come first, then those that were described longest ago.
"""

from collections.abc import Collection, Iterable, Mapping

from tallystick.admin.model import TransactionDescription
from tallystick.console.model.snapshot import PrefixFacts, StoreFacts
from tallystick.kernel.value import Value


class DescribedId(Value, kw_only=True):
    """A named id as it was described last.

    evidence     what named it then
    description  None if no coordinator knows the id, or if it may not be described
    is_known     False if its coordinator does not know it
    """

    evidence: object
    description: TransactionDescription | None
    is_known: bool
    at_ms: int


def list_named_ids(stores: Iterable[StoreFacts], prefixes: Iterable[PrefixFacts]) -> Mapping[str, object]:
    """Return the ids whose transactions may have to be finished, each with what names it.

    Settled rows come last: nothing of them is expected, but a database that was restored to an older state
    has a row that is settled and behind the cluster.
    """
    named: dict[str, object] = {}
    rows = [(name, row) for store in stores for name, row in store.rows.items() if row.state]
    for name, row in sorted(rows, key=lambda each: each[1].settled):
        named[name] = (row.state, row.completing)
    for each in prefixes:
        if each.decision is not None and not each.is_complete:
            for participant in each.decision.participants:
                named[participant.transactional_id] = each.decision.nonce
    return named


def choose_ids(
    named: Mapping[str, object],
    open_ids: Collection[str],
    described: Mapping[str, DescribedId],
    *,
    count_max: int,
    only_changed: bool,
) -> tuple[str, ...]:
    """Choose the ids to describe now; those in an open state are described with the open transactions.

    Args:
        only_changed: only ids that were not described since what names them changed.
    """

    def rank(name: str) -> tuple[bool, int]:
        last = described.get(name)
        return is_current(named, name, last), 0 if last is None else last.at_ms

    wanted = (name for name in named if name not in open_ids)
    if only_changed:
        wanted = (name for name in wanted if not is_current(named, name, described.get(name)))
    return tuple(sorted(wanted, key=rank)[:count_max])


def is_current(named: Mapping[str, object], name: str, last: DescribedId | None) -> bool:
    """Return whether an id was described since what names it changed."""
    return last is not None and last.evidence == named.get(name)
