"""The only place that imports late: what a command needs and the broker must not load."""

from importlib import import_module
from types import ModuleType


def load(name: str) -> ModuleType:
    """Import a module now."""
    return import_module(name)
