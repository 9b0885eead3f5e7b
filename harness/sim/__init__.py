"""A deterministic simulation of a whole broker in one thread, from one seed (style R17).

Run it with `harness.sim.simulation`. The modules:

administrators  deletions of topics and records, and aborts of single transactions
broker_view     what the broker holds, and what it reports itself, seen from inside
checkers        whether the history can be true
clients         transactional producers
cluster_setup   topics that are created, a transaction.version that is finalized
disk_image      the topics and settings of every run, and the disk that most runs begin with
dual_write      a database, and KIP-939's recipe to commit atomically to it and to the log
failing_disk    disk calls that fail for a while
fault_schedule  faults of the machine that come at given times
faults          the faults of one run
final_checks    the checks at the end, on a quiet broker
history         the record of what clients did and were told
loop            processes without threads, sockets or waiting
machine         the broker's computer: a disk that loses unsynced data, a process that is restarted
members         consumers of one group
network         requests and replies that are lost, late or duplicated
product_clients simulated clients behind the interface of the product's own
reader          a read_committed consumer
scheduler       virtual time, and the two processes that run in it
simulation      one run, made of all these
supervisor      the broker's lives: booted, ended by faults, booted again
workers         clients that run transactions, die and are replaced
"""
