"""Declarations of Kafka's messages: one module per API or stored record, as Kafka has one schema for each.

    headers     the request and response headers
    data/       records and their offsets
    txn/        transactions, those of operators too, and `__transaction_state`
    groups/     consumer groups, and `__consumer_offsets`
    topics/     topics, partitions and replicas
    cluster/    brokers, coordinators, features, settings, quotas
    security/   logins, users, ACLs

`broker.handlers` has the same folders. Nothing here decides: a declaration says what the bytes are.
"""
