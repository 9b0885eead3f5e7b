"""Settings of the broker and of topics, under Kafka's names; all problems are reported at once.

Values only: this package never asks a running broker.
"""
