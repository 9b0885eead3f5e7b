"""Decisions of the dual-write library, pure: no clock, no threads, no database, no Kafka.

recovery        what became of a transactional id, from both sides, and what to do
conclusions     the report lines and errors that follow
leases          who may try to use a leased transactional id
retries         when work is run again, and after which pause
idempotency     work that is called again under the same key
pooling         which ids a pool holds and lends
refusals        which errors of drivers say that nothing was committed
model           the row of a transactional id, and its forms as columns and bytes
"""
