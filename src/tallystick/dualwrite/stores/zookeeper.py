"""Store for ZooKeeper (kazoo): rows as znodes, and one `multi` for each transaction.

`/kafka_transaction_state/<id>` holds the row of an id, percent-encoded so that a slash creates no subnode.

Fencing: the version of the znode. `record` reads the row, compares its owner, and adds to the `multi` a write
conditional on that version. A claim writes the znode, so every `multi` of an earlier owner fails from then
on, including one still in flight [DW-1], [DW-2]. The znodes must not be deleted while a writer is running: a
new znode counts its versions from 0 again.

A server acknowledges once its quorum has written to disk, unless `forceSync=no`, which no client can see.
Source: ZooKeeper Programmer's Guide, "Consistency Guarantees"; ZooKeeper 3.8 `multi`.
"""

import secrets
from collections.abc import Iterable, Sequence
from typing import Final
from urllib.parse import quote, unquote

from kazoo.client import KazooClient, TransactionRequest
from kazoo.exceptions import (
    BadVersionError,
    NodeExistsError,
    NoNodeError,
    RolledBackError,
    RuntimeInconsistency,
)
from kazoo.protocol.serialization import Transaction

from tallystick.dualwrite.errors import BadStore, CommitUnknown, ManagedByWriter, NotCommitted, WriterFenced
from tallystick.dualwrite.forks import OwningProcess
from tallystick.dualwrite.rules.model import TABLE, StoredState, from_bytes, to_bytes
from tallystick.dualwrite.stores.base import check_record

CLAIM_ATTEMPTS_MAX: Final = 100
COMMIT_SECONDS_MAX: Final = 30.0
_HEADER_BYTES: Final = 8  # of a request: xid and type
_CONNECT_AFTER_FORK: Final = "Start a client, and make its store, in each process, after the fork"


class ZooKeeperTransaction:
    """A kazoo TransactionRequest committed by the store. Used by one thread."""

    def __init__(self, store: "ZooKeeperStore") -> None:
        self._store = store
        self._rows: list[tuple[int, StoredState]] = []
        self._ended = False
        self.request: TransactionRequest = store.client.transaction()
        """The request for creating, setting and deleting nodes."""

    @property
    def handle(self) -> TransactionRequest:
        return self.request

    def record(self, row: StoredState, before: StoredState | None = None) -> None:
        """Add the row to the `multi`, conditional on the node version that has `row.owner`.

        Raises: ValueError for a request that is too large for the servers.
        """
        self._check_open()
        now, version = self._store.read_versioned(row.transactional_id)
        check_record(now, row, before)
        self._rows.append((len(self.request.operations), row))
        self.request.set_data(self._store.path_of(row.transactional_id), to_bytes(row), version)
        size_bytes = _HEADER_BYTES + len(Transaction(self.request.operations).serialize())
        if size_bytes > self._store.request_bytes_max:
            raise ValueError(
                f"the nodes of this block are a request of {size_bytes} bytes, and ZooKeeper's servers close "
                f"a connection at more than {self._store.request_bytes_max} (jute.maxbuffer). Nothing was "
                "sent, and neither side is committed: write them in several blocks"
            )

    def commit(self) -> None:
        """Send the `multi`. Raises: NotCommitted by WriterFenced or another refusal; CommitUnknown."""
        try:
            self._store.check_process()
            self._check_open()
        except ManagedByWriter as exc:
            raise NotCommitted(exc) from exc
        self._ended = True
        if not self.request.operations:
            return
        pending = self.request.commit_async()
        try:
            results = pending.get(timeout=self._store.commit_timeout_s)
        except Exception as exc:
            # Lost connection, lost session or timeout: the request may have arrived.
            raise CommitUnknown(f"ZooKeeper did not answer the multi: {exc!r}") from exc
        self._raise_if_refused(results)

    def _raise_if_refused(self, results: Sequence[object]) -> None:
        """Raise the reason of a refused `multi`: one operation has it, the others were only rolled back."""
        refusals = [
            (at, result)
            for at, result in enumerate(results)
            if isinstance(result, Exception)
            and not isinstance(result, RolledBackError | RuntimeInconsistency)
        ]
        rows = dict(self._rows)
        for at, refusal in refusals:
            if at in rows and isinstance(refusal, BadVersionError | NoNodeError):
                row = rows[at]
                raise NotCommitted(WriterFenced(row.transactional_id, row.owner)) from refusal
            raise NotCommitted(refusal)

    def rollback(self) -> None:
        """End the transaction; nothing was sent."""
        self._ended = True

    def _check_open(self) -> None:
        if self._ended:
            raise ManagedByWriter("this transaction has ended")
        if self.request.committed:
            raise ManagedByWriter("the request was committed already; leave that to the writer")


