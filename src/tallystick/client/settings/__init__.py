"""Settings of the clients by Kafka's names: what they accept, refuse and ignore."""
