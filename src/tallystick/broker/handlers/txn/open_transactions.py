"""Protection of open transactions from administrative deletions of their records."""

import logging
from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from tallystick.broker.handlers.ports import OpenTransactionsPort
from tallystick.broker.partitions.partition import Partition
from tallystick.broker.txn.machine.model import TxnEntry
from tallystick.kernel.codes import ErrorCode
from tallystick.kernel.errors import Reject
from tallystick.kernel.ids import Offset, ProducerEpoch, ProducerId, ProducerIdAndEpoch
from tallystick.kernel.value import Value

_log = logging.getLogger("tallystick.broker")

LISTED_MAX: Final = 10


class _OpenTxn(Value):
    """An open transaction that has records among those to delete.

    entry  of the id that owns the producer id; None: no id owns it, or the ids are not loaded yet
    """

    partition: Partition
    first_offset: int
    writer: ProducerIdAndEpoch
    entry: TxnEntry | None

    @property
    def is_ordinary(self) -> bool:
        """Whether its client or its timeout may end it at any time, without a promise to another system."""
        entry = self.entry
        if entry is None or not entry.is_current_transaction(self.writer, self.partition.topic_partition):
            return False
        return not (entry.is_two_phase or entry.is_kept)

    def __str__(self) -> str:
        entry = self.entry
        whose = f"producer id {self.writer.producer_id}" if entry is None else repr(entry.transactional_id)
        return f"{whose} in {self.partition.topic_partition} since offset {self.first_offset}"


def check_topic_deletion(broker: OpenTransactionsPort, partitions: Iterable[Partition]) -> Reject | None:
    """Refuse to delete records of a transaction that may be promised to a database [TXN-10].

    An ordinary transaction loses its records with the topic, and is completed without it: Kafka deletes
    without a check, and its coordinator skips deleted partitions (TransactionMarkerChannelManager). A
    transaction that no coordinator knows, perhaps because the coordinator's records are lost, may be a
    two-phase commit. Stricter than Kafka: docs/adr/0008.

    Rejects with: POLICY_VIOLATION.
    """
    ends = [(partition, Offset(partition.log.log_end_offset)) for partition in partitions]
    open_txns = [each for partition, end in ends for each in _iter_open_below(broker, partition, end)]
    ordinary = [str(each) for each in open_txns if each.is_ordinary]
    refusal = _reject_if_any(broker, [str(each) for each in open_txns if not each.is_ordinary])
    if refusal is None and ordinary:
        _log.warning(
            "a topic was deleted, and with it records of open transactions: %s", _join_limited(ordinary)
        )
    return refusal


def check_records_deletion(
    broker: OpenTransactionsPort, ends: Iterable[tuple[Partition, Offset]]
) -> Reject | None:
    """Refuse to delete records of an open transaction, and name its transactional id [TXN-10].

    `delete.open.transactions` allows it. Stricter than Kafka: docs/adr/0008.

    Args:
        doomed: partitions, and the offset before which the records of each are deleted.

    Rejects with: POLICY_VIOLATION.
    """
    return _reject_if_any(
        broker, [str(each) for partition, end in ends for each in _iter_open_below(broker, partition, end)]
    )


def _join_limited(texts: Sequence[str]) -> str:
    return ", ".join(texts[:LISTED_MAX]) + (
        f" and {len(texts) - LISTED_MAX} more" * (len(texts) > LISTED_MAX)
    )


def _reject_if_any(broker: OpenTransactionsPort, texts: Sequence[str]) -> Reject | None:
    if not texts or broker.config.delete_open_transactions:
        return None
    reason = (
        f"open transactions would lose records: {_join_limited(texts)}; commit or abort them first, or set"
        " delete.open.transactions=true"
    )
    # The response of DeleteRecords has no field for a text.
    _log.warning("a deletion was refused, nothing was deleted: %s", reason)
    broker.metrics.deletions_refused.add()
    return Reject(ErrorCode.POLICY_VIOLATION, reason)


def _iter_open_below(broker: OpenTransactionsPort, partition: Partition, end: Offset) -> Iterator[_OpenTxn]:
    producers = partition.log.producer_state_manager
    for first_offset, producer_id in producers.iter_open_transactions():
        if first_offset >= end:
            return
        writer = ProducerIdAndEpoch(
            ProducerId(producer_id), ProducerEpoch(producers.active_producers[producer_id].epoch)
        )
        yield _OpenTxn(
            partition, first_offset, writer, broker.transactions.find_by_producer_id(writer.producer_id)
        )
