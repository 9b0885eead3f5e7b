"""Dual write: a database and Kafka commit together, or not at all."""
