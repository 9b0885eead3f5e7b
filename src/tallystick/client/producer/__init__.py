"""The producer: records are batched by partition, numbered, sent, and their outcomes delivered.

    batches     accumulator, partitioner, buffer pool and the futures of records: `send` appends here
    sequences   sequence numbers, producer id and epoch
    requests    send loop, Produce requests and their responses

`engine` connects them. The package knows a transaction only as the protocols in `sequences.txn_context`: it
never imports `client.transactions`.
"""
