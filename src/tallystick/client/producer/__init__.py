"""The producer: records are batched by partition, numbered, sent, and their outcomes delivered.

`engine` is the shell and `sender` its send loop; batches, sequence numbers and partitioning are pure. The
package knows a transaction only as the protocols in `txn_context`: it never imports `client.transactions`.
"""
