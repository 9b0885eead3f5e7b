"""Handlers of topics, their partitions and replicas."""
