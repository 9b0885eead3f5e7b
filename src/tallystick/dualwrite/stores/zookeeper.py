"""ZooKeeper through kazoo: the rows are nodes, and a transaction is one `multi`.

`/kafka_transaction_state/<id>` holds the row of an id. The id is percent-encoded: slashes make no folders.

What fences: the version of the node. `record` reads the row, compares its owner, and puts into the `multi` a
write that is good for that version alone; a claim writes the node, so every `multi` of an earlier owner fails
from then on, one that is still on its way included [DW-1], [DW-2]. Nobody may delete the nodes while a
writer lives: a new node counts its versions from 0 again.

A server acknowledges what its quorum has on disk, unless it was told `forceSync=no`; no client can see that.
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

from tallystick.dualwrite.errors import BadStore, CommitUnknown, Fenced, NotCommitted, NotYours
from tallystick.dualwrite.model import TABLE, StoredState, from_bytes, to_bytes
from tallystick.dualwrite.stores.base import check_record

CLAIM_ATTEMPTS_MAX: Final = 100
COMMIT_SECONDS_MAX: Final = 30.0


class ZooKeeperTransaction:
    """A TransactionRequest of kazoo that the store commits. Used by one thread."""

    def __init__(self, store: "ZooKeeperStore") -> None:
        self._store = store
        self._rows: list[tuple[int, StoredState]] = []
        self._ended = False
        self.request: TransactionRequest = store.client.transaction()
        """Create, set and delete nodes here."""

    @property
    def handle(self) -> TransactionRequest:
        return self.request

    def record(self, row: StoredState, before: StoredState | None = None) -> None:
        """Put the row into the `multi`, good for the version of the node that has `row.owner`."""
        self._check_open()
        now, version = self._store.read(row.transactional_id)
        check_record(now, row, before)
        self._rows.append((len(self.request.operations), row))
        self.request.set_data(self._store.path_of(row.transactional_id), to_bytes(row), version)

    def commit(self) -> None:
        """Send the `multi`. Raises: NotCommitted by Fenced or another refusal; CommitUnknown."""
        try:
            self._check_open()
        except NotYours as exc:
            raise NotCommitted(exc) from exc
        self._ended = True
        if not self.request.operations:
            return
        pending = self.request.commit_async()
        try:
            results = pending.get(timeout=self._store.commit_timeout_s)
        except Exception as exc:
            # A lost connection, a lost session, no answer in time: it may have arrived.
            raise CommitUnknown(f"ZooKeeper did not answer the multi: {exc!r}") from exc
        self._raise_refusal(results)

    def _raise_refusal(self, results: Sequence[object]) -> None:
        """One operation of a refused `multi` says why; the others were rolled back, or never tried."""
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
                raise NotCommitted(Fenced(row.transactional_id, row.owner)) from refusal
            raise NotCommitted(refusal)

    def rollback(self) -> None:
        """Nothing was sent."""
        self._ended = True

    def _check_open(self) -> None:
        if self._ended:
            raise NotYours("this transaction has ended")
        if self.request.committed:
            raise NotYours("the request was committed by somebody else; the writer does that")


class ZooKeeperStore:
    """The rows under one path of a connected client. The client stays open."""

    def __init__(
        self, client: KazooClient, path: str = f"/{TABLE}", *, commit_timeout_s: float = COMMIT_SECONDS_MAX
    ) -> None:
        """Args:
        client: started; its session belongs to whoever started it, its `default_acl` is used for the nodes.
        commit_timeout_s: seconds to wait for the answer to a commit before it counts as lost.
        """
        self.client = client
        self.path = path.rstrip("/")
        self.commit_timeout_s = commit_timeout_s

    def create(self) -> None:
        """Make the path if it is not there, and read what it holds."""
        self.client.ensure_path(self.path)
        for transactional_id in self.transactional_ids():
            self.read_state(transactional_id)

    def claim(self, transactional_id: str) -> StoredState:
        """Take the node over. It waits for nobody: a `multi` that comes later finds another version."""
        path, owner = self.path_of(transactional_id), secrets.token_hex(16)
        for _ in range(CLAIM_ATTEMPTS_MAX):
            found, version = self.read(transactional_id)
            row = (
                found.owned_by(owner)
                if found
                else StoredState(transactional_id=transactional_id, owner=owner)
            )
            try:
                if found:
                    self.client.set(path, to_bytes(row), version)
                else:
                    self.client.create(path, to_bytes(row))
            except (BadVersionError, NodeExistsError):
                continue  # somebody wrote it in between
            except NoNodeError as exc:
                if found is None:
                    raise BadStore(f"there is no {self.path}; create() makes it") from exc
                continue
            return row
        raise CommitUnknown(
            f"{path} was written by others {CLAIM_ATTEMPTS_MAX} times while it was to be claimed"
        )

    def begin(self) -> ZooKeeperTransaction:
        """A new request."""
        return ZooKeeperTransaction(self)

    def read_state(self, transactional_id: str) -> StoredState | None:
        """The row as the quorum has it."""
        row, _ = self.read(transactional_id)
        return row

    def read(self, transactional_id: str) -> tuple[StoredState | None, int]:
        """The row, and the version of its node; (None, 0) without one."""
        path = self.path_of(transactional_id)
        # A server may be behind its leader; after a sync it has seen what was committed before.
        self.client.sync(self.path)
        try:
            data, stat = self.client.get(path)
        except NoNodeError:
            return None, 0
        return from_bytes(transactional_id, data), stat.version

    def transactional_ids(self) -> Iterable[str]:
        """Every id that has a node, in order."""
        self.client.sync(self.path)
        try:
            return sorted(unquote(name) for name in self.client.get_children(self.path))
        except NoNodeError as exc:
            raise BadStore(f"there is no {self.path}; create() makes it") from exc

    def close(self) -> None:
        """The client is not ours."""

    def path_of(self, transactional_id: str) -> str:
        """The node of an id."""
        name = quote(transactional_id, safe="")
        # "." and ".." are no names of nodes.
        return f"{self.path}/{name if name.strip('.') else name.replace('.', '%2E')}"
