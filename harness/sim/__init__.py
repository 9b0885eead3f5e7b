"""A deterministic simulation of a whole broker in one thread, from one seed (style R17).

Run it with `harness.sim.simulation`. The modules:

administrators  deletions of topics and records, and aborts of single transactions
checkers        whether the history can be true
clients         transactional producers
dual_write      a database, and KIP-939's recipe to commit atomically to it and to the log
failing_disk    disk calls that fail for a while
faults          the faults of one run
history         the record of what clients did and were told
loop            processes without threads, sockets or waiting
machine         the broker's computer: a disk that loses unsynced data, a process that is restarted
members         consumers of one group
network         requests and replies that are lost, late or duplicated
reader          a read_committed consumer
workers         clients that run transactions, die and are replaced
"""
