"""A deterministic simulation of a whole broker in one thread, from one seed (style R17).

Run it with `tallystick.testing.world`. The modules:

loop       processes without threads, sockets or waiting
machine    the broker's computer: a disk that loses unsynced data, a process that is restarted
network    requests and replies that are lost, late or duplicated
faults     the faults of one run
clients    transactional producers, and readers
dual_write a database, and KIP-939's recipe to commit atomically to it and to the log
history    the record of what clients did and were told
checkers   whether that history can be true
"""
