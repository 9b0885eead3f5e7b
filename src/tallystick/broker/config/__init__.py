"""Settings of the broker and of topics, under Kafka's names; all problems are reported at once.

Values only: nothing here asks a running broker.
"""
