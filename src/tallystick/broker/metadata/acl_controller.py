"""The only writer of ACLs: the metadata store first, then the index that the authorizer decides by.

Source: Kafka AclControlManager.
"""

import asyncio
import logging
from collections.abc import Callable, Iterable, Sequence
from typing import Final

from tallystick.broker.authorizer.acl_index import AclIndex
from tallystick.broker.authorizer.bindings import AclBinding, AclBindingFilter
from tallystick.broker.authorizer.standard_authorizer import StandardAuthorizer
from tallystick.broker.metadata.store import STORAGE_FAILURES, MetadataStore, is_rolled_back
from tallystick.broker.metadata.worker import BlockingWorker
from tallystick.kernel.codes import ErrorCode
from tallystick.kernel.errors import Reject

_log = logging.getLogger("tallystick.broker.acls")

# Source: QuorumController.MAX_RECORDS_PER_USER_OP.
DELETIONS_MAX: Final = 10_000


class AclController:
    """ACLs of a broker with an authorizer. Owned by it; lives on the loop."""

    def __init__(
        self,
        store: MetadataStore,
        worker: BlockingWorker,
        authorizer: StandardAuthorizer,
        report_failure: Callable[[Exception], None],
    ) -> None:
        """Put the stored ACLs in force.

        Args:
            report_failure: called if a change may or may not be in the file: the broker must end then.
        """
        self._report_failure = report_failure
        self._store = store
        self._worker = worker
        self._authorizer = authorizer
        self._lock = asyncio.Lock()
        authorizer.set_index(AclIndex(store.load_acls()))

    @property
    def index(self) -> AclIndex:
        """The ACLs in force."""
        return self._authorizer.index

    async def create(self, acls: Sequence[AclBinding]) -> Reject | None:
        """Add ACLs in one step; one that exists stays as it is. They are durable and in force on return."""
        async with self._lock:
            new = [acl for acl in dict.fromkeys(acls) if acl not in self.index]
            return await self._change(self.index.add(new), add=new) if new else None

    async def delete(self, filters: Sequence[AclBindingFilter]) -> list[list[AclBinding]] | Reject:
        """Remove, in one step, what the filters match; return for each what it matched."""
        async with self._lock:
            matches = [self.index.find(acl_filter) for acl_filter in filters]
            old = list(dict.fromkeys(acl for some in matches for acl in some))
            if len(old) > DELETIONS_MAX:
                why = f"Cannot remove more than {DELETIONS_MAX} acls in a single delete operation."
                return Reject(ErrorCode.INVALID_REQUEST, why)
            refused = await self._change(self.index.remove(old), remove=old) if old else None
            return refused or matches

    async def _change(
        self, index: AclIndex, *, add: Iterable[AclBinding] = (), remove: Iterable[AclBinding] = ()
    ) -> Reject | None:
        """Make a change durable, then put it in force [MET-1]."""
        try:
            await self._worker.run(lambda: self._store.change_acls(add=add, remove=remove))
        except STORAGE_FAILURES as exc:
            if not is_rolled_back(exc):
                self._report_failure(exc)
            _log.error("ACLs cannot be changed: %s", exc)
            return Reject(ErrorCode.KAFKA_STORAGE_ERROR, f"ACLs cannot be changed: {exc}")
        self._authorizer.set_index(index)
        return None
