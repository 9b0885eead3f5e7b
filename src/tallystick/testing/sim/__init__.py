"""A whole broker in one thread, everything from one seed (style R17); `tallystick.testing.world` runs it.

loop       processes without threads, sockets or waiting
machine    the broker's computer: a disk that forgets, a process that is started again
network    requests and replies that are lost, late, or there twice
faults     what goes wrong in one run
clients    transactional producers, and readers
dual_write a database, and KIP-939's recipe to commit to it and to the log as one
history    what clients did and were told
checkers   whether that can be true
"""
