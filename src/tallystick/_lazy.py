"""The only place that imports late: what a command needs and the broker must not load, names on first use."""

import sys
from collections.abc import Callable, Mapping
from importlib import import_module
from types import ModuleType


def load(name: str) -> ModuleType:
    """Import a module now."""
    return import_module(name)


def attributes(module: str, names: Mapping[str, str]) -> Callable[[str], object]:
    """A module's `__getattr__` (PEP 562) that imports what a name stands for when it is first asked for.

    Args:
        names: each public name, and where it is: `package.module:attribute`, or `package.module` itself.
    """

    def find(name: str) -> object:
        if name not in names:
            raise AttributeError(f"module {module!r} has no attribute {name!r}")
        where, _, attribute = names[name].partition(":")
        found: object = load(where)
        if attribute:
            found = getattr(found, attribute)
        setattr(sys.modules[module], name, found)
        return found

    return find
