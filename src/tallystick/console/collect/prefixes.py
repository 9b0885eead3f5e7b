"""Decisions of topics and databases together. Pure."""

from collections.abc import Iterable

from tallystick.console.snapshot import PrefixFacts, StoreFacts
from tallystick.kernel.value import replace


def join_prefixes(
    topic_prefixes: Iterable[PrefixFacts], stores: Iterable[StoreFacts]
) -> tuple[PrefixFacts, ...]:
    """Join the decisions of topics and of databases, of which the cluster has a note each."""
    topic_prefixes = tuple(topic_prefixes)
    in_stores = [each for store in stores for each in store.prefixes]
    names_in_stores = {each.prefix for each in in_stores}
    notes = {each.prefix: each.note for each in topic_prefixes if each.decision is None}
    decided = [
        each for each in topic_prefixes if each.decision is not None or each.prefix not in names_in_stores
    ]
    noted = [replace(each, note=notes.get(each.prefix, each.note)) for each in in_stores]
    return tuple(sorted([*decided, *noted], key=lambda each: (each.prefix, each.source)))
