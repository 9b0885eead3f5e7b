"""Decisions of the dual-write library, pure: no clock, no threads, no database, no Kafka.

recovery        what became of a transactional id, from both halves, and what to do
conclusions     the report lines and errors that follow
lease_rules     who may try to use a leased transactional id
retry_rules     when work is run again, and after which pause
idempotency     work that is called again under the same key
"""
