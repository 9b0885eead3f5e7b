"""`__transaction_state` for the transaction coordinator."""

from tallystick.broker.config import BrokerConfig
from tallystick.broker.topics import TRANSACTION_STATE, NewTopic


def transaction_state_topic(config: BrokerConfig) -> NewTopic:
    """How the topic is made. Source: TransactionStateManager.transactionTopicConfigs, apart from min.isr."""
    return NewTopic(
        TRANSACTION_STATE,
        config.transaction_state_log_num_partitions,
        {
            "cleanup.policy": "compact",
            "compression.type": "uncompressed",
            "segment.bytes": str(config.transaction_state_log_segment_bytes),
            "unclean.leader.election.enable": "false",
        },
    )
