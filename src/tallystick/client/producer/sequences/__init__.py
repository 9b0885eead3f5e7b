"""Sequence numbers of a partition's batches, and the producer id and epoch that sign them."""
