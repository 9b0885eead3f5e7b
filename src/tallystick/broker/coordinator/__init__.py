"""What the transaction coordinator and the group coordinator share, as Kafka's `coordinator-common`.

Commands run one at a time for each key, against what the coordinator's topic has made durable; a partition
whose state is in doubt is read back from its log. What a command means is not known here: see `broker.txn`
and `broker.group`.
"""
