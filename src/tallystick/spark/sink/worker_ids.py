"""The transactional ids of one Python process, used again from batch to batch.

The hold rule [SPK-23]: an id is not taken for a lease if it was last used under that lease, or for the batch
that was decided last. The first would end a vote of the same batch, by a task that ran here before. The
second would wipe out the evidence that a decided transaction was committed, while its completion may still be
under way. So a process has about twice as many ids as it runs tasks of one batch.

Source: docs/adr/0036.
"""

from collections.abc import Callable
from secrets import token_hex

from tallystick.spark.protocol.committable import Lease
from tallystick.spark.protocol.transactional_ids import WORKER_DIGITS, WorkerId


class WorkerIds:
    """Belongs to one process and one prefix; a process runs one task at a time."""

    def __init__(self, prefix: str, draw: Callable[[], str] = lambda: token_hex(WORKER_DIGITS // 2)) -> None:
        self._prefix, self._worker = prefix, draw()
        self._last_nonce: list[str] = []

    def __len__(self) -> int:
        return len(self._last_nonce)

    def take(self, lease: Lease) -> WorkerId:
        """An id for one attempt under `lease`: one that may be initialised, or a new one."""
        held = {lease.nonce, lease.decided.nonce if lease.decided is not None else lease.nonce}
        for number, nonce in enumerate(self._last_nonce):
            if nonce not in held:
                self._last_nonce[number] = lease.nonce
                return WorkerId(self._prefix, self._worker, number)
        self._last_nonce.append(lease.nonce)
        return WorkerId(self._prefix, self._worker, len(self._last_nonce) - 1)
