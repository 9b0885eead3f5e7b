"""Storage of decisions, in a topic or a database row, and access to the transactions and rows they commit.

These are implementations of `protocol.ports`. They contain no protocol rules and do not import the sink.
"""
