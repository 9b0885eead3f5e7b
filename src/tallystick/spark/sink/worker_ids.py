"""Pool of the transactional ids of one Python process, reused from batch to batch.

The hold rule [SPK-23]: a lease does not take an id that was last used under the same lease, or for the last
decided batch. InitProducerId on the former would abort the transaction of an earlier task of the same batch,
which has voted. On the latter it would erase the evidence that a decided transaction was committed, while its
completion may still be in progress. So a process has about twice as many ids as it runs tasks of one batch.

Source: docs/adr/0036.
"""

from collections.abc import Callable
from secrets import token_hex

from tallystick.spark.protocol.committable import Lease
from tallystick.spark.protocol.transactional_ids import WORKER_DIGITS, WorkerTransactionalId


class WorkerIdPool:
    """Pool of ids of one process and one prefix; a process runs one task at a time."""

    def __init__(self, prefix: str, draw: Callable[[], str] = lambda: token_hex(WORKER_DIGITS // 2)) -> None:
        self._prefix, self._worker = prefix, draw()
        self._last_nonce: list[str] = []

    def __len__(self) -> int:
        return len(self._last_nonce)

    def acquire(self, lease: Lease) -> WorkerTransactionalId:
        """Take an id for one attempt under `lease`: one that may be initialised, or a new one."""
        busy_nonces = {
            lease.nonce,
            lease.last_decision.nonce if lease.last_decision is not None else lease.nonce,
        }
        for number, nonce in enumerate(self._last_nonce):
            if nonce not in busy_nonces:
                self._last_nonce[number] = lease.nonce
                return WorkerTransactionalId(self._prefix, self._worker, number)
        self._last_nonce.append(lease.nonce)
        return WorkerTransactionalId(self._prefix, self._worker, len(self._last_nonce) - 1)
