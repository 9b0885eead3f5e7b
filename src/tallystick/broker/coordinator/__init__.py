"""Shared runtime of the transaction coordinator and the group coordinator, like Kafka's `coordinator-common`.

The commands of one key run one at a time, against the state that the coordinator's topic has made durable. A
partition whose state is in doubt is read back from its log. The meaning of commands is defined elsewhere: see
`broker.txn` and `broker.group`.
"""
