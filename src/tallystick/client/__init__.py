"""Client engine: connections, metadata, retries, producer and consumer. Independent of the broker."""
