"""The object store of a process of tests."""

import atexit
from functools import cache

import pytest

pytest.importorskip("moto", reason="needs moto's server")

from tools.servers.object_store import ObjectStore


@cache
def get_object_store() -> ObjectStore:
    """Return this process's store: its start takes a second or two, and a bucket of a test's own nothing."""
    store = ObjectStore()
    atexit.register(store.stop)
    return store
