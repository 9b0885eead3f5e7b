"""Assignors: Kafka's strategies to assign partitions to group members, and their wire formats. Pure.

The package does no I/O and does not depend on the rest of the consumer.
"""
