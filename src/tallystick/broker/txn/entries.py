"""State of every transactional id, as of its last durable Step."""

from collections.abc import Callable, Collection, Mapping

from tallystick.broker.txn.machine.model import TxnEntry
from tallystick.kernel.ids import ProducerId, TransactionalId


class TxnEntryTable:
    """The entries by transactional id, and the ids by the producer id that partitions have.

    by_id  read-only view; `put` changes it
    """

    def __init__(self, partition_of: Callable[[TransactionalId], int]) -> None:
        self._partition_of = partition_of
        self._by_id: dict[TransactionalId, TxnEntry] = {}
        self._id_by_producer_id: dict[ProducerId, TransactionalId] = {}
        self.by_id: Mapping[TransactionalId, TxnEntry] = self._by_id
        self.get = self._by_id.get

    def put(self, transactional_id: TransactionalId, entry: TxnEntry | None) -> None:
        """Replace an entry; None removes it. All changes go through here."""
        before = self._by_id.get(transactional_id)
        if before is not None:
            self._id_by_producer_id.pop(before.described_identity.producer_id, None)
        if entry is None:
            self._by_id.pop(transactional_id, None)
        else:
            self._by_id[transactional_id] = entry
            self._id_by_producer_id[entry.described_identity.producer_id] = transactional_id

    def remove_partition(self, index: int) -> None:
        """Remove every entry that a partition of the transaction log keeps."""
        for entry in self.list_by_partitions((index,)):
            self.put(entry.transactional_id, None)

    def list_by_partitions(self, indexes: Collection[int]) -> list[TxnEntry]:
        """Return the entries that these partitions of the transaction log keep."""
        return [entry for name, entry in self._by_id.items() if self._partition_of(name) in indexes]

    def find_by_producer_id(self, producer_id: ProducerId) -> TxnEntry | None:
        """Return the entry whose transaction, current or last, has this producer id in the partitions."""
        transactional_id = self._id_by_producer_id.get(producer_id)
        return None if transactional_id is None else self._by_id.get(transactional_id)
