"""Records out: accumulated by partition, batched, numbered, sent, and their outcome delivered.

`engine` is the shell and `sender` its loop; batches, sequence numbers and partitioning are pure. A
transaction is known here as the protocol in `txn_context` alone: nothing imports `client.transactions`.
"""
