"""Which member of a group reads which partition: Kafka's assignors, and their bytes. Pure.

Nothing here does I/O or knows the rest of the consumer.
"""
