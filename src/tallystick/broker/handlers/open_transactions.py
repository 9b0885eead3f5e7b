"""What keeps an administrator from deleting records that a transaction may still commit."""

import logging
from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from tallystick.broker.broker import Broker
from tallystick.broker.partitions.partition import Partition
from tallystick.broker.txn.machine.model import TxnEntry
from tallystick.kernel.codes import ErrorCode
from tallystick.kernel.errors import Reject
from tallystick.kernel.ids import Identity, Offset, ProducerEpoch, ProducerId
from tallystick.kernel.value import frozen

_log = logging.getLogger("tallystick.broker")

NAMED_MAX: Final = 10


@frozen
class _Open:
    """An open transaction among whose records some are to be deleted.

    entry  of the id that has the producer id; None: no id has it, or ids are not known yet
    """

    partition: Partition
    first_offset: int
    writer: Identity
    entry: TxnEntry | None

    @property
    def is_ordinary(self) -> bool:
        """Whether its client, or a timeout, may end it at any time with nothing promised to anybody else."""
        entry = self.entry
        if entry is None or not entry.will_end(self.writer, self.partition.topic_partition):
            return False
        return not (entry.is_two_phase or entry.is_kept)

    def __str__(self) -> str:
        entry = self.entry
        whose = f"producer id {self.writer.producer_id}" if entry is None else repr(entry.transactional_id)
        return f"{whose} in {self.partition.topic_partition} since offset {self.first_offset}"


def refuse_topic_deletion(broker: Broker, partitions: Iterable[Partition]) -> Reject | None:
    """POLICY_VIOLATION while records go that a database may have been promised [TXN-10]. Stricter than Kafka.

    An ordinary transaction loses its records with the topic, and is completed without it: Kafka deletes
    without a look, and its coordinator skips what is gone (TransactionMarkerChannelManager). What no
    coordinator knows, perhaps because its records are lost, may be of two-phase commit. See docs/adr/0008.
    """
    doomed = [(partition, Offset(partition.log.log_end_offset)) for partition in partitions]
    found = [each for partition, end in doomed for each in _open_below(broker, partition, end)]
    lost = [str(each) for each in found if each.is_ordinary]
    refused = _refusal(broker, [str(each) for each in found if not each.is_ordinary])
    if refused is None and lost:
        _log.warning("a deleted topic has records of open transactions, which lose them: %s", _named(lost))
    return refused


def refuse_deletion(broker: Broker, doomed: Iterable[tuple[Partition, Offset]]) -> Reject | None:
    """POLICY_VIOLATION while an open transaction has records among those to be deleted, naming whose it is;
    None too where `delete.open.transactions` allows it [TXN-10]. Stricter than Kafka: docs/adr/0008.

    Args:
        doomed: partitions, and the offset before which each is to lose its records.
    """
    return _refusal(
        broker, [str(each) for partition, end in doomed for each in _open_below(broker, partition, end)]
    )


def _named(found: Sequence[str]) -> str:
    return ", ".join(found[:NAMED_MAX]) + (f" and {len(found) - NAMED_MAX} more" * (len(found) > NAMED_MAX))


def _refusal(broker: Broker, found: Sequence[str]) -> Reject | None:
    if not found or broker.config.delete_open_transactions:
        return None
    reason = (
        f"open transactions would lose records: {_named(found)}; commit or abort them first,"
        " or set delete.open.transactions=true"
    )
    # DeleteRecords has no room for a text.
    _log.warning("a deletion was refused: %s", reason)
    broker.metrics.deletions_refused.add()
    return Reject(ErrorCode.POLICY_VIOLATION, reason)


def _open_below(broker: Broker, partition: Partition, end: Offset) -> Iterator[_Open]:
    producers = partition.log.producer_state
    for first_offset, producer_id in producers.open_transactions():
        if first_offset >= end:
            return
        writer = Identity(ProducerId(producer_id), ProducerEpoch(producers.active[producer_id].epoch))
        yield _Open(partition, first_offset, writer, broker.transactions.find_writer(writer.producer_id))
