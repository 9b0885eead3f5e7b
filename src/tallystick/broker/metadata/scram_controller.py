"""The only writer of SCRAM credentials: the metadata store first, then what logins are checked with.

A credential that changes or goes holds for logins from then on. Sessions that are open stay so until they
have to log in again, as in Kafka.

Source: KIP-554; Kafka ScramControlManager, ScramPublisher.
"""

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType

from tallystick.broker.metadata.scram_credentials import (
    MECHANISMS_BY_NUMBER,
    CredentialChange,
    CredentialKey,
    derive,
    find_refusals,
)
from tallystick.broker.metadata.store import STORAGE_FAILURES, MetadataStore, is_rolled_back
from tallystick.broker.metadata.worker import BlockingWorker
from tallystick.kernel.codes import ErrorCode
from tallystick.kernel.errors import Reject
from tallystick.security.sasl.scram import ScramCredential, ScramMechanism
from tallystick.security.sasl.scram_decoys import FoundCredential, find_or_invent, list_forms

_log = logging.getLogger("tallystick.broker.scram")


class ScramController:
    """SCRAM credentials of a broker. Owned by it; lives on the loop."""

    def __init__(
        self, store: MetadataStore, worker: BlockingWorker, report_failure: Callable[[Exception], None]
    ) -> None:
        """Load the stored credentials.

        Args:
            report_failure: called if a change may or may not be in the file: the broker must end then.
        """
        self._store = store
        self._worker = worker
        self._report_failure = report_failure
        self._lock = asyncio.Lock()
        self._decoy_secret = store.decoy_secret
        self._use(store.load_scram_credentials())

    @property
    def credentials(self) -> Mapping[CredentialKey, ScramCredential]:
        """The credentials in force."""
        return MappingProxyType(self._credentials)

    def find(self, mechanism: ScramMechanism, user: str) -> FoundCredential:
        """Return what a login of this user is checked with now, an invented credential if it is unknown."""
        known, forms = self._credentials.get((user, mechanism.number)), self._forms[mechanism.number]
        return find_or_invent(mechanism, user, known, self._decoy_secret, forms)

    def _use(self, credentials: Mapping[CredentialKey, ScramCredential]) -> None:
        self._credentials = credentials
        self._forms = {
            number: list_forms(kept for (_, each), kept in credentials.items() if each == number)
            for number in MECHANISMS_BY_NUMBER
        }

    async def alter(self, changes: Sequence[CredentialChange]) -> dict[str, Reject]:
        """Make the valid changes in one step; return the users whose change was refused.

        The others' are durable and in force on return.
        """
        async with self._lock:
            refusals = find_refusals(self._credentials, changes)
            wanted = {each.key: derive(each) for each in changes if each.user not in refusals}
            if not wanted:
                return refusals
            try:
                await self._worker.run(lambda: self._store.change_scram_credentials(wanted))
            except STORAGE_FAILURES as exc:
                if not is_rolled_back(exc):
                    self._report_failure(exc)
                _log.error("SCRAM credentials cannot be changed: %s", exc)
                failure = Reject(ErrorCode.KAFKA_STORAGE_ERROR, f"SCRAM credentials cannot be changed: {exc}")
                return {user: refusals.get(user, failure) for user in (each.user for each in changes)}
            merged = {**self._credentials, **wanted}
            self._use({key: kept for key, kept in merged.items() if kept is not None})
            return refusals
