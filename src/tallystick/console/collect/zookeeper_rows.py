"""Rows of a ZooKeeper store, over one session that is kept."""

from contextlib import ExitStack
from itertools import islice
from typing import Final

from kazoo.exceptions import NoNodeError

from tallystick.console.collect.failures import limit_sentences
from tallystick.console.model.snapshot import PartStatus, StoreFacts, StoreKind
from tallystick.dualwrite.errors import CorruptRow
from tallystick.dualwrite.rules.model import StoredState, from_bytes
from tallystick.dualwrite.stores.by_url import open_store
from tallystick.dualwrite.stores.zookeeper import ZooKeeperStore

IN_FLIGHT_MAX: Final = 500


def open_zookeeper_rows(url: str, name: str, limit_ms: int) -> "ZooKeeperRows":
    """Connect to the servers of a URL. Raises: BadConfig, BadStore."""
    stack = ExitStack()
    store = stack.enter_context(open_store(url))
    assert isinstance(store, ZooKeeperStore)
    return ZooKeeperRows(store, stack, name, limit_ms)


class ZooKeeperRows:
    """`RowSource` of a path in ZooKeeper."""

    folder = None

    def __init__(self, store: ZooKeeperStore, stack: ExitStack, name: str, limit_ms: int) -> None:
        self._store, self._stack, self._name, self._limit_s = store, stack, name, limit_ms / 1000

    def read(self) -> StoreFacts:
        failures: list[str] = []
        rows: dict[str, StoredState] = {}
        names = iter(list(self._store.transactional_ids()))  # after a sync with the leader
        while some := list(islice(names, IN_FLIGHT_MAX)):
            pending = [(name, self._store.client.get_async(self._store.path_of(name))) for name in some]
            for name, answer in pending:
                try:
                    data, _ = answer.get(timeout=self._limit_s)
                    rows[name] = from_bytes(name, data)
                except NoNodeError:
                    continue  # deleted since it was listed
                except CorruptRow as exc:
                    failures.append(str(exc))
        return StoreFacts(
            status=PartStatus(failures=limit_sentences(failures)),
            name=self._name,
            kind=StoreKind.ZOOKEEPER,
            engine="ZooKeeper",
            rows=rows,
        )

    def close(self) -> None:
        self._stack.close()
