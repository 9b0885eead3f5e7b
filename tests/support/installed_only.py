"""Hide, in this process, every library but those that chosen extras install.

A program that must run in an environment of its own, without building one: what an extra forgets to name, or
finds only because something else installed it, is as absent here as for its user.
"""

import re
import sys
from collections.abc import Collection, Iterator, Sequence
from importlib import metadata
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Final

from packaging.requirements import Requirement


class _Hidden:
    """A finder that finds nothing: it says of the modules of other distributions that they are missing."""

    def __init__(self, distributions: Collection[str]) -> None:
        self._distributions: Final = distributions
        self._owners: Final = metadata.packages_distributions()

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        owners = {_normalize(owner) for owner in self._owners.get(name.partition(".")[0], ())}
        if owners and owners.isdisjoint(self._distributions):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
        return None


def hide_others(*extras: str) -> None:
    """Make impossible to import, from now on, what these extras do not install."""
    distributions = list_distributions("tallystick", extras)
    loaded = [name for name in sys.modules if name.partition(".")[0] == "tallystick"]
    for name in loaded:
        del sys.modules[name]
    sys.meta_path.insert(0, _Hidden(distributions))
    real_distribution = metadata.distribution

    def find_distribution(name: str) -> metadata.Distribution:
        if _normalize(name) not in distributions:
            raise metadata.PackageNotFoundError(name)
        return real_distribution(name)

    metadata.distribution = find_distribution


def list_distributions(name: str, extras: Collection[str] = ()) -> set[str]:
    """Return the normalized names of a distribution and all that it requires with these extras."""
    names: set[str] = set()
    queue = [(name, frozenset(extras))]
    seen: set[tuple[str, frozenset[str]]] = set()
    while queue:
        entry = queue.pop()
        if entry in seen:
            continue
        seen.add(entry)
        names.add(_normalize(entry[0]))
        queue.extend(_list_requirements(*entry))
    return names


def _list_requirements(name: str, extras: frozenset[str]) -> Iterator[tuple[str, frozenset[str]]]:
    try:
        requirements = metadata.requires(name) or ()
    except metadata.PackageNotFoundError:  # for another platform, or not installed here
        return
    for requirement in map(Requirement, requirements):
        marker = requirement.marker
        if marker is None or any(marker.evaluate({"extra": extra}) for extra in extras or ("",)):
            yield requirement.name, frozenset(requirement.extras)


def _normalize(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()