class ZooKeeperStore:
    """A store under one path of a connected client. The client stays open."""

    database_system: Final = "zookeeper"
    request_bytes_max = 0xFFFFF
    """The servers' `jute.maxbuffer`, which no client can ask for. Set it where theirs is not the default."""

    def __init__(
        self, client: KazooClient, path: str = f"/{TABLE}", *, commit_timeout_s: float = COMMIT_SECONDS_MAX
    ) -> None:
        """Use a started client.

        Args:
            client: started; the caller owns its session. Its `default_acl` is used for the nodes.
            commit_timeout_s: seconds to wait for the answer to a commit before it counts as lost.
        """
        self._owning_process = OwningProcess()
        self._owning_process.claim_process("this session")
        self.client = client
        self.path = path.rstrip("/")
        self.commit_timeout_s = commit_timeout_s

    def check_process(self) -> None:
        """Raise ManagedByWriter in a fork of the client's process, where no thread would answer [DW-11]."""
        self._owning_process.check_process("this session of ZooKeeper", _CONNECT_AFTER_FORK)

    def create(self) -> None:
        """Create the path if missing, and validate its rows."""
        self.check_process()
        self.client.ensure_path(self.path)
        for transactional_id in self.transactional_ids():
            self.read_state(transactional_id)

    def claim(self, transactional_id: str) -> StoredState:
        """Take over the node, without waiting: a `multi` that arrives later finds another version."""
        path, owner = self.path_of(transactional_id), secrets.token_hex(16)
        for _ in range(CLAIM_ATTEMPTS_MAX):
            stored_row, version = self.read_versioned(transactional_id)
            row = (
                stored_row.owned_by(owner)
                if stored_row
                else StoredState(transactional_id=transactional_id, owner=owner)
            )
            try:
                if stored_row:
                    self.client.set(path, to_bytes(row), version)
                else:
                    self.client.create(path, to_bytes(row))
            except (BadVersionError, NodeExistsError):
                continue  # another client wrote it in between
            except NoNodeError as exc:
                if stored_row is None:
                    raise BadStore(f"there is no {self.path}; create() makes it") from exc
                continue
            return row
        raise CommitUnknown(
            f"{path} was written by others {CLAIM_ATTEMPTS_MAX} times while it was to be claimed"
        )

    def begin(self) -> ZooKeeperTransaction:
        """Begin a transaction with a new request."""
        self.check_process()
        return ZooKeeperTransaction(self)

    def read_state(self, transactional_id: str) -> StoredState | None:
        """Return the row as the quorum has it."""
        row, _ = self.read_versioned(transactional_id)
        return row

    def read_versioned(self, transactional_id: str) -> tuple[StoredState | None, int]:
        """Return the row and the version of its node; (None, 0) if there is none."""
        self.check_process()
        path = self.path_of(transactional_id)
        # A server may lag behind its leader; after a sync it has seen all earlier commits.
        self.client.sync(self.path)
        try:
            data, stat = self.client.get(path)
        except NoNodeError:
            return None, 0
        return from_bytes(transactional_id, data), stat.version

    def transactional_ids(self) -> Iterable[str]:
        """Return every id that has a node, in order."""
        self.check_process()
        self.client.sync(self.path)
        try:
            return sorted(unquote(name) for name in self.client.get_children(self.path))
        except NoNodeError as exc:
            raise BadStore(f"there is no {self.path}; create() makes it") from exc

    def close(self) -> None:
        """Do nothing: the caller owns the client."""

    def path_of(self, transactional_id: str) -> str:
        """Return the path of an id's node."""
        name = quote(transactional_id, safe="")
        # ZooKeeper does not allow "." and ".." as node names.
        return f"{self.path}/{name if name.strip('.') else name.replace('.', '%2E')}"
