"""Decisions of topics and databases together. Pure."""

from collections.abc import Iterable

from tallystick.console.model.snapshot import PrefixFacts, StoreFacts
from tallystick.kernel.value import replace


def join_prefixes(
    topic_prefixes: Iterable[PrefixFacts], stores: Iterable[StoreFacts]
) -> tuple[PrefixFacts, ...]:
    """Join the decisions of topics and of databases, of which the cluster has a note each."""
    topic_prefixes = tuple(topic_prefixes)
    in_stores = [each for store in stores for each in store.prefixes]
    names_in_stores = {each.prefix for each in in_stores}
    notes = {each.prefix: each for each in topic_prefixes if each.decision is None}
    decided = [
        each for each in topic_prefixes if each.decision is not None or each.prefix not in names_in_stores
    ]
    noted = [_add_note(each, notes.get(each.prefix)) for each in in_stores]
    return tuple(sorted([*decided, *noted], key=lambda each: (each.prefix, each.source)))


def _add_note(stored: PrefixFacts, noted: PrefixFacts | None) -> PrefixFacts:
    """Add what the cluster has noted of a decision; a lake table keeps nowhere else that it is completed."""
    if noted is None:
        return stored
    nonce = None if stored.decision is None else stored.decision.nonce
    is_complete = stored.is_complete or (nonce is not None and nonce == noted.completed_nonce)
    return replace(stored, note=noted.note, is_complete=is_complete)
