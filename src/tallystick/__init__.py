"""tallystick: a Kafka transaction and another system's transaction commit together, or not at all.

    from tallystick import Consumer, PreparedTxnState, Producer, TopicPartition, errors

The names are imported on first use; `tallystick.aio` has the same clients for asyncio.
"""

from typing import TYPE_CHECKING

from tallystick import _lazy

if TYPE_CHECKING:
    from tallystick import aio, errors
    from tallystick.admin.client import Admin
    from tallystick.client.blocking.consumer import Consumer, RebalanceListener
    from tallystick.client.blocking.producer import Producer
    from tallystick.client.consumer.decode import ConsumerRecord
    from tallystick.client.offsets import GroupMetadata, OffsetAndMetadata, OffsetAndTimestamp
    from tallystick.client.producer.batches.delivery import (
        BatchDelivery,
        BatchMetadata,
        Delivery,
        RecordMetadata,
    )
    from tallystick.client.transactions.engine import Completion
    from tallystick.client.transactions.modes import Mode
    from tallystick.client.transactions.prepared import PreparedTxnState
    from tallystick.kernel.ids import TopicPartition

__version__ = "0.2.0"

__all__ = [
    "Admin",
    "BatchDelivery",
    "BatchMetadata",
    "Completion",
    "Consumer",
    "ConsumerRecord",
    "Delivery",
    "GroupMetadata",
    "Mode",
    "OffsetAndMetadata",
    "OffsetAndTimestamp",
    "PreparedTxnState",
    "Producer",
    "RebalanceListener",
    "RecordMetadata",
    "TopicPartition",
    "__version__",
    "aio",
    "errors",
]

if not TYPE_CHECKING:
    __getattr__ = _lazy.attributes(
        __name__,
        {
            "Admin": "tallystick.admin.client:Admin",
            "BatchDelivery": "tallystick.client.producer.batches.delivery:BatchDelivery",
            "BatchMetadata": "tallystick.client.producer.batches.delivery:BatchMetadata",
            "Completion": "tallystick.client.transactions.engine:Completion",
            "Consumer": "tallystick.client.blocking.consumer:Consumer",
            "ConsumerRecord": "tallystick.client.consumer.decode:ConsumerRecord",
            "Delivery": "tallystick.client.producer.batches.delivery:Delivery",
            "GroupMetadata": "tallystick.client.offsets:GroupMetadata",
            "Mode": "tallystick.client.transactions.modes:Mode",
            "OffsetAndMetadata": "tallystick.client.offsets:OffsetAndMetadata",
            "OffsetAndTimestamp": "tallystick.client.offsets:OffsetAndTimestamp",
            "PreparedTxnState": "tallystick.client.transactions.prepared:PreparedTxnState",
            "Producer": "tallystick.client.blocking.producer:Producer",
            "RebalanceListener": "tallystick.client.blocking.consumer:RebalanceListener",
            "RecordMetadata": "tallystick.client.producer.batches.delivery:RecordMetadata",
            "TopicPartition": "tallystick.kernel.ids:TopicPartition",
            "aio": "tallystick.aio",
            "errors": "tallystick.errors",
        },
    )
