"""Pool of the transactional ids of one Python process, reused from batch to batch.

The hold rule [SPK-23]: a lease does not take an id that was last used under the same lease, or for the last
decided batch. InitProducerId on the former would abort the transaction of an earlier task of the same batch,
which has voted. On the latter it would erase the evidence that a decided transaction was committed, while its
completion may still be in progress. So a process has about twice as many ids as it runs tasks of one batch,
and one more, which is initialised before a task asks for it (`next_producer`).

The rule holds over processes, too: the next one that gets this process's name knows what its ids were used
for (`worker_names`).

Source: docs/adr/0036; KIP-939 "Kafka as a Participant in 2PC": "InitProducerId aborts the on-going
    transaction".
"""

import logging
from collections.abc import Callable
from secrets import token_hex

from tallystick.spark.protocol.committable import BatchLease
from tallystick.spark.protocol.transactional_ids import WORKER_DIGITS, WorkerTransactionalId
from tallystick.spark.sink.task.worker_names import UnsharedName, WorkerName

_log = logging.getLogger("tallystick.spark")


def draw_name() -> str:
    """Draw a random name."""
    return token_hex(WORKER_DIGITS // 2)


class WorkerIdPool:
    """Pool of ids of one process and one prefix; a process runs one task at a time."""

    def __init__(
        self,
        prefix: str,
        draw: Callable[[], str] = draw_name,
        *,
        acquire_name: Callable[[], WorkerName] | None = None,
    ) -> None:
        """Create a pool, which gets its name with its first id.

        Args:
            draw: draws a random name.
            acquire_name: gets a name from a process that has ended, if there is one; by default none is.
        """
        self._prefix, self._draw = prefix, draw
        self._acquire_name = acquire_name or self._draw_unshared
        self._name: WorkerName | None = None

    def __len__(self) -> int:
        return 0 if self._name is None else len(self._name.last_nonces)

    def acquire(self, lease: BatchLease) -> WorkerTransactionalId:
        """Take an id for one attempt under `lease`: one that may be initialised, or a new one."""
        if self._name is None:
            self._name = self._acquire_name()
        number = _take_number(self._name.last_nonces, lease)
        try:
            self._name.save()
        except OSError as exc:  # the id may not be used: the next process would take it for a free one
            _log.warning("%s: the name of this worker process is not handed on: %s", self._prefix, exc)
            self._name = self._draw_unshared()
            number = _take_number(self._name.last_nonces, lease)
        return WorkerTransactionalId(self._prefix, self._name.text, number)

    def acquire_reserved(self, name: WorkerTransactionalId, lease: BatchLease) -> bool:
        """Note that an id is used under `lease` which was acquired earlier and has had no transaction since.

        Returns: False if it may not be used, because the name is no longer this process's.
        """
        if self._name is None or name.worker != self._name.text:
            return False
        self._name.last_nonces[name.number] = lease.nonce
        try:
            self._name.save()
        except OSError as exc:
            _log.warning("%s: the name of this worker process is not handed on: %s", self._prefix, exc)
            self._name = self._draw_unshared()
            return False
        return True

    def _draw_unshared(self) -> WorkerName:
        return UnsharedName(self._draw())


def _take_number(last_nonces: list[str], lease: BatchLease) -> int:
    """Return the number of an id that may be initialised under `lease`, and note that it is used there."""
    busy_nonces = {
        lease.nonce,
        lease.last_decision.nonce if lease.last_decision is not None else lease.nonce,
    }
    for number, nonce in enumerate(last_nonces):
        if nonce not in busy_nonces:
            last_nonces[number] = lease.nonce
            return number
    last_nonces.append(lease.nonce)
    return len(last_nonces) - 1
