"""Servers to compare with and to test against: our broker, Apache Kafka, Spark's connector, databases."""
