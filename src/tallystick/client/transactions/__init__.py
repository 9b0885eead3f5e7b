"""Transactions of one producer: the state machine, its requests, and prepared states (KIP-939).

`engine` is the shell; `state`, `requests`, `modes` and `prepared` are pure. Records are sent by
`client.producer`.
"""
