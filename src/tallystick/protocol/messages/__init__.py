"""Declarations of Kafka's messages, one module per API or stored record type."""
