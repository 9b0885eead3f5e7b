"""Messages of consumer groups: membership, offsets, and the records of `__consumer_offsets`."""
