"""Rows of dual writes in a table of a lake. Nothing is kept open; each reading sees the newest version."""

from contextlib import ExitStack
from typing import Any

from tallystick.console.collect.failures import limit_sentences
from tallystick.console.snapshot import PartStatus, StoreFacts, StoreKind
from tallystick.dualwrite.errors import BadRow
from tallystick.dualwrite.model import StoredState
from tallystick.dualwrite.stores.base import Store
from tallystick.dualwrite.stores.by_url import open_store


def open_lake_rows(url: str, name: str, limit_ms: int) -> "LakeRows":
    """Open the table of a URL. Raises: BadConfig, BadStore, MissingLibrary."""
    stack = ExitStack()
    return LakeRows(stack.enter_context(open_store(url)), stack, name)


class LakeRows:
    """`RowSource` of a table."""

    def __init__(self, store: Store[Any], stack: ExitStack, name: str) -> None:
        self._store, self._stack, self._name = store, stack, name

    def read(self) -> StoreFacts:
        failures: list[str] = []
        rows: dict[str, StoredState] = {}
        for transactional_id in self._store.transactional_ids():
            try:
                row = self._store.read_state(transactional_id)
            except BadRow as exc:
                failures.append(str(exc))
                continue
            if row is not None:
                rows[transactional_id] = row
        return StoreFacts(
            status=PartStatus(failures=limit_sentences(failures)),
            name=self._name,
            kind=StoreKind.LAKE,
            engine="Delta",
            rows=rows,
        )

    def close(self) -> None:
        self._stack.close()
