"""What keeps an administrator from deleting records that a transaction may still commit."""

import logging
from collections.abc import Iterable, Iterator
from typing import Final

from tallystick.broker.broker import Broker
from tallystick.broker.partition import Partition
from tallystick.kernel.codes import ErrorCode
from tallystick.kernel.errors import Reject
from tallystick.kernel.ids import Offset, ProducerId

_log = logging.getLogger("tallystick.broker")

NAMED_MAX: Final = 10


def refuse_deletion(broker: Broker, doomed: Iterable[tuple[Partition, Offset]]) -> Reject | None:
    """POLICY_VIOLATION while an open transaction has records among those to be deleted, naming whose it is;
    None too where `delete.open.transactions` allows it [TXN-10]. Stricter than Kafka: docs/adr/0087.

    Args:
        doomed: partitions, and the offset before which each is to lose its records.
    """
    if broker.config.delete_open_transactions:
        return None
    found = [line for partition, end in doomed for line in _open_below(broker, partition, end)]
    if not found:
        return None
    named = ", ".join(found[:NAMED_MAX]) + (f" and {len(found) - NAMED_MAX} more" * (len(found) > NAMED_MAX))
    reason = (
        f"open transactions would lose records: {named}; commit or abort them first,"
        " or set delete.open.transactions=true"
    )
    # DeleteRecords has no room for a text.
    _log.warning("a deletion was refused: %s", reason)
    broker.metrics.deletions_refused.add()
    return Reject(ErrorCode.POLICY_VIOLATION, reason)


def _open_below(broker: Broker, partition: Partition, end: Offset) -> Iterator[str]:
    for first_offset, producer_id in partition.log.producer_state.open_transactions():
        if first_offset >= end:
            return
        entry = broker.transactions.find_writer(ProducerId(producer_id))
        whose = f"producer id {producer_id}" if entry is None else repr(entry.transactional_id)
        yield f"{whose} in {partition.topic_partition} since offset {first_offset}"
